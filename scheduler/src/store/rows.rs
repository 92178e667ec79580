//! What readers of history get: rows for the command line and the API.
//!
//! Instants are RFC 3339 in UTC in JSON; fields may be added later.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use sqlx::sqlite::SqliteRow;
use taskparty_common::name::{App, Handler, Instance, JobId};
use taskparty_common::outcome::{Code, Outcome, RunState, SkipReason, Trigger, TriggerResult};
use uuid::Uuid;

use super::read::Columns;
use super::{Attempt, Note, ProgressPart, Run, StoreError};

/// Which runs to list, newest first. The default: all of them.
#[derive(Debug, Clone, Default)]
pub struct RunFilter {
    /// Only this job's.
    pub job: Option<JobId>,
    /// Only this app's.
    pub app: Option<App>,
    /// Only in one of these states; empty: in any.
    pub states: Vec<RunState>,
    /// Only with this trigger.
    pub trigger: Option<Trigger>,
    /// Only with a fire time from this on.
    pub since: Option<DateTime<Utc>>,
    /// Only with a fire time before this.
    pub until: Option<DateTime<Utc>>,
    /// Only after this one: the `next` of the page before.
    pub after: Option<Uuid>,
    /// The most rows of a page, 1 to 1000; nothing: 50.
    pub limit: Option<u32>,
}

/// A piece of a list.
#[derive(Debug, Clone, Serialize)]
pub struct Page<T> {
    /// The rows.
    pub items: Vec<T>,
    /// Where the next page begins; none: this is the last.
    pub next: Option<String>,
}

/// A run in a list.
#[derive(Debug, Clone, Serialize)]
pub struct RunRow {
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// The job's app.
    pub app: App,
    /// Where the run is.
    pub state: RunState,
    /// The handler; absent until the fired record has come, as all up to `start_by`. While a
    /// delayed trigger waits, handler, trigger and fire time are known.
    pub handler: Option<Handler>,
    /// The job's revision.
    pub revision: Option<u64>,
    /// The scheduler that fired it.
    pub owner: Option<Instance>,
    /// Why the job was due.
    pub trigger: Option<Trigger>,
    /// What became of the trigger.
    pub trigger_result: Option<TriggerResult>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub trigger_message: String,
    /// Why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_reason: Option<SkipReason>,
    /// How many instants a skipped record stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_count: Option<u64>,
    /// The first of those.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skip_first: Option<DateTime<Utc>>,
    /// The nominal instant, or the trigger's.
    pub fire_time: Option<DateTime<Utc>>,
    /// When it was dispatched, or was decided not to be.
    pub fired_at: Option<DateTime<Utc>>,
    /// Until when it may start.
    pub start_by: Option<DateTime<Utc>>,
    /// How many shards it has.
    pub shards: Option<u32>,
    /// How many attempts are known, of all shards together.
    pub attempts: u32,
    /// When the first handler began.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// What went wrong in the shard that decided it.
    pub code: Option<Code>,
    /// When somebody asked for it to stop. While it has not ended it goes on being asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// Who asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel_requested_by: Option<String>,
    /// How many times somebody has retried it by hand.
    #[serde(skip_serializing_if = "is_zero")]
    pub round: u32,
}

fn is_zero(round: &u32) -> bool {
    *round == 0
}

/// An attempt of a run.
#[derive(Debug, Clone, Serialize)]
pub struct AttemptRow {
    /// Which shard.
    pub shard: u32,
    /// Which attempt, from 1.
    pub attempt: u32,
    /// Where it is.
    pub state: RunState,
    /// How it ended.
    pub outcome: Option<Outcome>,
    /// What went wrong.
    pub code: Option<Code>,
    /// What the handler, or the system, said of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// What the handler returned.
    pub output: Option<Box<RawValue>>,
    /// Message or output were cut.
    pub truncated: bool,
    /// Whether another attempt may follow.
    pub retryable: bool,
    /// The executor.
    pub instance: Option<Instance>,
    /// The executor that it was for; absent: whoever took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target: Option<Instance>,
    /// That executor had gone, and the next attempt, which is no retry, is another's.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub moved: bool,
    /// JetStream's delivery count.
    pub delivery: Option<u64>,
    /// For a retry: when it is triggered.
    pub due_at: Option<DateTime<Utc>>,
    /// When it was put in the stream.
    pub dispatched_at: Option<DateTime<Utc>>,
    /// Until when it may start.
    pub start_by: Option<DateTime<Utc>>,
    /// When the handler was called.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How far the handler said it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub progress: Option<ProgressPart>,
    /// Results that came too late and changed nothing.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<Note>,
    /// How many times the run had been retried by hand when it was made.
    #[serde(skip_serializing_if = "is_zero")]
    pub round: u32,
}

