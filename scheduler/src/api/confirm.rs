//! When an edit holds: every live scheduler has shown that it goes by it, or has gone.
//!
//! Heartbeats carry the revision of the jobs that a scheduler has seen. Until all of them carry
//! the edit's, a fire of the old definition may still happen; so the user is told.

use std::time::Duration;

use taskparty_common::dispatch::SchedulerEntry;
use taskparty_nats::bucket::Entry;
use taskparty_nats::subject::Bucket;
use tokio::time::{Instant, sleep};

use super::Api;
use super::wire::Confirmation;

/// A heartbeat a second, a TTL of four: by then whoever hangs has gone.
const DEADLINE: Duration = Duration::from_secs(6);

/// How often the heartbeats are looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Waits until every live scheduler goes by `revision` of the jobs.
pub(super) async fn confirm(api: &Api, revision: u64) -> Confirmation {
    let end = Instant::now() + DEADLINE;
    loop {
        let waiting_for: Vec<String> = match api.buckets.entries(Bucket::Schedulers, ">").await {
            Ok(entries) => entries
                .iter()
                .filter(|entry| lags(entry, revision))
                .map(|entry| entry.key.to_string())
                .collect(),
            Err(error) => vec![format!("(the schedulers cannot be read: {error})")],
        };
        if waiting_for.is_empty() || Instant::now() + LOOK >= end {
            return Confirmation { confirmed: waiting_for.is_empty(), waiting_for };
        }
        sleep(LOOK).await;
    }
}

fn lags(entry: &Entry, revision: u64) -> bool {
    let body = entry.value.as_ref().map_or(&[][..], |value| value);
    serde_json::from_slice::<SchedulerEntry>(body).is_ok_and(|entry| entry.jobs_revision < revision)
}
