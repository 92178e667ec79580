//! The watermarks: for each scheduler, the instant up to which it has handled all its jobs.
//!
//! One write a second a scheduler, and one at a graceful stop; never one per fire. *Invariant: a
//! watermark is written only after everything before it is recorded*; the engine works it out.
//! The key of a scheduler that has gone is removed by one that is further, which therefore has
//! handled everything that the other had left.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use taskparty_common::name::Instance;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::history::ReadError;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::engine::Progress;

const EVERY: Duration = Duration::from_secs(1);
const PREFIX: &str = "scheduler.";

/// A scheduler's watermark, as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct Watermark {
    v: u32,
    /// Every instant up to here is handled.
    handled: DateTime<Utc>,
}

/// The earliest watermark of all schedulers, live and departed; nothing when there is none.
pub(crate) async fn earliest(buckets: &Buckets) -> Result<Option<DateTime<Utc>>, ReadError> {
    let all = buckets.entries(Bucket::Cursors, &format!("{PREFIX}*")).await?;
    Ok(all.iter().filter_map(|entry| read(entry.value.as_deref()?)).min())
}

fn read(value: &[u8]) -> Option<DateTime<Utc>> {
    match serde_json::from_slice::<Watermark>(value) {
        Ok(watermark) => Some(watermark.handled),
        Err(error) => {
            tracing::error!(%error, "A watermark cannot be read; it is ignored.");
            None
        }
    }
}

/// Keeps a scheduler's watermark in the bucket.
pub(crate) struct Keeper {
    pub(crate) buckets: Buckets,
    pub(crate) instance: Instance,
    pub(crate) progress: watch::Receiver<Option<Progress>>,
}

impl Keeper {
    /// Writes the watermark each second until `shutdown`, which comes after the engine's end, and
    /// then once more.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        let mut written = None;
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut beats = 0_u64;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = shutdown.cancelled() => {
                    self.write(&mut written).await;
                    return;
                }
            }
            self.write(&mut written).await;
            beats += 1;
            if beats.is_multiple_of(30) {
                self.remove_departed(written).await;
            }
        }
    }

    async fn write(&self, written: &mut Option<i64>) {
        let progress = *self.progress.borrow();
        let Some(Progress { watermark_ms: watermark, .. }) = progress else { return };
        if *written == Some(watermark) {
            return;
        }
        let Some(handled) = DateTime::from_timestamp_millis(watermark) else { return };
        let Ok(value) = serde_json::to_vec(&Watermark { v: 1, handled }) else { return };
        let key = self.buckets.nats().names().key(Bucket::Cursors, &format!("{PREFIX}{}", self.instance));
        match self.buckets.publisher().publish_within(Draft::new(key, value), 2 * EVERY).await {
            Ok(_) => *written = Some(watermark),
            Err(error) => tracing::warn!(%error, "The watermark is not written; it is tried again."),
        }
    }

    /// Removes the watermarks of schedulers that have gone and that this one has overtaken.
    async fn remove_departed(&self, written: Option<i64>) {
        let Some(own) = written.and_then(DateTime::from_timestamp_millis) else { return };
        let live = self.buckets.entries(Bucket::Schedulers, ">").await;
        let all = self.buckets.entries(Bucket::Cursors, &format!("{PREFIX}*")).await;
        let (Ok(live), Ok(all)) = (live, all) else { return };
        for entry in all {
            let instance = entry.key.strip_prefix(PREFIX).unwrap_or_default();
            let gone = instance != self.instance.as_str() && live.iter().all(|l| l.key != instance);
            let overtaken = entry.value.as_deref().and_then(read).is_some_and(|other| other <= own);
            if gone && overtaken
                && let Err(error) = self.buckets.delete(Bucket::Cursors, &entry.key).await
            {
                tracing::warn!(%error, key = entry.key, "A departed scheduler's watermark is not removed.");
            }
        }
    }
}
