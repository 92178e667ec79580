//! What the audit is told: plain values, each read from one place and from nowhere else.
//!
//! What comes from history goes over the wire too (`doctor.audit`): receivers ignore what they do
//! not know, and fields may be added.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use taskparty_common::fire::{Plan, Skipped};
use taskparty_common::job::Job;
use taskparty_common::name::{Instance, JobId};
use taskparty_common::outcome::{Outcome, RunState, TriggerResult};
use uuid::Uuid;

/// A revision of a job, from the jobs bucket.
#[derive(Debug, Clone)]
pub struct Revision {
    /// The job.
    pub job: String,
    /// The bucket's sequence.
    pub revision: u64,
    /// When the server stored it.
    pub stored_at: DateTime<Utc>,
    /// What it says.
    pub what: RevisionKind,
}

/// What a revision says of its job.
#[derive(Debug, Clone)]
pub enum RevisionKind {
    /// The job is so from now on.
    Saved(Box<Job>),
    /// There is no such job any more.
    Deleted,
    /// Nobody can read it.
    Unreadable,
}

/// A lock, from the fires bucket.
#[derive(Debug, Clone)]
pub struct LockFact {
    /// Its key.
    pub key: String,
    /// The run that its holder was to make.
    pub run: Uuid,
    /// What was to be left out.
    pub skipped: Option<Skipped>,
    /// When the server stored it.
    pub stored_at: DateTime<Utc>,
}

/// A fired record, from RESULTS.
#[derive(Debug, Clone)]
pub struct FiredFact {
    /// The key of its lock.
    pub lock: String,
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// What became of the fire.
    pub result: TriggerResult,
    /// The nominal instant, or the trigger's.
    pub fire_time: DateTime<Utc>,
    /// The shards and the attempt.
    pub plan: Plan,
    /// What was left out.
    pub skipped: Option<Skipped>,
    /// It waits for its turn: another record of the same lock says what became of it.
    pub awaits_place: bool,
    /// What of its definition bounds its attempts; none when that cannot be read.
    pub limits: Option<Limits>,
    /// When the server stored it.
    pub stored_at: DateTime<Utc>,
}

/// What of a definition bounds the attempts of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Attempts after the first.
    pub retries: u32,
    /// How long one attempt may take; none: as long as it likes.
    pub timeout: Option<Duration>,
}

/// A handler's result, from RESULTS.
#[derive(Debug, Clone)]
pub struct ResultFact {
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// Which shard.
    pub shard: u32,
    /// Which attempt.
    pub attempt: u32,
    /// JetStream's delivery count.
    pub delivery: u64,
    /// The executor.
    pub instance: Instance,
    /// How it ended.
    pub outcome: Outcome,
    /// When it ended, by the executor's clock.
    pub finished_at: DateTime<Utc>,
    /// When the server stored it.
    pub stored_at: DateTime<Utc>,
}

/// A call of a handler, as its executor wrote it to a file of its own before anything else: one
/// line of `--starts`, `{"run", "shard", "attempt", "delivery", "instance", "at"}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartFact {
    /// The run.
    pub run: Uuid,
    /// Which shard.
    pub shard: u32,
    /// Which attempt.
    pub attempt: u32,
    /// JetStream's delivery count.
    pub delivery: u64,
    /// The executor.
    pub instance: Instance,
    /// When, by the executor's clock.
    pub at: DateTime<Utc>,
}

/// A message that is still in a dispatch stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WaitingFact {
    /// The run.
    pub run: Uuid,
    /// Which shard.
    pub shard: u32,
    /// Which attempt.
    pub attempt: u32,
}

/// A run, as SQL has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryRun {
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// Where it is.
    pub state: RunState,
    /// The key of its lock; absent until its fired record has come.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// What became of the fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<TriggerResult>,
    /// How many shards it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shards: Option<u32>,
    /// When it was dispatched, or was decided not to be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fired_at: Option<DateTime<Utc>>,
    /// Its attempts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tries: Vec<HistoryAttempt>,
}

/// An attempt, as SQL has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HistoryAttempt {
    /// Which shard.
    pub shard: u32,
    /// Which attempt.
    pub attempt: u32,
    /// Where it is.
    pub state: RunState,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The delivery that is at work, or that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<u64>,
    /// The executor of that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// For a retry: when it is triggered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due_at: Option<DateTime<Utc>>,
    /// When it was dispatched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<DateTime<Utc>>,
    /// Until when it may start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_by: Option<DateTime<Utc>>,
    /// When the handler was called.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_at: Option<DateTime<Utc>>,
    /// Its executor had gone: the next attempt is no retry.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
    /// Results that came after its end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub late: Vec<LateResult>,
    /// How many times the run had been retried by hand when it was made.
    #[serde(default)]
    pub round: u32,
}

/// A result that came after the end of its attempt, and changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LateResult {
    /// The executor.
    pub instance: Instance,
    /// JetStream's delivery count.
    pub delivery: u64,
    /// What it said.
    pub outcome: Outcome,
}

/// Which runs of history to give, by their instants, in the order of their ids.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskRuns {
    /// Inclusive.
    pub from: DateTime<Utc>,
    /// Exclusive.
    pub to: DateTime<Utc>,
    /// Only after this one: the `next` of the page before.
    #[serde(default)]
    pub after: Option<Uuid>,
}

/// A piece of history.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct HistoryPage {
    /// The runs.
    pub items: Vec<HistoryRun>,
    /// Where the next page begins; none: this is the last.
    #[serde(default)]
    pub next: Option<Uuid>,
}

/// What should not stay in SQL.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Leftovers {
    /// Messages that could not be taken in: the oldest 100 of them.
    pub set_aside: Vec<SetAsideFact>,
    /// How many there are.
    pub set_aside_total: u64,
    /// Ids of decisions that are not published: at most 1000.
    pub outbox: Vec<String>,
}

/// A message that the log writer could not take in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SetAsideFact {
    /// Its sequence in RESULTS.
    pub seq: u64,
    /// Its subject.
    pub subject: String,
    /// What is wrong with it.
    pub reason: String,
    /// When the server stored it.
    pub stored_at: DateTime<Utc>,
}

/// What is known of the installation itself.
#[derive(Debug, Clone, Copy, Default)]
pub struct Installation {
    /// Since when something fires: the first fired record that is kept, or the start of a live
    /// scheduler, whichever is earlier.
    pub began: Option<DateTime<Utc>>,
    /// When the oldest record in RESULTS was stored; what is older has left it.
    pub records_from: Option<DateTime<Utc>>,
    /// The earliest watermark.
    pub watermark: Option<DateTime<Utc>>,
}

/// A job that lags, and up to where it is handled.
#[derive(Debug, Clone, PartialEq)]
pub struct LaggingFact {
    /// The job.
    pub job: String,
    /// The start of the past that this is about.
    pub since: DateTime<Utc>,
    /// Every instant that was due up to here is handled.
    pub handled: DateTime<Utc>,
}

/// The instant in a run's id, in milliseconds: what puts it into a period.
pub(super) fn instant_of(run: Uuid) -> i64 {
    i64::try_from(run.as_u128() >> 80).unwrap_or(i64::MAX)
}
