//! The watermarks: for each scheduler, the instant up to which it has handled all its jobs.
//!
//! One write a second a scheduler, one when it moves back, and one at a graceful stop; never one
//! per fire. *Invariants.* A watermark is written only after everything before it is recorded; the
//! engine works it out. It is moved back, and confirmed, before the first fire of a job that was
//! taken over from an earlier place. The watermark of a scheduler that has gone stays until every
//! live one has taken over its share from there, also the share of one that died before it had. Jobs
//! that lag do not hold it back: they have cursors of their own, which are written before it and
//! deleted after it.

mod job;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::stream::{self, StreamExt};
use serde::{Deserialize, Serialize};
use taskparty_common::name::{Instance, JobId};
use taskparty_nats::bucket::{Buckets, Swap};
use taskparty_nats::history::ReadError;
use taskparty_nats::subject::Bucket;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

#[cfg(test)]
pub(crate) use self::job::Written;
pub(crate) use self::job::{Cursor, Marks, Own, Wanted, all as of_jobs};
use crate::engine::Progress;

const EVERY: Duration = Duration::from_secs(1);

/// Watermarks of those that have gone are looked for each so many writes.
const CLEAN_UP_EACH: u64 = 10;

/// Cursors of jobs that are written side by side.
const AT_ONCE: usize = 64;

/// How far back a watermark may be that cannot be read: it is stored each second, and waits for a job
/// that lags by more than seconds only where cursors cannot be stored, or too many lag.
const UNREAD: TimeDelta = TimeDelta::minutes(10);

const PREFIX: &str = "scheduler.";

/// A scheduler's watermark, as it is stored.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Watermark {
    v: u32,
    /// Every instant up to here, of every job that the scheduler owns and that has no cursor of its
    /// own, is handled.
    pub(crate) handled: DateTime<Utc>,
    /// The schedulers that have gone and whose watermarks this one has started from.
    #[serde(default)]
    pub(crate) walked: BTreeSet<Instance>,
}

/// The watermarks of all schedulers, live and departed. One that cannot be read counts as of
/// [a while](UNREAD) before it was stored: without it, whoever is next would begin at the others', or
/// at now.
pub(crate) async fn all(buckets: &Buckets) -> Result<HashMap<Instance, Watermark>, ReadError> {
    let entries = buckets.entries(Bucket::Cursors, &format!("{PREFIX}*")).await?;
    let read = |entry: taskparty_nats::bucket::Entry| {
        let instance = Instance::new(entry.key.strip_prefix(PREFIX)?).ok()?;
        let mark = serde_json::from_slice(entry.value.as_deref()?).unwrap_or_else(|error| {
            let handled = entry.created - UNREAD;
            tracing::error!(key = %entry.key, %error, %handled, "A watermark cannot be read. It counts as of ten minutes before it was stored: what a job had missed before then is not caught up with.");
            Watermark { v: 1, handled, walked: BTreeSet::new() }
        });
        Some((instance, mark))
    };
    Ok(entries.into_iter().filter_map(read).collect())
}

/// What a scheduler has stored.
#[derive(Debug, Clone)]
pub(crate) struct Confirmed {
    /// The watermark, in milliseconds.
    pub(crate) watermark_ms: i64,
    /// How often the engine had taken jobs over when this was begun.
    pub(crate) take_overs: u64,
    /// The jobs whose cursors it keeps.
    pub(crate) jobs: Arc<BTreeSet<JobId>>,
}

/// Keeps a scheduler's watermark in the bucket, and the cursors of its jobs that lag.
pub(crate) struct Keeper {
    pub(crate) buckets: Buckets,
    pub(crate) instance: Instance,
    pub(crate) progress: watch::Receiver<Option<Progress>>,
    /// The schedulers whose watermarks the engine has started from.
    pub(crate) walked: watch::Receiver<BTreeSet<Instance>>,
    /// What is stored.
    pub(crate) confirmed: watch::Sender<Option<Confirmed>>,
    /// The revision of the stored watermark; 0 before the first.
    pub(crate) revision: u64,
    /// Whether the last one was stored is not known.
    pub(crate) unsure: bool,
    /// The cursors of jobs that lag.
    pub(crate) own: Own,
    /// The node leaves: others take its jobs over.
    pub(crate) leaving: CancellationToken,
}

