//! A fire: one instant, or one trigger, at which a job is due; what is planned for it, and what
//! became of it.
//!
//! *Invariant: a fire's identity is never "now".* It is the job with a nominal instant, or with
//! the id of a trigger, and everything else (lock key, run id, subjects) is derived from it. So
//! whoever fires the same thing makes the same run, and a lock that has gone does not make two.

mod plan;
mod trigger;

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};
use uuid::Uuid;

pub use self::plan::Plan;
pub use self::trigger::{RetryOf, Scheduled, TriggerRequest};
use crate::name::{App, Handler, Instance, JobId, Prefix};
use crate::outcome::{SkipReason, Trigger, TriggerResult};

/// What is due, apart from the job.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Identity {
    /// A nominal instant, in milliseconds since 1970.
    Instant(i64),
    /// A trigger with this id: a key, a UUID, or `<run>.<shard>.<attempt>` for a retry.
    Trigger(String),
}

/// A job with what is due.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FireId {
    /// The job.
    pub job: JobId,
    /// Which of its fires.
    pub identity: Identity,
}

impl FireId {
    /// The fire of `job` at `nominal`.
    pub fn at(job: JobId, nominal: DateTime<Utc>) -> Self {
        Self { job, identity: Identity::Instant(nominal.timestamp_millis()) }
    }

    /// The fire of `job` for the trigger `id`.
    pub fn trigger(job: JobId, id: impl Into<String>) -> Self {
        Self { job, identity: Identity::Trigger(id.into()) }
    }

    /// The key of the lock, in the fires bucket: `<job>.t.<ms>` or `<job>.x.<id>`. The two kinds
    /// cannot meet, whatever key a user chooses.
    pub fn lock_key(&self) -> String {
        match &self.identity {
            Identity::Instant(ms) => format!("{}.t.{ms}", self.job),
            Identity::Trigger(id) => format!("{}.x.{id}", self.job),
        }
    }

    /// Reads a lock's key back.
    pub fn from_lock_key(key: &str) -> Option<Self> {
        let (job, rest) = key.split_once('.')?;
        let job = JobId::new(job).ok()?;
        let identity = match rest.split_once('.')? {
            ("t", ms) => Identity::Instant(ms.parse().ok()?),
            ("x", id) if !id.is_empty() => Identity::Trigger(id.into()),
            _ => return None,
        };
        Some(Self { job, identity })
    }

    /// The run that this fire makes: a UUIDv7 whose time is `at` (the nominal instant, or the
    /// trigger's), and whose other bits come from the installation, the job, the start of its
    /// present past (`since_ms`) and the identity.
    pub fn run(&self, prefix: &Prefix, since_ms: i64, at: DateTime<Utc>) -> Uuid {
        let mut hash = Sha256::new();
        for part in [prefix.as_str(), &since_ms.to_string(), &self.lock_key()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let digest = hash.finalize();
        let mut random = [0_u8; 10];
        random.copy_from_slice(&digest[..10]);
        let ms = u64::try_from(at.timestamp_millis()).unwrap_or(0);
        uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid()
    }
}

impl fmt::Display for FireId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.lock_key())
    }
}

/// What the id of a trigger ends with that follows on a success.
const THEN: &str = ".then";

/// The id of the trigger that retries a shard: no user's key can be equal to it.
pub fn retry_id(run: Uuid, shard: u32, attempt: u32) -> String {
    format!("{run}.{shard}.{attempt}")
}

/// The id of the trigger of a job that follows on a success of `run`.
pub fn then_id(run: Uuid) -> String {
    format!("{run}{THEN}")
}

/// The run on whose success the fire with this lock follows, if it does.
pub fn followed_by(lock: &str) -> Option<Uuid> {
    match FireId::from_lock_key(lock)?.identity {
        Identity::Trigger(id) => Uuid::parse_str(id.strip_suffix(THEN)?).ok(),
        Identity::Instant(_) => None,
    }
}

/// The id of the trigger that follows `run` of a fixed-delay job.
pub fn next_id(run: Uuid) -> String {
    format!("{run}.next")
}

/// Instants that were left out together, the last of which is the record's `fire_time`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Skipped {
    /// Why.
    pub reason: SkipReason,
    /// How many instants this record stands for; at least 1.
    pub count: u64,
    /// The first of them.
    pub first: DateTime<Utc>,
}

