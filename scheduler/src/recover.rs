//! Where a scheduler takes over: the watermarks of all, the cursors of jobs that lag, what was
//! recorded since, and what was left half done.
//!
//! *Invariants.* It starts at the earliest watermark, less a margin, and never before a job's own
//! past; of a job that lags at the job's own cursor, and if nobody can read that, as far back as it may
//! be. Everything recorded since then is left alone;
//! every lock without a record is completed.
//!
//! The past of those that lag may be long: it is read apart, so that nobody else waits for it.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use taskparty_common::fire::{FireId, Identity, Intent, Skipped};
use taskparty_common::job::Job;
use taskparty_common::name::{Instance, JobId};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::history::{self, ReadError, Start};
use taskparty_nats::subject::Bucket;

use crate::cursor::{self, Cursor};
use crate::engine::{Accounted, OLDEST};
use crate::fire::Held;
use crate::kept::Kept;

/// Clocks may differ, and a job may be saved a moment before anyone sees it.
const MARGIN: TimeDelta = TimeDelta::seconds(30);

/// How long reading the past may take for which all wait.
const PATIENCE: Duration = Duration::from_secs(300);

/// The jobs that are to be taken over, in the order of their ids.
#[derive(Debug)]
pub(crate) struct ToTakeOver(pub(crate) Vec<Arc<Kept>>);

impl ToTakeOver {
    /// The start of the past of `job`, if it is one of them.
    fn since(&self, job: &JobId) -> Option<DateTime<Utc>> {
        let found = self.0.binary_search_by(|kept| kept.id().cmp(job)).ok()?;
        self.0.get(found).map(|kept| kept.since())
    }
}

/// Where some jobs are, as whoever takes them over finds it.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Everything up to here is handled, but of those that lag.
    pub(crate) start: DateTime<Utc>,
    /// The schedulers whose watermarks were looked at.
    pub(crate) seen: BTreeSet<Instance>,
    /// The jobs that lag, of those that are wanted. Their past is not read.
    pub(crate) lagging: HashMap<JobId, Cursor>,
    /// The past of the others.
    pub(crate) past: Past,
}

/// What was recorded of some jobs since some time, and what was left half done.
#[derive(Debug, Default)]
pub(crate) struct Past {
    /// Fires that were locked and not recorded.
    pub(crate) held: Vec<Held>,
    accounted: HashMap<JobId, Accounted>,
}

/// The part of a fired record that says what it accounts for.
#[derive(Deserialize)]
struct FiredPart {
    lock: String,
    fire_time: DateTime<Utc>,
    #[serde(default)]
    skipped: Option<Skipped>,
}

impl Recovered {
    /// Reads where the jobs that are `wanted` are, and the past of those that do not lag; where there is
    /// no watermark at all, it begins at `now`.
    pub(crate) async fn read(
        buckets: &Buckets,
        now: DateTime<Utc>,
        wanted: &ToTakeOver,
    ) -> Result<Self, ReadError> {
        let marks = cursor::all(buckets).await?;
        let Some(start) = marks.values().map(|mark| mark.handled).min() else {
            tracing::info!("No scheduler has been here before: nothing is caught up with.");
            return Ok(Self {
                start: now,
                seen: BTreeSet::new(),
                lagging: HashMap::new(),
                past: Past::default(),
            });
        };
        // In this order: a cursor is stored before a watermark passes the job. What has caught up in
        // between is handled until just now, and so inside the margin.
        let all = cursor::of_jobs(buckets).await?.into_iter();
        let of_wanted = |(job, found)| {
            let cursor = cursor_of_past(found, wanted.since(&job)?, now)?;
            Some((job, cursor))
        };
        let lagging: HashMap<JobId, Cursor> = all.filter_map(of_wanted).collect();
        let others = |job: &JobId| wanted.since(job).is_some() && !lagging.contains_key(job);
        let past = Past::read(buckets, start, PATIENCE, others).await?;
        Ok(Self { start, seen: marks.into_keys().collect(), lagging, past })
    }
}

impl Past {
    /// Reads the past of the jobs that are `wanted`, which are handled up to `handled`; each of its two
    /// parts within `patience`.
    pub(crate) async fn read(
        buckets: &Buckets,
        handled: DateTime<Utc>,
        patience: Duration,
        wanted: impl Fn(&JobId) -> bool,
    ) -> Result<Self, ReadError> {
        let (recorded, past) = (HashSet::new(), Self::default());
        let mut reading = Reading { wanted, patience, recorded, past };
        reading.records(buckets, handled - MARGIN).await?;
        reading.locks(buckets, handled - MARGIN).await?;
        let Reading { recorded, past, .. } = reading;
        tracing::info!(%handled, recorded = recorded.len(), half_done = past.held.len(), "The past of jobs to take over is read.");
        Ok(past)
    }

