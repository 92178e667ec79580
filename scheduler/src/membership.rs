//! The schedulers that live: a heartbeat each second, gone four seconds after the last one.
//!
//! The heartbeat says which revision of the jobs its scheduler fires by; whoever changed a job
//! waits for it. So it is sent at once when that moves.

use std::time::Duration;

use chrono::{DateTime, Utc};
use taskparty_common::dispatch::SchedulerEntry;
use taskparty_common::name::Instance;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::engine::Progress;

const EVERY: Duration = Duration::from_secs(1);

/// A scheduler that was not heard of for this long has gone. In whole seconds: NATS counts so.
const TTL: Duration = Duration::from_secs(4);

/// Changes of jobs that come together are shown together.
const SETTLE: Duration = Duration::from_millis(10);

/// A scheduler's heartbeat.
pub(crate) struct Heartbeat {
    pub(crate) buckets: Buckets,
    pub(crate) instance: Instance,
    pub(crate) host: String,
    pub(crate) started_at: DateTime<Utc>,
    pub(crate) progress: watch::Receiver<Option<Progress>>,
}

impl Heartbeat {
    /// Beats until `shutdown`; then leaves, so that the others need not wait for the TTL.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut shown = None;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = shutdown.cancelled() => break,
                changed = self.progress.changed() => {
                    if changed.is_err() {
                        break;
                    }
                    let progress = *self.progress.borrow_and_update();
                    if shown == progress.map(|progress| progress.jobs_revision) {
                        continue;
                    }
                    tokio::time::sleep(SETTLE).await;
                }
            }
            let progress = *self.progress.borrow_and_update();
            // A scheduler that does not know its jobs yet is no member.
            let Some(progress) = progress else { continue };
            if self.beat(progress).await {
                shown = Some(progress.jobs_revision);
            }
        }
        if let Err(error) = self.buckets.delete(Bucket::Schedulers, self.instance.as_str()).await {
            tracing::warn!(%error, "The heartbeat is not taken back; it ends by itself.");
        }
    }

    async fn beat(&self, progress: Progress) -> bool {
        let entry = SchedulerEntry {
            v: 1,
            instance: self.instance.clone(),
            jobs_revision: progress.jobs_revision,
            jobs: progress.jobs,
            host: self.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            started_at: self.started_at,
        };
        let Ok(value) = serde_json::to_vec(&entry) else { return false };
        let key = self.buckets.nats().names().key(Bucket::Schedulers, self.instance.as_str());
        let draft = Draft::new(key, value).ttl(TTL);
        match self.buckets.publisher().publish_within(draft, 2 * EVERY).await {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(%error, "The heartbeat is not stored; it is tried again.");
                false
            }
        }
    }
}