impl Keeper {
    /// Writes the watermark until `shutdown`, which comes after the engine's end, and then once
    /// more.
    pub(crate) async fn run(mut self, shutdown: CancellationToken) {
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut writes, mut engine_lives) = (0_u64, true);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                changed = self.progress.changed(), if engine_lives => {
                    engine_lives = changed.is_ok();
                    if !engine_lives || !self.is_moved_back() {
                        continue;
                    }
                }
                () = shutdown.cancelled() => {
                    self.write().await;
                    return;
                }
            }
            self.write().await;
            writes += 1;
            if writes.is_multiple_of(CLEAN_UP_EACH)
                && let Err(error) = self.clean_up().await
            {
                tracing::warn!(%error, "The watermarks of departed schedulers are not looked after.");
            }
        }
    }

    /// Whether the engine's watermark is before the stored one, or the first of all, or the engine waits
    /// for one that is stored now. Takes note of what has become another's meanwhile.
    fn is_moved_back(&mut self) -> bool {
        let Some(progress) = self.progress.borrow_and_update().clone() else { return false };
        self.own.settle(&progress.cursors);
        let is_back = |stored: &Confirmed| {
            progress.watermark_ms < stored.watermark_ms || progress.take_overs > stored.take_overs
        };
        self.confirmed.borrow().as_ref().is_none_or(is_back)
    }

    /// First the cursors of jobs that lag, then the watermark that passes them, then away with the
    /// cursors of those that it counts again.
    async fn write(&mut self) {
        // In this order: the engine moves its watermark back before it says whom it has walked.
        let walked = self.walked.borrow().clone();
        let Some(progress) = self.progress.borrow().clone() else { return };
        self.own.settle(&progress.cursors);
        self.put_cursors(&progress.cursors).await;
        // It may have moved back meanwhile.
        let now = self.progress.borrow().as_ref().map_or(i64::MAX, |now| now.watermark_ms);
        let watermark_ms = self.watermark(progress.watermark_ms.min(now), &progress.cursors);
        let Some(handled) = DateTime::from_timestamp_millis(watermark_ms) else { return };
        let Ok(value) = serde_json::to_vec(&Watermark { v: 1, handled, walked }) else { return };
        // What became of the last one is asked for first: three round trips instead of one.
        let patience = if self.unsure { 5 * EVERY } else { 2 * EVERY };
        self.unsure = true;
        let stored = timeout(patience, self.store(value.into())).await;
        match stored.unwrap_or_else(|_| Err("the server does not answer".into())) {
            Ok(()) => {
                self.unsure = false;
                let jobs = Arc::new(self.own.jobs().cloned().collect());
                let take_overs = progress.take_overs;
                let confirmed = Confirmed { watermark_ms, take_overs, jobs };
                self.confirmed.send_replace(Some(confirmed));
                self.delete_cursors(&progress.cursors).await;
            }
            Err(error) => tracing::warn!(%error, "The watermark is not stored; it is tried again."),
        }
    }

    /// Writes the watermark over the last one. *Invariant: one that was on its way for long, and that
    /// was given up, never replaces a later one*, which may be further back.
    async fn store(&mut self, value: Bytes) -> Result<(), String> {
        let key = format!("{PREFIX}{}", self.instance);
        for _ in 0..2 {
            let put =
                self.buckets.put_if(Bucket::Cursors, &key, self.revision, value.clone(), None);
            match put.await.map_err(|error| error.to_string())? {
                Swap::Done { revision } => {
                    self.revision = revision;
                    return Ok(());
                }
                // An own one whose answer was lost, or another has removed it.
                Swap::Lost { current } => self.revision = current.map_or(0, |entry| entry.revision),
            }
        }
        Err("it is being written by another".into())
    }

    /// How far the watermark may go, when it may go up to `others_ms` but for jobs that lag.
    fn watermark(&self, others_ms: i64, marks: &Marks) -> i64 {
        let stored = self.confirmed.borrow().as_ref().map(|stored| stored.watermark_ms);
        match stored.filter(|_| self.leaving.is_cancelled()) {
            Some(stored_ms) => self.own.last_watermark(others_ms, marks, stored_ms),
            None => self.own.watermark(others_ms, marks),
        }
    }

    async fn put_cursors(&mut self, marks: &Marks) {
        let (buckets, owner) = (&self.buckets, &self.instance);
        let puts = self.own.begin_puts(marks).into_iter().map(async |put| {
            let written = Own::put(buckets, owner, &put).await;
            (put, written)
        });
        let mut answers = stream::iter(puts).buffer_unordered(AT_ONCE);
        let all = async {
            while let Some((put, written)) = answers.next().await {
                self.own.was_put(put, written);
            }
        };
        if timeout(2 * EVERY, all).await.is_err() {
            tracing::warn!(
                "Not all cursors of jobs that lag are stored; the watermark waits for the others."
            );
        }
    }

    async fn delete_cursors(&mut self, marks: &Marks) {
        let buckets = &self.buckets;
        let deletes = self.own.deletes(marks).into_iter().map(async |(job, revision)| {
            let gone = Own::delete(buckets, &job, revision).await;
            (job, gone)
        });
        let mut answers = stream::iter(deletes).buffer_unordered(AT_ONCE);
        let all = async {
            while let Some((job, gone)) = answers.next().await {
                if gone {
                    self.own.was_deleted(&job);
                }
            }
        };
        // What is not deleted now is deleted after the next watermark.
        let _ = timeout(2 * EVERY, all).await;
    }

    /// Removes the watermarks of those that have gone and that nobody needs any more (`is_walked`), and
    /// looks for cursors of jobs that nobody keeps.
    async fn clean_up(&mut self) -> Result<(), ReadError> {
        self.own.look(&self.buckets).await?;
        let live = self.buckets.entries(Bucket::Schedulers, "*").await?;
        let live: BTreeSet<Instance> =
            live.iter().filter_map(|entry| Instance::new(&entry.key).ok()).collect();
        let all = all(&self.buckets).await?;
        for gone in all.keys().filter(|instance| is_walked(instance, &live, &all)) {
            let key = format!("{PREFIX}{gone}");
            if let Err(error) = self.buckets.purge(Bucket::Cursors, &key).await {
                tracing::warn!(%error, key, "A departed scheduler's watermark is not removed.");
            }
        }
        Ok(())
    }
}