    /// The instants of a job that are accounted for already; asked for once.
    pub(crate) fn take_accounted(&mut self, job: &JobId) -> Option<Accounted> {
        self.accounted.remove(job)
    }
}

/// The cursor that was `found` of a job whose past begins at `since`; nothing when it is of another
/// past. One that cannot be read is as far back as anything still fires: what was recorded is kept for
/// longer.
pub(crate) fn cursor_of_past(
    found: Option<Cursor>,
    since: DateTime<Utc>,
    now: DateTime<Utc>,
) -> Option<Cursor> {
    let cursor = found.unwrap_or_else(|| {
        let handled = since.max(now - OLDEST) - TimeDelta::milliseconds(1);
        Cursor { since, handled_ms: handled.timestamp_millis() }
    });
    (cursor.since == since).then_some(cursor)
}

/// The instant up to which the instants of a job are handled, when a watermark or the job's cursor
/// says so of all due instants up to `handled`.
pub(crate) fn place(job: &Job, handled: DateTime<Utc>) -> DateTime<Utc> {
    let meta = &job.meta;
    let resumed = meta.paused.as_ref().and_then(|paused| paused.until);
    let past = meta.since.max(resumed.unwrap_or(meta.since)) - TimeDelta::nanoseconds(1);
    past.max(handled - MARGIN - crate::engine::spread_of(job))
}

/// What is gathered of the past of the jobs that are wanted.
struct Reading<W> {
    wanted: W,
    patience: Duration,
    recorded: HashSet<String>,
    past: Past,
}

impl<W: Fn(&JobId) -> bool> Reading<W> {
    /// The fired records since `start`.
    async fn records(&mut self, buckets: &Buckets, start: DateTime<Utc>) -> Result<(), ReadError> {
        let names = buckets.nats().names();
        let (stream, subjects) = (names.results_stream(), [names.fired_all()]);
        let patience = self.patience;
        let visit = |message: history::Record| {
            let lines = message.payload.split(|byte| *byte == b'\n');
            let parts = lines.filter_map(|line| serde_json::from_slice::<FiredPart>(line).ok());
            parts.for_each(|part| self.record(part));
            ControlFlow::Continue(())
        };
        let js = buckets.nats().js();
        history::read(js, &stream, &subjects, Start::Time(start), patience, visit).await
    }

    fn record(&mut self, part: FiredPart) {
        let Some(id) = FireId::from_lock_key(&part.lock) else { return };
        if !(self.wanted)(&id.job) {
            return;
        }
        if let Identity::Instant(_) = id.identity {
            let first = part.skipped.map(|skipped| skipped.first);
            self.past.accounted.entry(id.job).or_default().add(part.fire_time, first);
        }
        self.recorded.insert(part.lock);
    }

    /// The locks since `start` that no fired record belongs to.
    async fn locks(&mut self, buckets: &Buckets, start: DateTime<Utc>) -> Result<(), ReadError> {
        let names = buckets.nats().names();
        let (stream, prefix) = (names.bucket_stream(Bucket::Fires), names.key(Bucket::Fires, ""));
        let subjects = [names.key(Bucket::Fires, ">")];
        let patience = self.patience;
        let visit = |message: history::Record| {
            let key = message.subject.strip_prefix(&prefix).unwrap_or_default();
            if !message.is_marker() && !self.recorded.contains(key) {
                self.lock(key, &message);
            }
            ControlFlow::Continue(())
        };
        let js = buckets.nats().js();
        history::read(js, &stream, &subjects, Start::Time(start), patience, visit).await
    }

    fn lock(&mut self, key: &str, message: &history::Record) {
        let Some(id) = FireId::from_lock_key(key) else {
            tracing::error!(key, "The fires bucket holds a key that is no lock.");
            return;
        };
        if !(self.wanted)(&id.job) {
            return;
        }
        match serde_json::from_slice::<Intent>(&message.payload) {
            Ok(intent) => {
                if let Identity::Instant(_) = id.identity {
                    let first = intent.skipped.as_ref().map(|skipped| skipped.first);
                    self.past
                        .accounted
                        .entry(id.job.clone())
                        .or_default()
                        .add(intent.fire_time, first);
                }
                self.past.held.push(Held { id, intent, stored_at: message.stored_at });
            }
            Err(error) => tracing::error!(key, %error, "A lock holds something that is no intent."),
        }
    }
}
