//! A run and its attempts as plain values: what the transition works on, and what SQL keeps.
//!
//! Nothing in here decides anything; [`crate::log_writer::transition`] does.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use taskparty_common::name::{App, Handler, Instance, JobId};
use taskparty_common::outcome::{Code, Outcome, RunState, SkipReason, Trigger, TriggerResult};
use uuid::Uuid;

/// The first 16 bytes of the SHA-256 of a definition's text.
pub type Digest = [u8; 16];

/// A run with all its attempts.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// Its id.
    pub id: Uuid,
    /// The job.
    pub job: JobId,
    /// The job's app.
    pub app: App,
    /// Derived from the trigger's result and the shards.
    pub state: RunState,
    /// What waits for its time; none once it has fired, and for whatever was never delayed.
    pub planned: Option<PlannedPart>,
    /// The trigger's result; nothing is decided before it is here.
    pub fired: Option<FiredPart>,
    /// What went wrong in the shard that decided the run.
    pub code: Option<Code>,
    /// When the first handler began.
    pub started_at: Option<DateTime<Utc>>,
    /// When the run reached its end.
    pub ended_at: Option<DateTime<Utc>>,
    /// That it is to stop; while it has not ended, it is asked to each second.
    pub cancel: Option<CancelPart>,
    /// How many times somebody has retried it by hand.
    pub round: u32,
    /// By shard and attempt.
    pub attempts: Attempts,
}

/// Attempts by shard and number. Boxed: a map makes room for eleven values at once, and most runs have
/// one attempt.
pub type Attempts = BTreeMap<(u32, u32), Box<Attempt>>;

impl Run {
    /// The handler, of what is planned or of what was fired; likewise the others.
    pub(super) fn handler(&self) -> Option<&Handler> {
        let fired = self.fired.as_ref().map(|fired| &fired.handler);
        fired.or(self.planned.as_ref().map(|planned| &planned.handler))
    }

    /// The key of the lock.
    pub(super) fn lock(&self) -> Option<&String> {
        let fired = self.fired.as_ref().map(|fired| &fired.lock);
        fired.or(self.planned.as_ref().map(|planned| &planned.lock))
    }

    /// Why the job is due.
    pub(super) fn trigger(&self) -> Option<Trigger> {
        let fired = self.fired.as_ref().map(|fired| fired.trigger);
        fired.or(self.planned.as_ref().map(|planned| planned.trigger))
    }

    /// When it is due.
    pub(super) fn fire_time(&self) -> Option<DateTime<Utc>> {
        let fired = self.fired.as_ref().map(|fired| fired.fire_time);
        fired.or(self.planned.as_ref().map(|planned| planned.fire_time))
    }

    /// Params of this run alone, as JSON.
    pub(crate) fn params(&self) -> Option<&String> {
        match (&self.fired, &self.planned) {
            (Some(fired), _) => fired.params.as_ref(),
            (None, planned) => planned.as_ref()?.params.as_ref(),
        }
    }
}

/// The trigger's result and what it says of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct FiredPart {
    /// The handler.
    pub handler: Handler,
    /// The key of the lock.
    pub lock: String,
    /// The job's revision.
    pub revision: u64,
    /// The start of the job's past.
    pub since: DateTime<Utc>,
    /// Which definition the run was made with.
    pub definition: Digest,
    /// The scheduler that took the lock.
    pub owner: Instance,
    /// Why the job was due.
    pub trigger: Trigger,
    /// What became of it.
    pub result: TriggerResult,
    /// A sentence for whoever asks why.
    pub message: String,
    /// Present when the fire was recorded and not run.
    pub skipped: Option<SkippedPart>,
    /// The nominal instant.
    pub fire_time: DateTime<Utc>,
    /// When the dispatch was made, or the decision not to.
    pub fired_at: DateTime<Utc>,
    /// Until when a first delivery may start.
    pub start_by: Option<DateTime<Utc>>,
    /// How many shards the run has.
    pub shards: u32,
    /// Params of this run alone, as JSON.
    pub params: Option<String>,
}

impl FiredPart {
    /// Whether the run waits for its turn: there will be another record when it is dispatched.
    pub fn awaits_place(&self) -> bool {
        self.result == TriggerResult::Queued && self.start_by.is_none()
    }
}

/// A delayed trigger before its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedPart {
    /// The handler.
    pub handler: Handler,
    /// The key of the lock that it will take.
    pub lock: String,
    /// Why the job will be due.
    pub trigger: Trigger,
    /// When.
    pub fire_time: DateTime<Utc>,
    /// Params of this run alone, as JSON.
    pub params: Option<String>,
    /// What else it says.
    pub said: Said,
}

