//! A handler that does not heed its cancel or its timeout, and that nothing can stop.

use std::time::Duration;

use chrono::TimeDelta;
use futures::{FutureExt, StreamExt};
use serde_json::json;
use taskparty_common::dispatch::Cancel;
use taskparty_common::outcome::{Code, Outcome};

use super::expect;
use crate::site::{Site, until};
use crate::subject::Subject;

/// For how long the handler goes on. Long beside the second that it has to tidy up.
const GOES_ON: i64 = 12_000;

/// Whoever stopped it learns that it may still be at work, its lease is not extended any more, and
/// no other run begins in its slot until it has really ended.
pub async fn one_that_does_not_stop_is_reported_as_such_and_keeps_its_slot(subject: &Subject) {
    let site = Site::with_lease(subject, Duration::from_secs(2)).await;
    let executor = site.executor().await;
    let client = site.nats.client();
    let mut said = client.subscribe("$JS.ACK.>").await.unwrap();
    client.flush().await.unwrap();

    let cancelled = site.run("deaf", json!({"ms": GOES_ON})).await;
    site.started(cancelled, 1).await;
    let mut work = site.work("deaf", json!({"ms": GOES_ON}));
    work["timeout_ms"] = json!(300);
    let late = site.dispatch(&work).await;
    let cancel = Cancel { run: cancelled, shard: None, by: "alice".into() };
    let to = site.nats.names().cancel(&site.app, cancelled);
    client.publish(to, serde_json::to_vec(&cancel).unwrap().into()).await.unwrap();
    let first = site.result(cancelled).await;
    expect(&first, Outcome::Cancelled, Code::Cancelled);
    let still = "may still be at work";
    assert!(first.message.contains("alice") && first.message.contains(still), "{first:?}");
    until("its ack", async || (site.left().await == 1).then_some(())).await;

    let second = site.result(late).await;
    expect(&second, Outcome::TimedOut, Code::Timeout);
    assert!(second.message.contains(still), "{second:?}");
    let apart = second.started_at.unwrap() - first.started_at.unwrap();
    assert!(apart >= TimeDelta::milliseconds(GOES_ON), "both at work at once: {apart} apart");
    site.wait_until_done().await;

    let mut said = std::iter::from_fn(|| said.next().now_or_never().flatten());
    let acked = said.by_ref().find(|message| &message.payload[..] == b"+ACK").unwrap().subject;
    let of_it = |message: &async_nats::Message| message.subject == acked;
    let later = said.filter(of_it).filter(|message| &message.payload[..] == b"+WPI").count();
    // One may have been on its way with the ack.
    assert!(later <= 1, "the lease was extended {later} times after the ack");
    assert_eq!(site.results(cancelled).await.len() + site.results(late).await.len(), 2);
    executor.stop().await;
}
