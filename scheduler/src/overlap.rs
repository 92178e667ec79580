//! Places of jobs that may not overlap themselves, or have a rate: asked for, given, and given back.
//!
//! One entry a job in the overlap bucket, changed by compare-and-set on the leader's word; beside
//! it the intent of each run that waits, which has no TTL as its lock has. *Invariants.* Every step
//! is keyed by the run and can be made again. The entry knows of a waiting run before its intent is
//! stored, and the intent goes only after the run is dispatched: a crash leaves a lock or an intent
//! for each run that waits.
//!
//! A scheduler remembers the entries that it has seen. Where nothing at all is left of one, somebody
//! has deleted the bucket by hand, and it goes on from what it remembers: the run that goes on still
//! has its place.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, SecondsFormat, Utc};
use taskparty_common::fire::{FireId, Intent, Plan};
use taskparty_common::job::{JobSpec, MAX_RUNNING, Overlap};
use taskparty_common::name::JobId;
use taskparty_common::outcome::Trigger;
use taskparty_common::overlap::{Admission, Limits, Place, Places, WhenFull, Withdrawal};
use taskparty_common::rate::Rate;
use taskparty_nats::bucket::{BucketError, Buckets, Entry, Swap};
use taskparty_nats::clock::Clock;
use taskparty_nats::history::ReadError;
use taskparty_nats::subject::Bucket;
use uuid::Uuid;

/// The overlap bucket. Cheap to clone; clones share what they remember.
#[derive(Debug, Clone)]
pub(crate) struct Queues {
    buckets: Buckets,
    clock: Clock,
    /// Entries in which runs go on or wait, with their revisions, as a watch has last told them.
    seen: Arc<Mutex<HashMap<JobId, (u64, Places)>>>,
}

/// How many runs of a job may go on, and begin, whenever that is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// The places that there are.
    pub(crate) places: usize,
    pub(crate) rate: Option<Rate>,
}

impl Default for Bounds {
    /// Those of a job that may not overlap itself.
    fn default() -> Self {
        Self { places: 1, rate: None }
    }
}

impl Bounds {
    /// Those of a job; nothing when it has none, and takes no places.
    pub(crate) fn of(spec: &JobSpec) -> Option<Self> {
        Some(Self { places: spec.places()?, rate: spec.rate })
    }

    /// Those of a job that has none any more: what waits goes on.
    pub(crate) fn open() -> Self {
        Self { places: usize::try_from(MAX_RUNNING).unwrap_or(usize::MAX), rate: None }
    }

    /// The same, now.
    pub(crate) fn at(self, now_ms: i64) -> Limits {
        Limits { places: self.places, rate: self.rate, now_ms }
    }
}

/// What became of a run that asked for a place.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) admission: Admission,
    /// The runs that are to stop for it.
    pub(crate) replaced: Vec<Uuid>,
    /// When the job's rate lets the next run begin, if it waits for that.
    pub(crate) held_until: Option<DateTime<Utc>>,
    /// How many runs wait before it, if it waits.
    pub(crate) before: usize,
}

/// A run that waits, as it is stored.
#[derive(Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Waiter {
    /// The key of its lock.
    pub(crate) lock: String,
    /// What it is to do.
    pub(crate) intent: Intent,
    /// It has got its place, and its executors are chosen: the plan stays as it is.
    #[serde(default)]
    pub(crate) routed: bool,
}

/// A run that waits, as it was found.
#[derive(Debug)]
pub(crate) struct KeptWaiter {
    pub(crate) waiter: Waiter,
    /// The revision of its key.
    revision: u64,
    /// Since when it is so.
    pub(crate) stored_at: DateTime<Utc>,
}

/// What a change of an entry returns, and whether it changed anything.
type Step<T> = (T, Changed);

/// Whether an entry is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Changed {
    Yes,
    No,
}

impl From<bool> for Changed {
    fn from(changed: bool) -> Self {
        if changed { Changed::Yes } else { Changed::No }
    }
}

