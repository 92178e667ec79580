//! Places of runs that simply succeeded are given back at once.
//!
//! The log writer gives back every place, after SQL. So that SQL being slow or down stops no job
//! that may not overlap itself, the scheduler that owns a job hears of its plain successes itself.
//! What it does not hear costs time, and nothing else.

use std::sync::Arc;

use futures::StreamExt;
use taskparty_common::dispatch::ResultRecord;
use taskparty_common::name::Instance;
use taskparty_common::outcome::Outcome;
use taskparty_nats::connect::Nats;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::engine::Members;
use crate::jobs::Jobs;
use crate::overlap::Queues;

/// Places that are given back side by side.
const ROOM: usize = 64;

/// Gives back the places of plain successes.
pub(crate) struct Releases {
    pub(crate) queues: Queues,
    pub(crate) jobs: Jobs,
    pub(crate) members: watch::Receiver<Members>,
    pub(crate) instance: Instance,
}

impl Releases {
    /// Listens until `shutdown`.
    pub(crate) async fn run(self, nats: Nats, shutdown: CancellationToken) {
        let subject = nats.names().result_all();
        let mut results = match nats.client().subscribe(subject).await {
            Ok(results) => results,
            Err(error) => {
                tracing::warn!(%error, "Results are not heard; places are given back by the log writer alone.");
                return;
            }
        };
        let (room, tasks) = (Arc::new(Semaphore::new(ROOM)), TaskTracker::new());
        while let Some(Some(message)) = shutdown.run_until_cancelled(results.next()).await {
            for line in message.payload.split(|byte| *byte == b'\n') {
                let Ok(result) = serde_json::from_slice::<ResultRecord>(line) else { continue };
                if !self.concerns(&result) {
                    continue;
                }
                // When too many are under way, the log writer gives this one back.
                let Ok(slot) = room.clone().try_acquire_owned() else { continue };
                let queues = self.queues.clone();
                tasks.spawn(async move {
                    if let Err(error) = queues.release(&result.job, result.run).await {
                        tracing::warn!(job = %result.job, run = %result.run, %error, "A place is not given back; the log writer does it.");
                    }
                    drop(slot);
                });
            }
        }
        tasks.close();
        tasks.wait().await;
    }

    /// Whether this is the whole and good end of a run of this scheduler's jobs that holds a place.
    fn concerns(&self, result: &ResultRecord) -> bool {
        result.outcome == Outcome::Succeeded
            && result.shard.total == 1
            && self.members.borrow().owner(&result.job) == Some(&self.instance)
            && self
                .jobs
                .get(&result.job)
                .and_then(|job| job.peek())
                .is_some_and(|job| job.spec().places().is_some())
    }
}
