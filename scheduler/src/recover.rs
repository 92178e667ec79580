//! Where a scheduler takes over: the watermarks of all, what was recorded since, and what was left
//! half done.
//!
//! *Invariants.* It starts at the earliest watermark, less a margin, and never before a job's own
//! past. Everything recorded since then is left alone; every lock without a record is completed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use taskparty_common::fire::{FireId, Identity, Intent, Skipped};
use taskparty_common::name::{Instance, JobId};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::history::{self, ReadError, Start};
use taskparty_nats::subject::Bucket;

use crate::cursor;
use crate::definition::Definition;
use crate::engine::Accounted;
use crate::fire::Held;

/// Clocks may differ, and a job may be saved a moment before anyone sees it.
const MARGIN: TimeDelta = TimeDelta::seconds(30);

/// How long reading the past may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// The past of some jobs, as whoever takes them over finds it.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Everything up to here is handled.
    pub(crate) start: DateTime<Utc>,
    /// The schedulers whose watermarks were looked at.
    pub(crate) seen: BTreeSet<Instance>,
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
    /// Reads the past of the jobs that are `wanted`; where there is no watermark at all, it begins
    /// at `now`.
    pub(crate) async fn read(
        buckets: &Buckets,
        now: DateTime<Utc>,
        wanted: impl Fn(&JobId) -> bool,
    ) -> Result<Self, ReadError> {
        let marks = cursor::all(buckets).await?;
        let Some(watermark) = marks.values().map(|mark| mark.handled).min() else {
            tracing::info!("No scheduler has been here before: nothing is caught up with.");
            return Ok(Self {
                start: now,
                seen: BTreeSet::new(),
                held: Vec::new(),
                accounted: HashMap::new(),
            });
        };
        let mut reading = Reading {
            wanted,
            recorded: HashSet::new(),
            held: Vec::new(),
            accounted: HashMap::new(),
        };
        reading.records(buckets, watermark - MARGIN).await?;
        reading.locks(buckets, watermark - MARGIN).await?;
        tracing::info!(%watermark, recorded = reading.recorded.len(), half_done = reading.held.len(), "The past of the jobs to take over is read.");
        Ok(Self {
            start: watermark,
            seen: marks.into_keys().collect(),
            held: reading.held,
            accounted: reading.accounted,
        })
    }

    /// The instant up to which the instants of a job are handled.
    pub(crate) fn place_of(&self, definition: &Definition) -> DateTime<Utc> {
        place(definition, self.start)
    }

    /// The instants of a job that are accounted for already; asked for once.
    pub(crate) fn take_accounted(&mut self, job: &JobId) -> Option<Accounted> {
        self.accounted.remove(job)
    }
}

/// The instant up to which the instants of a job are handled, when a watermark says so of all due
/// instants up to `watermark`.
pub(crate) fn place(definition: &Definition, watermark: DateTime<Utc>) -> DateTime<Utc> {
    let meta = &definition.job.meta;
    let resumed = meta.paused.as_ref().and_then(|paused| paused.until);
    let past = meta.since.max(resumed.unwrap_or(meta.since)) - TimeDelta::nanoseconds(1);
    past.max(watermark - MARGIN - crate::engine::spread_of(&definition.job))
}

/// What is gathered of the past of the jobs that are wanted.
struct Reading<W> {
    wanted: W,
    recorded: HashSet<String>,
    held: Vec<Held>,
    accounted: HashMap<JobId, Accounted>,
}

impl<W: Fn(&JobId) -> bool> Reading<W> {
    /// The fired records since `start`.
    async fn records(&mut self, buckets: &Buckets, start: DateTime<Utc>) -> Result<(), ReadError> {
        let names = buckets.nats().names();
        let (stream, subjects) = (names.results_stream(), [names.fired_all()]);
        let visit = |message: history::Record| {
            let lines = message.payload.split(|byte| *byte == b'\n');
            let parts = lines.filter_map(|line| serde_json::from_slice::<FiredPart>(line).ok());
            parts.for_each(|part| self.record(part));
            ControlFlow::Continue(())
        };
        history::read(buckets.nats().js(), &stream, &subjects, Start::Time(start), PATIENCE, visit)
            .await
    }

    fn record(&mut self, part: FiredPart) {
        let Some(id) = FireId::from_lock_key(&part.lock) else { return };
        if !(self.wanted)(&id.job) {
            return;
        }
        if let Identity::Instant(_) = id.identity {
            let first = part.skipped.map(|skipped| skipped.first);
            self.accounted.entry(id.job).or_default().add(part.fire_time, first);
        }
        self.recorded.insert(part.lock);
    }

    /// The locks since `start` that no fired record belongs to.
    async fn locks(&mut self, buckets: &Buckets, start: DateTime<Utc>) -> Result<(), ReadError> {
        let names = buckets.nats().names();
        let (stream, prefix) = (names.bucket_stream(Bucket::Fires), names.key(Bucket::Fires, ""));
        let subjects = [names.key(Bucket::Fires, ">")];
        let visit = |message: history::Record| {
            let key = message.subject.strip_prefix(&prefix).unwrap_or_default();
            if !message.is_marker() && !self.recorded.contains(key) {
                self.lock(key, &message);
            }
            ControlFlow::Continue(())
        };
        history::read(buckets.nats().js(), &stream, &subjects, Start::Time(start), PATIENCE, visit)
            .await
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
                    self.accounted.entry(id.job.clone()).or_default().add(intent.fire_time, first);
                }
                self.held.push(Held { id, intent, stored_at: message.stored_at });
            }
            Err(error) => tracing::error!(key, %error, "A lock holds something that is no intent."),
        }
    }
}