impl Queues {
    pub(crate) fn new(buckets: Buckets, clock: Clock) -> Self {
        Self { buckets, clock, seen: Arc::default() }
    }

    /// Takes in what a watch tells of an entry.
    pub(crate) fn remember(&self, job: &JobId, entry: &Entry, places: Option<&Places>) {
        let mut seen = self.seen();
        match places {
            Some(places) if places.is_busy() => {
                seen.insert(job.clone(), (entry.revision, places.clone()));
            }
            Some(_) => drop(seen.remove(job)),
            // Who deletes one key means it. An entry that has only vanished has no newer revision.
            None => {
                let newer = seen.get(job).is_some_and(|(revision, _)| entry.revision > *revision);
                if newer {
                    seen.remove(job);
                }
            }
        }
    }

    /// Stores what is remembered, where nothing is left of it; returns the runs that wait.
    pub(crate) async fn restore(&self) -> Result<Vec<Uuid>, BucketError> {
        let seen: Vec<(JobId, Places)> =
            self.seen().iter().map(|(job, (_, places))| (job.clone(), places.clone())).collect();
        let mut waiting = Vec::new();
        for (job, places) in seen {
            waiting.extend(places.due().chain(places.waiting.iter().copied()));
            if let Ok(value) = serde_json::to_vec(&places) {
                self.buckets.put_if(Bucket::Overlap, job.as_str(), 0, value, None).await?;
            }
        }
        Ok(waiting)
    }

    /// Where a run is; nothing when there is no entry of its job.
    pub(crate) async fn find(&self, job: &JobId, run: Uuid) -> Result<Option<Place>, BucketError> {
        self.change(job, |places| {
            ((*places != Places::default()).then(|| places.place_of(run)), Changed::No)
        })
        .await
    }

    /// Whether any run of a job goes on or waits.
    pub(crate) async fn is_busy(&self, job: &JobId) -> Result<bool, BucketError> {
        self.change(job, |places| (places.is_busy(), Changed::No)).await
    }

    /// Whether a further run of a job would begin at once.
    pub(crate) async fn has_free(&self, job: &JobId, bounds: Bounds) -> Result<bool, BucketError> {
        self.change(job, |places| {
            let room = places.active.len() < bounds.places && places.waiting.is_empty();
            let held = places.held_until(bounds.at(self.clock.now_ms())).is_some();
            (room && !held, Changed::No)
        })
        .await
    }

    /// Lets a run wait again that nobody knows of any more.
    pub(crate) async fn wait_again(&self, id: &FireId, intent: &Intent) -> Result<(), BucketError> {
        self.change(&intent.job, |places| ((), places.wait_again(intent.run).into())).await?;
        self.keep(id, intent).await
    }

    fn seen(&self) -> MutexGuard<'_, HashMap<JobId, (u64, Places)>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a place for `run`.
    pub(crate) async fn admit(
        &self,
        spec: &JobSpec,
        run: Uuid,
        trigger: Trigger,
    ) -> Result<Answer, BucketError> {
        let when_full = match (spec.overlap, trigger) {
            (Overlap::Skip, _) => WhenFull::Skip,
            // Catch-up and backfill are paced, and never dropped.
            (_, Trigger::Misfire | Trigger::Backfill) => WhenFull::Wait { limit: None },
            (Overlap::Replace, _) => WhenFull::Replace,
            _ => WhenFull::Wait { limit: Some(spec.queue_limit) },
        };
        let bounds = Bounds::of(spec).unwrap_or(Bounds::open());
        self.change(&spec.id, |places| {
            let limits = bounds.at(self.clock.now_ms());
            let lengths =
                |places: &Places| (places.active.len(), places.waiting.len(), places.leaving.len());
            let before = (lengths(places), places.starts.clone());
            let admission = places.admit(run, limits, when_full);
            places.beside = spec.overlap == Overlap::Allow;
            let held_until = places.held_until(limits).and_then(DateTime::from_timestamp_millis);
            let before_it = places.waiting.iter().position(|waiting| *waiting == run).unwrap_or(0);
            let replaced = match when_full {
                WhenFull::Replace => places.replaced_by(run),
                WhenFull::Wait { .. } | WhenFull::Skip => Vec::new(),
            };
            let changed = before.0 != lengths(places) || before.1 != places.starts;
            (Answer { admission, replaced, held_until, before: before_it }, changed.into())
        })
        .await
    }

