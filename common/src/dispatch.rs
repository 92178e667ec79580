//! The wire between schedulers and executors (contract, section 8), in any language.
//!
//! Wire types are lenient: unknown fields are ignored, so that an older receiver understands a
//! newer sender.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use crate::name::{App, Handler, Instance, JobId};
use crate::outcome::{Code, Outcome, Trigger};
use crate::priority::Priority;

/// The longest `message` of a result, in bytes.
pub const MAX_MESSAGE: usize = 8 * 1024;

/// The longest `output` of a result, in bytes of JSON.
pub const MAX_OUTPUT: usize = 64 * 1024;

/// One piece of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Shard {
    /// From 0.
    pub index: u32,
    /// How many there are; at least 1.
    pub total: u32,
    /// This shard's own item of `shard_params`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub param: Option<Box<RawValue>>,
}

/// The work: one attempt of one shard.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Dispatch {
    /// The format: 1.
    pub v: u32,
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// The app that runs it.
    pub app: App,
    /// The handler that runs it.
    pub handler: Handler,
    /// What the handler gets; JSON `null` when the job has none.
    pub params: Box<RawValue>,
    /// Which piece.
    pub shard: Shard,
    /// The attempt, from 1.
    pub attempt: u32,
    /// Why the job is due.
    pub trigger: Trigger,
    /// The nominal instant.
    pub fire_time: DateTime<Utc>,
    /// The zone of the job's schedule, an IANA name.
    pub timezone: String,
    /// When this was put in the stream.
    pub dispatched_at: DateTime<Utc>,
    /// A first delivery after this does not start.
    pub start_by: DateTime<Utc>,
    /// How long the handler may take, in milliseconds; `null`: as long as it likes.
    pub timeout_ms: Option<u64>,
    /// The lease, in milliseconds: extend it at a third of this.
    pub lease_ms: u64,
    /// A delivery above this is not started: the attempt is `lost`.
    pub max_deliveries: u64,
    /// `<run>/<shard>`, the same on every attempt and delivery.
    pub idempotency_key: String,
}

/// A handler is at work, and has been for more than 100 ms.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Started {
    /// The format: 1.
    pub v: u32,
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// The shard's index.
    pub shard: u32,
    /// The attempt.
    pub attempt: u32,
    /// JetStream's delivery count.
    pub delivery: u64,
    /// The executor.
    pub instance: Instance,
    /// When the handler was called.
    pub started_at: DateTime<Utc>,
}

/// How an attempt of a shard ended. The first one of an attempt wins.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The format: 1.
    pub v: u32,
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// Which piece.
    pub shard: Shard,
    /// The attempt.
    pub attempt: u32,
    /// JetStream's delivery count: the fence between two holders of one lease.
    pub delivery: u64,
    /// The executor.
    pub instance: Instance,
    /// How it ended.
    pub outcome: Outcome,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// What the handler said of it; at most [`MAX_MESSAGE`] bytes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What the handler returned; at most [`MAX_OUTPUT`] bytes of JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// Message or output were longer than that and were cut; cut output is a JSON string.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub truncated: bool,
    /// Whether another attempt makes sense.
    #[serde(default = "yes")]
    pub retryable: bool,
    /// The nominal instant.
    pub fire_time: DateTime<Utc>,
    /// When the handler was called; absent when it never was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: DateTime<Utc>,
}

fn yes() -> bool {
    true
}

/// How far a handler is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Progress {
    /// The run.
    pub run: Uuid,
    /// The shard's index.
    pub shard: u32,
    /// The attempt.
    pub attempt: u32,
    /// How much is done, in the handler's own unit.
    pub done: u64,
    /// How much there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// A word for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A request to stop a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Cancel {
    /// The run.
    pub run: Uuid,
    /// The only shard to stop; else all.
    #[serde(default)]
    pub shard: Option<u32>,
    /// Who asked.
    #[serde(default)]
    pub by: String,
}

/// A live executor, in the executors bucket at `<app>.<instance>`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ExecutorEntry {
    /// The format: 1.
    pub v: u32,
    /// The app.
    pub app: App,
    /// The process.
    pub instance: Instance,
    /// What it can run.
    pub handlers: BTreeMap<Handler, HandlerEntry>,
    /// The service's own version.
    #[serde(default)]
    pub version: String,
    /// The machine.
    #[serde(default)]
    pub host: String,
    /// The process id.
    #[serde(default)]
    pub pid: u32,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// It takes no new work.
    #[serde(default)]
    pub draining: bool,
}

/// One handler of a live executor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HandlerEntry {
    /// How many runs at once.
    pub slots: u32,
    /// The jobs that it runs now, once for each run.
    #[serde(default)]
    pub running: Vec<JobId>,
    /// The priorities, besides the default, whose work it looks for now, before or after the rest;
    /// empty when it was not told of any. Nothing: it knows no priorities and never looks for any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priorities: Option<Vec<Priority>>,
}

/// Said to an executor on its probe subject, without waiting for an answer: work of a handler has these
/// priorities, too, and stands in lines of their own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Priorities {
    /// The handler.
    pub handler: Handler,
    /// Some of those that are in use, besides the default.
    pub priorities: Vec<Priority>,
}

/// A live scheduler, in the schedulers bucket at its instance id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SchedulerEntry {
    /// The format: 1.
    pub v: u32,
    /// The process.
    pub instance: Instance,
    /// The revision of the jobs bucket that it goes by.
    pub jobs_revision: u64,
    /// How many jobs it fires.
    pub jobs: u64,
    /// How late its fires of the last minute were; nothing when there were none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Lateness>,
    /// The machine.
    pub host: String,
    /// The process id.
    pub pid: u32,
    /// TaskParty's version.
    pub version: String,
    /// When it started.
    pub started_at: DateTime<Utc>,
    /// When this was sent, by the scheduler's own clock: beside the time at which the server
    /// stored it, it tells how far the two clocks are apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<DateTime<Utc>>,
}

/// How late fires were dispatched, in milliseconds after they were due.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// How many fires.
    pub fires: u64,
    /// Half of them were no later than this.
    pub p50_ms: u64,
    /// 99 of 100 were no later than this.
    pub p99_ms: u64,
    /// The latest.
    pub max_ms: u64,
}

/// An alert, on `taskparty.alert.<job>`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Alert {
    /// The format: 1.
    pub v: u32,
    /// The alert's id: the same alert sent twice has the same.
    pub id: String,
    /// What happened: `failed`.
    pub kind: String,
    /// The job; absent when the alert is about none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<JobId>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Uuid>,
    /// The run's final state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<crate::outcome::RunState>,
    /// What exactly went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// A sentence for people.
    pub message: String,
    /// How many attempts were made.
    #[serde(default)]
    pub attempts: u32,
    /// The nominal instant of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fire_time: Option<DateTime<Utc>>,
    /// When it was decided.
    pub at: DateTime<Utc>,
}
