//! What TaskParty made in NATS stays there, though somebody deletes it by hand while everything runs.
//!
//! Each scheduler looks every two seconds. What is gone is made again, loudly; and what it held is
//! brought back as far as anyone still knows it: the jobs that this scheduler fires by, the
//! executors that it sees, the fired records of what is locked, the runs that go on or wait of jobs
//! that may not overlap themselves. Work that was in a deleted stream is
//! found missing by the log writer's sweep, which ends its runs.
//!
//! *Invariant: nothing here decides about a fire.* It only puts back what was there.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::StreamExt;
use taskparty_common::fire::{FireId, Intent};
use taskparty_nats::bucket::BucketError;
use taskparty_nats::history::{self, ReadError, Start, consumer_info};
use taskparty_nats::subject::{Bucket, LOG_WRITER};
use taskparty_nats::topology::TopologyError;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::alarm::Alarms;
use crate::fire::{Firing, Held};
use crate::jobs::Jobs;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(2);

/// Records that are stored side by side.
const AT_ONCE: usize = 64;

/// A record may have been on its way when the log writer was last seen to have them all.
const MARGIN: TimeDelta = TimeDelta::seconds(5);

/// For how long a consumer that is made again is taken for gone with its stream.
const GO_WITH_IT: Duration = Duration::from_secs(60);

/// How long reading the locks may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Looks after what is in NATS.
pub(crate) struct Upkeep {
    firing: Firing,
    jobs: Jobs,
    alarms: Alarms,
    /// When the log writer was last seen to have taken in all records.
    all_taken_in: DateTime<Utc>,
    /// The streams that were made again lately.
    remade: HashMap<String, Instant>,
}

impl Upkeep {
    /// Looks after what `firing` needs; `jobs` are those that it fires.
    pub(crate) fn new(firing: Firing, jobs: Jobs, alarms: Alarms) -> Self {
        let all_taken_in = firing.clock.now();
        Self { firing, jobs, alarms, all_taken_in, remade: HashMap::new() }
    }