/// What whoever made a delayed trigger said of its run, beside the params.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    /// Who; empty when that is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// The only executor that may run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// What it does while an earlier run goes on: the word of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
}

/// Somebody asked for a run to stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelPart {
    /// When.
    pub at: DateTime<Utc>,
    /// Who; empty when that is not known.
    pub by: String,
}

impl CancelPart {
    /// It in a few words.
    pub fn words(&self) -> String {
        if self.by.is_empty() { "cancelled".into() } else { format!("cancelled by {}", self.by) }
    }
}

/// Why, and for how many instants, a record stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedPart {
    /// Why.
    pub reason: SkipReason,
    /// For how many instants.
    pub count: u64,
    /// The first of them.
    pub first: DateTime<Utc>,
}

impl SkippedPart {
    /// Whether somebody cancelled it before it was dispatched.
    pub fn is_cancelled(&self) -> bool {
        self.reason == SkipReason::Cancelled
    }
}

/// One try at one shard.
#[derive(Debug, Clone, PartialEq)]
pub struct Attempt {
    /// Where it is.
    pub state: RunState,
    /// How it ended; set once.
    pub outcome: Option<Outcome>,
    /// What went wrong.
    pub code: Option<Code>,
    /// What the handler, or the system, said of it.
    pub message: String,
    /// What the handler returned, as JSON.
    pub output: Option<String>,
    /// Message or output were cut.
    pub truncated: bool,
    /// Whether another attempt may follow.
    pub retryable: bool,
    /// The executor.
    pub instance: Option<Instance>,
    /// JetStream's delivery count.
    pub delivery: Option<u64>,
    /// When a retry is to be triggered.
    pub due_at: Option<DateTime<Utc>>,
    /// When it was put in the stream.
    pub dispatched_at: Option<DateTime<Utc>>,
    /// Until when a first delivery may start.
    pub start_by: Option<DateTime<Utc>>,
    /// When the handler was called.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
    /// How far the handler said it is.
    pub progress: Option<ProgressPart>,
    /// Results that came after the first.
    pub notes: Vec<Note>,
    /// When the sweep looks at it.
    pub check_at: Option<DateTime<Utc>>,
    /// How it ends when no result comes before `check_at`.
    pub ending: Option<Ending>,
    /// The executor that it is for; none: whoever takes it.
    pub target: Option<Instance>,
    /// It ends with that executor, and goes to no other.
    pub pinned: bool,
    /// That executor had gone, and the next attempt is another's. It is no retry.
    pub moved: bool,
    /// How many times the run had been retried by hand when it was made.
    pub round: u32,
}

impl Attempt {
    /// An attempt that is in `state` and of which nothing else is known.
    pub fn new(state: RunState) -> Self {
        Self {
            state,
            outcome: None,
            code: None,
            message: String::new(),
            output: None,
            truncated: false,
            retryable: true,
            instance: None,
            delivery: None,
            due_at: None,
            dispatched_at: None,
            start_by: None,
            started_at: None,
            ended_at: None,
            progress: None,
            notes: Vec::new(),
            check_at: None,
            ending: None,
            target: None,
            pinned: false,
            moved: false,
            round: 0,
        }
    }

    /// A new attempt that is on its way, boxed for [`Attempts`].
    pub fn dispatched() -> Box<Self> {
        Box::new(Self::new(RunState::Dispatched))
    }

    /// The attempt that follows this one, in `state`: what is pinned stays with its executor.
    pub fn next(&self, state: RunState) -> Self {
        let target = self.target.clone().filter(|_| self.pinned);
        Self { target, pinned: self.pinned, round: self.round, ..Self::new(state) }
    }
}

/// How far a handler is, in its own unit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProgressPart {
    /// How much is done.
    pub done: u64,
    /// How much there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
    /// A word for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A result that came after the attempt had ended, and changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// The executor.
    pub instance: Instance,
    /// JetStream's delivery count.
    pub delivery: u64,
    /// What it said.
    pub outcome: Outcome,
    /// What went wrong, by its account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// When it ended, by its account.
    pub finished_at: DateTime<Utc>,
}

/// How an attempt ends by the sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ending {
    /// How.
    pub outcome: Outcome,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Why, in a sentence.
    pub message: String,
    /// The sweep has made sure that its dispatch is not in the stream any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub removed: bool,
    /// What follows.
    #[serde(default, skip_serializing_if = "Then::is_retry")]
    pub then: Then,
}

/// What follows an attempt that the sweep ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Then {
    /// What the job's policy of retries says.
    #[default]
    Retry,
    /// Another executor gets it, as far as the job's `redeliveries` go; that is no retry.
    Move,
    /// Nothing: nobody else may have it.
    Nothing,
}

impl Then {
    fn is_retry(&self) -> bool {
        *self == Self::Retry
    }
}
