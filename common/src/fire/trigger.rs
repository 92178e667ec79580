//! What asks for a fire: a trigger, now or at its time.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{FireId, Plan};
use crate::backfill::Backfill;
use crate::name::{App, Handler, Instance, JobId};
use crate::outcome::Trigger;

/// A trigger, on `taskparty.trigger.<job>`: fire this now. A delayed one waits in the server and
/// arrives there at its time.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct TriggerRequest {
    /// The format: 1.
    pub v: u32,
    /// The trigger's id: its identity, with the job.
    pub id: String,
    /// The job.
    pub job: JobId,
    /// The job's app, as the sender knew it: for the record when the job is gone.
    pub app: App,
    /// The job's handler, likewise.
    pub handler: Handler,
    /// Why.
    pub trigger: Trigger,
    /// The run that it makes, or that it goes on with.
    pub run: Uuid,
    /// The instant that the trigger stands for.
    pub at: DateTime<Utc>,
    /// Who asked; empty for the system itself.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Params of this run alone, instead of the job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Box<RawValue>>,
    /// The only executor that may run it, whatever the job's route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// What this run does while an earlier one goes on, whatever the job says: the word of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
    /// It is not one trigger, but many, each in its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backfill: Option<Backfill>,
    /// For a retry: the frozen run that it goes on with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry: Option<RetryOf>,
    /// For the next run of a fixed delay: the start of the job's past when the chain began; a
    /// chain of an earlier past is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<DateTime<Utc>>,
    /// Why it is not to run: then that is recorded, and nothing else happens. Empty: it runs.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub refused: String,
}

impl TriggerRequest {
    /// What a trigger must have; all else is as if nobody had said it. `at` is the instant that it
    /// stands for, of whatever kind; the run is derived from the same.
    pub fn new(
        id: impl Into<String>,
        job: JobId,
        (app, handler): (App, Handler),
        trigger: Trigger,
        run: Uuid,
        at: DateTime<Utc>,
    ) -> Self {
        Self {
            v: 1,
            id: id.into(),
            job,
            app,
            handler,
            trigger,
            run,
            at,
            by: String::new(),
            params: None,
            instance: None,
            overlap: None,
            backfill: None,
            retry: None,
            since: None,
            refused: String::new(),
        }
    }
}

/// A delayed trigger that waits for its time, on `taskparty.scheduled.<app>`: so that its run is in
/// history before it is fired. Its fired record follows, at its time, with the same lock and run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Scheduled {
    /// The format: 1.
    pub v: u32,
    /// The key of the lock that the fire will take.
    pub lock: String,
    /// The run that it will make.
    pub run: Uuid,
    /// The job.
    pub job: JobId,
    /// The job's app, as it was when the trigger was taken.
    pub app: App,
    /// The job's handler, likewise.
    pub handler: Handler,
    /// Why.
    pub trigger: Trigger,
    /// When it is due.
    pub fire_time: DateTime<Utc>,
    /// Who asked.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// Params of this run alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<Box<RawValue>>,
    /// The only executor that may run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<Instance>,
    /// What it does while an earlier run goes on: the word of a policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
}

impl From<TriggerRequest> for Scheduled {
    fn from(trigger: TriggerRequest) -> Self {
        Self {
            v: 1,
            lock: FireId::trigger(trigger.job.clone(), trigger.id).lock_key(),
            run: trigger.run,
            job: trigger.job,
            app: trigger.app,
            handler: trigger.handler,
            trigger: trigger.trigger,
            fire_time: trigger.at,
            by: trigger.by,
            params: trigger.params,
            instance: trigger.instance,
            overlap: trigger.overlap,
        }
    }
}

/// What a retry goes on with: the definition that its run was made with, not today's.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RetryOf {
    /// The revision that the run was made with.
    pub revision: u64,
    /// The start of the job's past when the run was made.
    pub since: DateTime<Utc>,
    /// The nominal instant of the run.
    pub fire_time: DateTime<Utc>,
    /// The shard and the attempt to make.
    pub plan: Plan,
    /// The job's spec, frozen.
    pub definition: Box<RawValue>,
}