    /// Looks until `shutdown`.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut failing = false;
        while shutdown.run_until_cancelled(tick.tick()).await.is_some() {
            let looked = shutdown.run_until_cancelled(self.look()).await;
            match looked {
                None => return,
                Some(Ok(())) => failing = false,
                Some(Err(error)) if failing => {
                    tracing::debug!(%error, "What is in NATS cannot be looked after.");
                }
                Some(Err(error)) => {
                    failing = true;
                    tracing::warn!(%error, "What is in NATS cannot be looked after now; it is tried every 2 s.");
                }
            }
        }
    }

    async fn look(&mut self) -> Result<(), TopologyError> {
        let topology = self.firing.topology.clone();
        let missing = topology.missing().await?;
        let names = self.firing.nats().names().clone();
        let (jobs, executors) =
            (names.bucket_stream(Bucket::Jobs), names.bucket_stream(Bucket::Executors));
        let mut failed = Vec::new();
        for missing in &missing {
            let stream = missing.name().split('/').next();
            if failed.iter().any(|(name, _)| Some(*name) == stream) {
                continue;
            }
            // Before it is there again: whoever watches it then sees it empty.
            let (bucket, known) = match missing.name() {
                name if name == jobs => (Bucket::Jobs, self.known_jobs()),
                name if name == executors => (Bucket::Executors, self.known_executors()),
                _ => (Bucket::Jobs, Vec::new()),
            };
            if let Err(error) = topology.make_again(missing).await {
                failed.push((missing.name(), error));
                continue;
            }
            for (key, value) in known {
                self.put_back(bucket, &key, value).await;
            }
        }
        let made = topology.take_made_again();
        if made.contains(&names.results_stream()) {
            match self.record_again().await {
                Ok(count) => tracing::warn!(
                    count,
                    "Fired records are stored again: the stream with them was deleted."
                ),
                Err(error) => {
                    tracing::error!(%error, "The locks cannot be read: runs whose fired records were deleted stay unknown to the history.")
                }
            }
        }
        if made.contains(&names.bucket_stream(Bucket::Overlap)) {
            match self.restore_places().await {
                Ok(waiting) => tracing::warn!(
                    waiting,
                    "The places of runs are stored again: the bucket with them was deleted."
                ),
                Err(error) => {
                    tracing::error!(%error, "Runs that waited for their turn cannot be restored now; the log writer's sweep does it.");
                }
            }
        }
        let deleted = self.deleted(made);
        if !deleted.is_empty() {
            self.alarms.raise("deleted", &told(&deleted)).await;
        }
        self.note_taken_in().await;
        // What can be made is made all the same.
        failed.into_iter().next().map_or(Ok(()), |(_, error)| Err(error))
    }

    /// What somebody deleted, of what was `made` again. The consumers of a stream go with it, and may
    /// be made again a look later than the stream.
    fn deleted(&mut self, made: Vec<String>) -> Vec<String> {
        self.remade.retain(|_, at| at.elapsed() < GO_WITH_IT);
        let streams = made.iter().filter(|name| !name.contains('/'));
        self.remade.extend(streams.map(|stream| (stream.clone(), Instant::now())));
        let of_a_stream = |name: &str| name.split_once('/').map(|(stream, _)| stream.to_owned());
        made.into_iter()
            .filter(|name| {
                of_a_stream(name).is_none_or(|stream| !self.remade.contains_key(&stream))
            })
            .collect()
    }

    fn known_jobs(&self) -> Vec<(String, Vec<u8>)> {
        let jobs = self.jobs.all().into_iter();
        jobs.filter_map(|job| {
            let value = job.peek()?.job.to_json().to_string().into_bytes();
            Some((job.id().to_string(), value))
        })
        .collect()
    }

    fn known_executors(&self) -> Vec<(String, Vec<u8>)> {
        let entries = self.firing.registry.entries().into_iter();
        entries
            .filter_map(|entry| {
                let key = format!("{}.{}", entry.app, entry.instance);
                Some((key, serde_json::to_vec(&entry).ok()?))
            })
            .collect()
    }

    /// Puts back an entry of a bucket that was deleted, unless there is a newer one already.
    async fn put_back(&self, bucket: Bucket, key: &str, value: Vec<u8>) {
        if let Err(error) = self.firing.buckets.put_if(bucket, key, 0, value, None).await {
            tracing::error!(key, %error, "What a deleted bucket held cannot be put back.");
        }
    }

    /// Remembers up to when every record is in the history.
    async fn note_taken_in(&mut self) {
        let nats = self.firing.nats();
        let now = self.firing.clock.now();
        let info = consumer_info(nats.js(), &nats.names().results_stream(), LOG_WRITER).await;
        if let Ok(Some(info)) = info
            && info.pending == 0
            && info.ack_pending == 0
        {
            self.all_taken_in = now;
        }
    }

    /// Stores anew who has a place and who waits, as far as this scheduler has seen it, and what
    /// those are to do that wait, as their locks say it. How many of those there are.
    async fn restore_places(&self) -> Result<usize, BucketError> {
        let queues = &self.firing.queues;
        let waiting: HashSet<Uuid> = queues.restore().await?.into_iter().collect();
        if waiting.is_empty() {
            return Ok(0);
        }
        for held in self.locks(Start::First, |intent| waiting.contains(&intent.run)).await? {
            queues.keep(&held.id, &held.intent).await?;
        }
        Ok(waiting.len())
    }

    /// The locks from `start` on whose intents are `wanted`.
    async fn locks(
        &self,
        start: Start,
        wanted: impl Fn(&Intent) -> bool,
    ) -> Result<Vec<Held>, ReadError> {
        let nats = self.firing.nats();
        let (stream, prefix) =
            (nats.names().bucket_stream(Bucket::Fires), nats.names().key(Bucket::Fires, ""));
        let subjects = [nats.names().key(Bucket::Fires, ">")];
        let mut held = Vec::new();
        let visit = |message: history::Record| {
            let key = message.subject.strip_prefix(&prefix).unwrap_or_default();
            if !message.is_marker()
                && let Some(id) = FireId::from_lock_key(key)
                && let Ok(intent) = serde_json::from_slice::<Intent>(&message.payload)
                && wanted(&intent)
            {
                held.push(Held { id, intent, stored_at: message.stored_at });
            }
            ControlFlow::Continue(())
        };
        history::read(nats.js(), &stream, &subjects, start, PATIENCE, visit).await?;
        Ok(held)
    }

    /// Stores the fired records of all locks anew that the history may not have.
    async fn record_again(&self) -> Result<usize, ReadError> {
        let start = Start::Time(self.all_taken_in - MARGIN);
        let held = self.locks(start, |_| true).await?;
        let firing = &self.firing;
        let stored = futures::stream::iter(held)
            .map(|held| async move { firing.record_again(&held).await })
            .buffer_unordered(AT_ONCE);
        Ok(stored.filter(|stored| std::future::ready(*stored)).count().await)
    }
}

fn told(made: &[String]) -> String {
    format!(
        "{} was deleted in NATS while TaskParty ran, and is made again. Runs whose work or records \
         were in it end as lost, and follow their retry policy. Nobody but TaskParty should delete it",
        made.join(", ")
    )
}
