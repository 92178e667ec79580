//! The end of a process, and a server that goes away and comes back.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use taskparty_common::outcome::Outcome;

use super::expect;
use crate::site::{Site, until};
use crate::subject::Subject;

/// At SIGTERM what runs is finished and nothing else is taken; the entry goes last.
pub async fn sigterm_drains(subject: &Subject) {
    let site = Site::with_lease(subject, Duration::from_secs(2)).await;
    let executor = site.executor().await;
    let running = site.run("sleep", json!({"ms": 4_000})).await;
    site.started(running, 1).await;
    executor.signal(Signal::TERM);
    let draining = async || site.registered().await.iter().any(|e| e.draining).then_some(());
    until("a draining entry", draining).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let waiting = site.run("echo", json!(null)).await;
    executor.ends_well().await;
    let result = site.result(running).await;
    expect(&result, Outcome::Succeeded, None);
    assert_eq!(result.delivery, 1, "its lease was not kept while it drained");
    assert!(site.registered().await.is_empty(), "the registry remembers the instance");
    assert!(site.results(waiting).await.is_empty());
    assert_eq!(site.left().await, 1, "the other run waits for another executor");

    let next = site.executor().await;
    let result = site.result(waiting).await;
    assert_eq!((result.delivery, &result.instance), (1, &next.instance));
    site.wait_until_done().await;
    next.stop().await;
}

/// When the drain time is over, what still runs is handed to others at once.
pub async fn past_the_drain_time_work_is_handed_back(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor_with(Duration::from_millis(200)).await;
    let run = site.run("sleep", json!({"ms": 600_000})).await;
    site.started(run, 1).await;
    executor.stop().await;
    assert!(site.results(run).await.is_empty(), "half of the work is no result");
    assert!(site.registered().await.is_empty(), "the registry remembers the instance");
    let next = site.executor_with(Duration::ZERO).await;
    assert_eq!(site.started(run, 2).await.instance, next.instance);
    next.stop().await;
}

/// A server that restarts, idle or in the middle of a run, is survived.
pub async fn a_restart_of_the_server_is_survived(subject: &Subject) {
    let mut site = Site::start(subject).await;
    let executor = site.executor().await;
    site.server.restart().await.unwrap();
    expect(&site.outcome(&site.work("echo", json!(null))).await, Outcome::Succeeded, None);
    let run = site.run("sleep", json!({"ms": 2_000})).await;
    site.started(run, 1).await;
    site.server.restart().await.unwrap();
    let result = site.result(run).await;
    expect(&result, Outcome::Succeeded, None);
    assert_eq!((result.delivery, &result.instance), (1, &executor.instance));
    site.wait_until_done().await;
    executor.stop().await;
}
