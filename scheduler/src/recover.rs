//! Where a scheduler starts: the watermarks of those before it, what was recorded since, and what
//! was left half done.
//!
//! *Invariants.* It starts at the earliest watermark, less a margin, and never before a job's own
//! past. Everything recorded since then is left alone; every lock without a record is completed.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use taskparty_common::fire::{FireId, Identity, Intent, Skipped};
use taskparty_common::name::JobId;
use taskparty_nats::clock::Clock;
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

/// The past, as a scheduler that starts finds it.
#[derive(Debug)]
pub(crate) struct Recovered {
    /// Everything up to here is handled.
    pub(crate) start: DateTime<Utc>,
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
    /// Reads the past.
    pub(crate) async fn read(buckets: &Buckets, clock: &Clock) -> Result<Self, ReadError> {
        let Some(watermark) = cursor::earliest(buckets).await? else {
            tracing::info!("No scheduler has been here before: nothing is caught up with.");
            return Ok(Self { start: clock.now(), held: Vec::new(), accounted: HashMap::new() });
        };
        let start = watermark - MARGIN;
        let mut accounted: HashMap<JobId, Accounted> = HashMap::new();
        let mut recorded = HashSet::new();
        let nats = buckets.nats();
        let names = nats.names();
        let fired = [names.fired_all()];
        history::read(nats.js(), &names.results_stream(), &fired, Start::Time(start), PATIENCE, |message| {
            for line in message.payload.split(|byte| *byte == b'\n') {
                let Ok(part) = serde_json::from_slice::<FiredPart>(line) else { continue };
                if let Some(FireId { job, identity: Identity::Instant(_) }) = FireId::from_lock_key(&part.lock) {
                    let first = part.skipped.map(|skipped| skipped.first);
                    accounted.entry(job).or_default().add(part.fire_time, first);
                }
                recorded.insert(part.lock);
            }
            ControlFlow::Continue(())
        })
        .await?;
        let held = half_done(buckets, start, &recorded).await?;
        for Held { id, intent, .. } in &held {
            if let Identity::Instant(_) = id.identity {
                let first = intent.skipped.as_ref().map(|skipped| skipped.first);
                accounted.entry(id.job.clone()).or_default().add(intent.fire_time, first);
            }
        }
        tracing::info!(%watermark, recorded = recorded.len(), half_done = held.len(), "The scheduler goes on where the last one was.");
        Ok(Self { start, held, accounted })
    }

    /// The instant up to which the instants of a job are handled.
    pub(crate) fn place_of(&self, definition: &Definition) -> DateTime<Utc> {
        let meta = &definition.job.meta;
        let resumed = meta.paused.as_ref().and_then(|paused| paused.until);
        let past = meta.since.max(resumed.unwrap_or(meta.since)) - TimeDelta::milliseconds(1);
        past.max(self.start - crate::engine::spread_of(&definition.job))
    }

    /// The instants of a job that are accounted for already; asked for once.
    pub(crate) fn take_accounted(&mut self, job: &JobId) -> Option<Accounted> {
        self.accounted.remove(job)
    }
}

/// The locks since `start` that no fired record belongs to.
async fn half_done(
    buckets: &Buckets,
    start: DateTime<Utc>,
    recorded: &HashSet<String>,
) -> Result<Vec<Held>, ReadError> {
    let nats = buckets.nats();
    let names = nats.names();
    let locks = [names.key(Bucket::Fires, ">")];
    let prefix = names.key(Bucket::Fires, "");
    let mut held = Vec::new();
    let stream = names.bucket_stream(Bucket::Fires);
    history::read(nats.js(), &stream, &locks, Start::Time(start), PATIENCE, |message| {
        let key = message.subject.strip_prefix(&prefix).unwrap_or_default();
        if message.is_marker() || recorded.contains(key) {
            return ControlFlow::Continue(());
        }
        match (FireId::from_lock_key(key), serde_json::from_slice::<Intent>(&message.payload)) {
            (Some(id), Ok(intent)) => held.push(Held { id, intent, stored_at: message.stored_at }),
            (_, intent) => {
                let error = intent.err().map(|error| error.to_string());
                tracing::error!(key, error, "A lock holds something that is no intent.");
            }
        }
        ControlFlow::Continue(())
    })
    .await?;
    Ok(held)
}