    /// Asks for a place, inside `bounds`, for a run that is tried again for the `round`th time: it
    /// waits as long as it takes.
    pub(crate) async fn turn(
        &self,
        job: &JobId,
        run: Uuid,
        round: u32,
        bounds: Bounds,
    ) -> Result<Admission, BucketError> {
        self.change(job, |places| {
            let before = places.clone();
            let admission = places.turn(run, round, bounds.at(self.clock.now_ms()));
            (admission, (before != *places).into())
        })
        .await
    }

    /// Gives back the place of a run that has ended.
    pub(crate) async fn release(&self, job: &JobId, run: Uuid) -> Result<(), BucketError> {
        self.change(job, |places| {
            // Nothing is left of the entry: whoever remembers it is to find that.
            let known = *places != Places::default();
            ((), (known && places.release(run)).into())
        })
        .await
    }

    /// Takes a run that is not to go on out of those that wait.
    pub(crate) async fn withdraw(&self, job: &JobId, run: Uuid) -> Result<Withdrawal, BucketError> {
        self.change(job, |places| {
            let (withdrawal, changed) = places.withdraw(run);
            (withdrawal, changed.into())
        })
        .await
    }

    /// Gives free places, inside `bounds`, to runs that wait. Those that got one just now, and those
    /// that had got one and are not dispatched.
    pub(crate) async fn promote(
        &self,
        job: &JobId,
        bounds: Bounds,
    ) -> Result<(Vec<Uuid>, Vec<Uuid>), BucketError> {
        self.change(job, |places| {
            let left: Vec<Uuid> = places.due().collect();
            let changed = places.promote(bounds.at(self.clock.now_ms()));
            let new = places.due().filter(|run| !left.contains(run)).collect();
            ((new, left), changed.into())
        })
        .await
    }

    /// A run that has its place is dispatched only now: it counts from now, too.
    pub(crate) async fn count_again(&self, job: &JobId, bounds: Bounds) -> Result<(), BucketError> {
        self.change(job, |places| ((), places.count_again(bounds.at(self.clock.now_ms())).into()))
            .await
    }

    /// A run that waited is dispatched.
    pub(crate) async fn dispatched(&self, job: &JobId, run: Uuid) -> Result<(), BucketError> {
        self.change(job, |places| ((), places.dispatched(run).into())).await?;
        self.drop_intent(job, run).await
    }

    /// The runs that wait or are due.
    pub(crate) async fn waiting(&self, job: &JobId) -> Result<Vec<Uuid>, BucketError> {
        self.change(job, |places| {
            let runs = places.due().chain(places.waiting.iter().copied()).collect();
            (runs, Changed::No)
        })
        .await
    }

    /// Whether `run` waits for its turn, has got it after it waited, or has ended.
    pub(crate) async fn has_queued(&self, job: &JobId, run: Uuid) -> Result<bool, ReadError> {
        let entry = self.buckets.get_leader(Bucket::Overlap, job.as_str()).await?;
        let places = entry.and_then(|entry| entry.value).map(|value| read(job, &value));
        Ok(places.is_some_and(|places| places.has_queued(run)))
    }

    /// Keeps what a waiting run is to do; what is kept already stays.
    pub(crate) async fn keep(&self, id: &FireId, intent: &Intent) -> Result<(), BucketError> {
        let waiter = Waiter { lock: id.lock_key(), intent: intent.clone(), routed: false };
        let Ok(value) = serde_json::to_vec(&waiter) else { return Ok(()) };
        let key = waiter_key(&intent.job, intent.run);
        self.buckets.create(Bucket::Overlap, &key, value, None).await?;
        Ok(())
    }