/// An alert.
#[derive(Debug, Clone, Serialize)]
pub struct AlertRow {
    /// Its id.
    pub id: String,
    /// What happened: `failed`, `paused`, `set_aside`.
    pub kind: String,
    /// The job; absent when it is about none.
    pub job: Option<JobId>,
    /// The run.
    pub run: Option<Uuid>,
    /// The run's final state.
    pub state: Option<RunState>,
    /// What exactly went wrong.
    pub code: Option<Code>,
    /// A sentence for people.
    pub message: String,
    /// How many attempts were made.
    pub attempts: u32,
    /// The nominal instant of the run.
    pub fire_time: Option<DateTime<Utc>>,
    /// When it was decided.
    pub at: DateTime<Utc>,
}

/// A decision about a run that is not published yet.
#[derive(Debug, Clone, Serialize)]
pub struct PendingRow {
    /// Its id.
    pub id: String,
    /// `retry`, `next` or `alert`.
    pub kind: String,
    /// For a trigger: when.
    pub due_at: Option<DateTime<Utc>>,
    /// How many times publishing it has failed.
    pub tries: u32,
}

/// A run with everything that is known of it.
#[derive(Debug, Clone, Serialize)]
pub struct RunDetail {
    /// The run.
    #[serde(flatten)]
    pub run: RunRow,
    /// The key of its lock in the fires bucket.
    pub lock: Option<String>,
    /// Params of this run alone, instead of the job's.
    pub params: Option<Box<RawValue>>,
    /// The spec that the run was made with.
    pub definition: Option<Box<RawValue>>,
    /// By shard and attempt. (`attempts` of the list is their number.)
    #[serde(rename = "tries")]
    pub attempt_rows: Vec<AttemptRow>,
    /// Its alerts.
    pub alerts: Vec<AlertRow>,
    /// What is decided and not published yet.
    pub pending: Vec<PendingRow>,
    /// What it waits for now, in a sentence, where it waits for its turn. History does not know it:
    /// who answers adds it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<String>,
}

impl RunRow {
    pub(super) fn of(run: &Run, attempts: u32) -> Self {
        let fired = run.fired.as_ref();
        let skipped = fired.and_then(|fired| fired.skipped.as_ref());
        Self {
            run: run.id,
            job: run.job.clone(),
            app: run.app.clone(),
            state: run.state,
            handler: run.handler().cloned(),
            revision: fired.map(|fired| fired.revision),
            owner: fired.map(|fired| fired.owner.clone()),
            trigger: run.trigger(),
            trigger_result: fired.map(|fired| fired.result),
            trigger_message: fired.map(|fired| fired.message.clone()).unwrap_or_default(),
            skip_reason: skipped.map(|skipped| skipped.reason),
            skip_count: skipped.map(|skipped| skipped.count),
            skip_first: skipped.map(|skipped| skipped.first),
            fire_time: run.fire_time(),
            fired_at: fired.map(|fired| fired.fired_at),
            start_by: fired.and_then(|fired| fired.start_by),
            shards: fired.map(|fired| fired.shards),
            attempts,
            started_at: run.started_at,
            ended_at: run.ended_at,
            code: run.code,
            cancel_requested_at: run.cancel.as_ref().map(|cancel| cancel.at),
            cancel_requested_by: run
                .cancel
                .as_ref()
                .map(|cancel| cancel.by.clone())
                .filter(|by| !by.is_empty()),
            round: run.round,
        }
    }
}

impl AttemptRow {
    pub(super) fn of((shard, number): (u32, u32), attempt: Attempt) -> Self {
        Self {
            shard,
            attempt: number,
            state: attempt.state,
            outcome: attempt.outcome,
            code: attempt.code,
            message: attempt.message,
            output: attempt.output.and_then(raw),
            truncated: attempt.truncated,
            retryable: attempt.retryable,
            instance: attempt.instance,
            target: attempt.target,
            moved: attempt.moved,
            delivery: attempt.delivery,
            due_at: attempt.due_at,
            dispatched_at: attempt.dispatched_at,
            start_by: attempt.start_by,
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            progress: attempt.progress,
            notes: attempt.notes,
            round: attempt.round,
        }
    }
}

/// JSON as it was kept.
pub(super) fn raw(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text).ok()
}

/// The columns of an alert, in the order in which [`alert`] reads them.
pub(super) const ALERT: &str =
    "id, kind, job, run, state, code, message, attempts, fire_time, created_at";

pub(super) fn alert(row: &SqliteRow) -> Result<AlertRow, StoreError> {
    let mut c = Columns::of(row);
    Ok(AlertRow {
        id: c.string()?,
        kind: c.string()?,
        job: c.maybe_parsed(|text| JobId::new(text).ok())?,
        run: c.bytes()?.map(Uuid::from_bytes),
        state: c.maybe_parsed(RunState::from_word)?,
        code: c.maybe_parsed(Code::from_word)?,
        message: c.string()?,
        attempts: c.count()?,
        fire_time: c.maybe_time()?,
        at: c.time()?,
    })
}
