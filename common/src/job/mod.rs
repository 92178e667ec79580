//! The job: what users write (the *spec*), and what is stored of it.
//!
//! One form of spec for files, requests and the command line (contract, section 1). It is read by
//! hand, field by field, so that every error names field, value and the right form; two specs
//! that mean the same are equal, so that applying a file twice is no change.

mod read;
mod route;
mod schedule_field;
mod spec;
mod stored;
mod write;

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

pub use read::{FieldError, Invalid, Unknown, nearest};
pub use route::{Route, Shards};
pub use stored::{Job, Meta, Paused};

use crate::backoff::Retry;
use crate::name::{App, Handler, JobId};
use crate::priority::Priority;
use crate::rate::Rate;
use crate::schedule::Schedule;

/// The longest `params`, in bytes of JSON.
pub const MAX_PARAMS: usize = 256 * 1024;

/// How many fires may wait for their turn, when a job does not say.
pub const QUEUE_LIMIT: u32 = 100;

/// The most runs of one job at once, where it has a rate or says how many: all of them stand in one
/// entry.
pub const MAX_RUNNING: u32 = 1000;

/// The most shards a run can have.
pub const MAX_SHARDS: u32 = 1024;

/// What a user says of a job.
#[derive(Debug, Clone, PartialEq)]
pub struct JobSpec {
    /// The job's id; never changes.
    pub id: JobId,
    /// A title, any text.
    pub title: String,
    /// A description, any text.
    pub description: String,
    /// Whom to ask.
    pub owner: String,
    /// The group of executors that runs it.
    pub app: App,
    /// The function inside the app.
    pub handler: Handler,
    /// When it is due; nothing: on demand only.
    pub schedule: Option<Schedule>,
    /// What the handler gets; `null` is nothing.
    pub params: Value,
    /// Which executor gets a run.
    pub route: Route,
    /// How many pieces a run has.
    pub shards: Shards,
    /// An item for each shard, or empty.
    pub shard_params: Vec<Value>,
    /// What a fire does while an earlier run goes on.
    pub overlap: Overlap,
    /// How many fires may wait under [`Overlap::Queue`]; past it they are skipped.
    pub queue_limit: u32,
    /// Runs at once, over all executors; nothing: one, or with [`Overlap::Allow`] any number.
    pub max_running: Option<u32>,
    /// How many runs may begin in a period, over all schedulers; nothing: any number.
    pub rate: Option<Rate>,
    /// What becomes of missed instants.
    pub misfire: Misfire,
    /// Attempts after the first.
    pub retry: Retry,
    /// How many times a shard whose executor was lost goes to another.
    pub redeliveries: u32,
    /// How long one attempt may take; nothing: as long as it likes.
    pub timeout: Option<Duration>,
    /// How long a dispatch may wait for its first start.
    pub start_deadline: Duration,
    /// How long a fire waits while there is no executor of the handler.
    pub no_executor_wait: Duration,
    /// How urgent its runs are among those of the same handler that wait for a slot.
    pub priority: Priority,
    /// So many failed runs in a row pause the job; nothing: it goes on.
    pub pause_after_failures: Option<u32>,
    /// Jobs that are triggered when a run has succeeded, all shards of it.
    pub then: Vec<JobId>,
    /// Which ends are alerts.
    pub alert: Vec<AlertWhen>,
    /// Words to select jobs by.
    pub labels: BTreeMap<String, String>,
}

/// What a fire does while an earlier run of the job goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overlap {
    /// It waits until the earlier ones have ended, in order.
    #[default]
    Queue,
    /// It is left out, on record.
    Skip,
    /// The earlier ones are cancelled, and it begins when they have ended.
    Replace,
    /// It runs beside it.
    Allow,
}

impl Overlap {
    pub(crate) const WORDS: [(&'static str, Self); 4] = [
        ("queue", Self::Queue),
        ("skip", Self::Skip),
        ("replace", Self::Replace),
        ("allow", Self::Allow),
    ];

    /// The policy that `word` stands for.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::WORDS.into_iter().find(|(known, _)| *known == word).map(|(_, policy)| policy)
    }

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        Self::WORDS
            .into_iter()
            .find(|(_, policy)| *policy == self)
            .map_or("queue", |(word, _)| word)
    }
}

/// What becomes of instants that were missed (contract, section 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfire {
    /// Which of them run.
    pub policy: MisfirePolicy,
    /// An instant missed by less is late, and no misfire.
    pub grace: Duration,
    /// An instant older than this is recorded and never run.
    pub window: Duration,
}

impl Default for Misfire {
    fn default() -> Self {
        Self {
            policy: MisfirePolicy::Once,
            grace: Duration::from_secs(10),
            window: Duration::from_secs(86_400),
        }
    }
}

/// Which missed instants run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MisfirePolicy {
    /// The latest one.
    Once,
    /// All of them, in order.
    All,
    /// None of them.
    Skip,
}

impl MisfirePolicy {
    pub(crate) const WORDS: [(&'static str, Self); 3] =
        [("once", Self::Once), ("all", Self::All), ("skip", Self::Skip)];
}

/// An end of a run that is an alert.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AlertWhen {
    /// The run failed for good.
    Failed,
}

impl JobSpec {
    /// How many runs of the job may go on at once; nothing: any number.
    pub fn places(&self) -> Option<usize> {
        let most = match (self.max_running, self.overlap) {
            (Some(most), _) => most,
            (None, Overlap::Allow) if self.rate.is_some() => MAX_RUNNING,
            (None, Overlap::Allow) => return None,
            (None, _) => 1,
        };
        Some(usize::try_from(most).unwrap_or(usize::MAX))
    }

    /// The zone of the schedule, UTC without one.
    pub fn timezone(&self) -> &str {
        self.schedule.as_ref().map_or("UTC", |schedule| schedule.timezone().name())
    }
}