/// Whether `instance` has gone and nobody needs its watermark any more: every live scheduler has
/// walked it, and so had each that has gone meanwhile, or else the live ones have walked that one
/// since. Who died before had taken over nothing of it: its share is yet to be taken over from there.
fn is_walked(
    instance: &Instance,
    live: &BTreeSet<Instance>,
    all: &HashMap<Instance, Watermark>,
) -> bool {
    let has_walked = |one: &Instance, gone: &Instance| {
        all.get(one).is_some_and(|mark| mark.walked.contains(gone))
    };
    let live_have_walked = |gone: &Instance| {
        !live.is_empty() && !live.contains(gone) && live.iter().all(|one| has_walked(one, gone))
    };
    let mut others = all.keys().filter(|other| *other != instance && !live.contains(*other));
    live_have_walked(instance)
        && others.all(|other| has_walked(other, instance) || live_have_walked(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watermark_goes_when_every_live_scheduler_has_walked_it() {
        let name = |name: &str| Instance::new(name).unwrap();
        let mark = |walked: &[&str]| Watermark {
            v: 1,
            handled: DateTime::UNIX_EPOCH,
            walked: walked.iter().map(|w| name(w)).collect(),
        };
        let live: BTreeSet<_> = [name("a"), name("b")].into();
        let mut all: HashMap<_, _> =
            [(name("a"), mark(&["gone"])), (name("b"), mark(&[])), (name("gone"), mark(&[]))]
                .into();
        assert!(!is_walked(&name("gone"), &live, &all), "b has not");
        all.insert(name("b"), mark(&["gone", "older"]));
        assert!(is_walked(&name("gone"), &live, &all));
        assert!(!is_walked(&name("a"), &live, &all), "it lives");
        assert!(!is_walked(&name("gone"), &BTreeSet::new(), &all), "nobody lives");
        // One dies in its turn, and had taken over nothing from there.
        all.insert(name("c"), mark(&[]));
        assert!(!is_walked(&name("gone"), &live, &all), "its share has its place there");
        all.insert(name("c"), mark(&["gone"]));
        assert!(is_walked(&name("gone"), &live, &all));
        all.insert(name("c"), mark(&[]));
        for one in ["a", "b"] {
            assert!(!is_walked(&name("gone"), &live, &all), "{one} has not walked c");
            all.insert(name(one), mark(&["gone", "c"]));
        }
        assert!(is_walked(&name("gone"), &live, &all) && is_walked(&name("c"), &live, &all));
    }
}