    /// Keeps the plan that a run has got with its place, unless somebody else chose before: then it
    /// is his. Nothing when the run is dispatched meanwhile.
    pub(crate) async fn keep_plan(
        &self,
        kept: KeptWaiter,
        plan: Plan,
    ) -> Result<Option<KeptWaiter>, BucketError> {
        let KeptWaiter { mut waiter, revision, stored_at } = kept;
        waiter.intent.plan = plan;
        waiter.routed = true;
        let key = waiter_key(&waiter.intent.job, waiter.intent.run);
        let Ok(value) = serde_json::to_vec(&waiter) else { return Ok(None) };
        match self.buckets.put_if(Bucket::Overlap, &key, revision, value, None).await? {
            Swap::Done { revision } => Ok(Some(KeptWaiter { waiter, revision, stored_at })),
            Swap::Lost { current } => Ok(current.and_then(|entry| kept_of(&key, entry))),
        }
    }

    /// What a waiting run is to do.
    pub(crate) async fn kept(
        &self,
        job: &JobId,
        run: Uuid,
    ) -> Result<Option<KeptWaiter>, BucketError> {
        let key = waiter_key(job, run);
        let entry = self.buckets.get_leader(Bucket::Overlap, &key).await?;
        Ok(entry.and_then(|entry| kept_of(&key, entry)))
    }

    /// Removes what a run that waits no more was to do.
    pub(crate) async fn drop_intent(&self, job: &JobId, run: Uuid) -> Result<(), BucketError> {
        self.buckets.purge(Bucket::Overlap, &waiter_key(job, run)).await?;
        Ok(())
    }

    /// Changes the entry of `job`, again and again until nobody came between.
    async fn change<T>(
        &self,
        job: &JobId,
        step: impl Fn(&mut Places) -> Step<T>,
    ) -> Result<T, BucketError> {
        let mut entry = self.buckets.get_leader(Bucket::Overlap, job.as_str()).await?;
        loop {
            let revision = entry.as_ref().map_or(0, |entry| entry.revision);
            let mut places = match entry {
                Some(entry) => entry.value.map(|value| read(job, &value)).unwrap_or_default(),
                None => self.seen().get(job).map(|(_, seen)| seen.clone()).unwrap_or_default(),
            };
            let (result, changed) = step(&mut places);
            if changed == Changed::No {
                return Ok(result);
            }
            let Ok(value) = serde_json::to_vec(&places) else { return Ok(result) };
            let swap = self.buckets.put_if(Bucket::Overlap, job.as_str(), revision, value, None);
            match swap.await? {
                Swap::Done { .. } => return Ok(result),
                Swap::Lost { current } => entry = current,
            }
        }
    }
}

/// Why a run waits that its job's rate holds back, when the next may begin at `at` and so many wait
/// before it.
pub(crate) fn words_of_rate(rate: Rate, at: DateTime<Utc>, before: usize) -> String {
    let at = at.to_rfc3339_opts(SecondsFormat::Millis, true);
    match before {
        0 => format!("its rate, {rate}, allows it at {at}"),
        1 => format!("its rate, {rate}, allows the next run at {at}, and one waits before it"),
        _ => format!("its rate, {rate}, allows the next run at {at}, and {before} wait before it"),
    }
}

/// Reads an entry; one that cannot be read is as good as empty, and said so.
pub(crate) fn read(job: &JobId, value: &[u8]) -> Places {
    serde_json::from_slice(value).unwrap_or_else(|error| {
        tracing::error!(%job, %error, "The places of a job cannot be read; they are taken as free.");
        Places::default()
    })
}

fn kept_of(key: &str, entry: Entry) -> Option<KeptWaiter> {
    let Entry { revision, value, created: stored_at, .. } = entry;
    match serde_json::from_slice(&value?) {
        Ok(waiter) => Some(KeptWaiter { waiter, revision, stored_at }),
        Err(error) => {
            tracing::error!(key, %error, "What a waiting run is to do cannot be read.");
            None
        }
    }
}

fn waiter_key(job: &JobId, run: Uuid) -> String {
    format!("{job}.{run}")
}