/// The value of a lock: the whole intent of the fire, so that any scheduler can complete it when
/// the one that took the lock has died.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Intent {
    /// The format: 1.
    pub v: u32,
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// The revision of the job that is fired.
    pub revision: u64,
    /// The start of the job's past, as its meta had it.
    pub since: DateTime<Utc>,
    /// The scheduler that took the lock.
    pub owner: Instance,
    /// Why the job is due.
    pub trigger: Trigger,
    /// The nominal instant, or the trigger's.
    pub fire_time: DateTime<Utc>,
    /// When the lock was asked for, by the owner's clock.
    pub planned_at: DateTime<Utc>,
    /// What to dispatch, and to whom; nothing when the fire is skipped.
    pub plan: Plan,
    /// The only executor that may run it, whatever the job's route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// Present when the fire is recorded and not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
    /// The job's spec, frozen: what this run, and each of its retries, goes by.
    pub definition: Box<RawValue>,
    /// Params of this run alone, instead of the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Box<RawValue>>,
}

/// The trigger's result, on `taskparty.fired.<app>`: why a run did or did not happen. It carries
/// all that a row of history needs.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Fired {
    /// The format: 1.
    pub v: u32,
    /// The key of the lock: the fire's identity.
    pub lock: String,
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// Its app.
    pub app: App,
    /// Its handler.
    pub handler: Handler,
    /// The job's revision.
    pub revision: u64,
    /// The start of the job's past, as its meta had it.
    pub since: DateTime<Utc>,
    /// The scheduler that took the lock.
    pub owner: Instance,
    /// Why the job was due.
    pub trigger: Trigger,
    /// What became of it.
    pub result: TriggerResult,
    /// A sentence for whoever asks why; empty for a plain dispatch.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The nominal instant, or the trigger's.
    pub fire_time: DateTime<Utc>,
    /// When the dispatch was made, or the decision not to.
    pub fired_at: DateTime<Utc>,
    /// Until when a first delivery may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_by: Option<DateTime<Utc>>,
    /// The shards and the attempt.
    pub plan: Plan,
    /// Present when the fire is recorded and not run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skipped: Option<Skipped>,
    /// The job's spec, frozen.
    pub definition: Box<RawValue>,
    /// Params of this run alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Box<RawValue>>,
}

impl Fired {
    /// Whether the run waits for its turn: there will be another record when it is dispatched.
    pub fn awaits_place(&self) -> bool {
        self.result == TriggerResult::Queued && self.start_by.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str) -> JobId {
        JobId::new(id).unwrap()
    }

    fn at(ms: i64) -> DateTime<Utc> {
        DateTime::from_timestamp_millis(ms).unwrap()
    }

    #[test]
    fn a_user_key_cannot_take_the_lock_of_a_cron_fire() {
        let fire = FireId::at(job("a"), at(1_000));
        let trigger = FireId::trigger(job("a"), "1000");
        assert_ne!(fire.lock_key(), trigger.lock_key());
        for id in [fire, trigger, FireId::trigger(job("a-b"), "r.0.2")] {
            assert_eq!(FireId::from_lock_key(&id.lock_key()), Some(id));
        }
        for bad in ["", "a", "a.t", "a.t.x", "a.x.", "a.y.1", "*.t.1"] {
            assert_eq!(FireId::from_lock_key(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_follows_says_what_it_follows() {
        let run = Uuid::from_u128(7);
        let lock = FireId::trigger(job("a"), then_id(run)).lock_key();
        assert_eq!(followed_by(&lock), Some(run));
        let others = [FireId::trigger(job("a"), next_id(run)), FireId::trigger(job("a"), "then")];
        assert!(others.iter().all(|other| followed_by(&other.lock_key()).is_none()));
    }

    #[test]
    fn the_same_fire_makes_the_same_run_and_another_one_another() {
        let prefix = Prefix::default();
        let fire = FireId::at(job("a"), at(1_700_000_000_000));
        let run = fire.run(&prefix, 7, at(1_700_000_000_000));
        assert_eq!(run, fire.run(&prefix, 7, at(1_700_000_000_000)));
        assert_eq!(run.get_version_num(), 7);
        let (seconds, _) = run.get_timestamp().unwrap().to_unix();
        assert_eq!(seconds, 1_700_000_000);
        assert_ne!(run, fire.run(&prefix, 8, at(1_700_000_000_000)));
        assert_ne!(
            run,
            FireId::at(job("b"), at(1_700_000_000_000)).run(&prefix, 7, at(1_700_000_000_000))
        );
    }
}
