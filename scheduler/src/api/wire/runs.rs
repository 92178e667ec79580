//! Runs and their logs: what is asked. A run itself is answered as history has it.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// `run.list`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListRuns {
    /// Only runs of this job.
    #[serde(default)]
    pub job: Option<String>,
    /// Only runs in this state.
    #[serde(default)]
    pub state: Option<String>,
    /// Only runs whose nominal instant is not before this.
    #[serde(default)]
    pub since: Option<DateTime<Utc>>,
    /// Only runs whose nominal instant is before this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
    /// Only runs with this trigger, as `backfill`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trigger: Option<String>,
    /// Go on after this page.
    #[serde(default)]
    pub after: Option<String>,
    /// How many at most. Default 50, at most 500.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// Requests about one run: each has the fields that name it. (Flattened, an unknown field would no more
/// be refused.)
macro_rules! of_run {
    ($($(#[$doc:meta])* $name:ident { $($more:tt)* })*) => { $(
        $(#[$doc])*
        #[derive(Debug, Clone, Default, Serialize, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The run's id.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub run: Option<String>,
            /// The job of `key`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub job: Option<String>,
            /// The key that it was triggered with; the latest run when the key was used again after
            /// its time.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub key: Option<String>,
            $($more)*
        }

        impl $name {
            /// What names the run.
            pub fn named(&self) -> OneRun {
                OneRun { run: self.run.clone(), job: self.job.clone(), key: self.key.clone() }
            }
        }
    )* };
}

of_run! {
    /// Whatever names one run: `run`, or `job` and `key`.
    OneRun {}

    /// `run.cancel`.
    AskRun {
        /// Who asks.
        #[serde(default)]
        pub by: String,
    }

    /// `run.retry`.
    RetryRun {
        /// All of its shards; else those that did not succeed.
        #[serde(default)]
        pub all_shards: bool,
        /// Who asks.
        #[serde(default)]
        pub by: String,
    }

    /// `run.logs`.
    RunLogs {
        /// Only lines after this place.
        #[serde(default)]
        pub after_seq: u64,
        /// How many messages at most. Default 500, at most 1000.
        #[serde(default)]
        pub limit: Option<usize>,
    }
}

/// What became of something that was asked of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunAsked {
    /// The run.
    pub run: Uuid,
    /// Its job.
    pub job: String,
    /// Where it is now.
    pub state: String,
    /// This call asked for it; else there was nothing to ask: the run has ended, or had been asked.
    pub changed: bool,
    /// History shows it. If not, it is stored all the same, and comes to pass.
    pub shown: bool,
    /// When it was asked to stop.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_at: Option<DateTime<Utc>>,
    /// By whom.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cancel_requested_by: Option<String>,
    /// How many times it has been retried by hand.
    #[serde(default)]
    pub round: u32,
}

/// A message that a handler logged: a line or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogLine {
    /// Its place in the stream of logs.
    pub seq: u64,
    /// When the server stored it.
    pub at: DateTime<Utc>,
    /// The shard.
    pub shard: Option<u32>,
    /// The attempt.
    pub attempt: Option<u32>,
    /// `info`, `warn` and the like; empty when the handler said none.
    #[serde(default)]
    pub level: String,
    /// What it said.
    pub text: String,
}

/// A page of what a run's handlers logged.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LogPage {
    /// In order.
    pub items: Vec<LogLine>,
    /// The `after_seq` for what follows; absent when this is all there is now.
    #[serde(default)]
    pub next: Option<u64>,
    /// The run has ended: no more lines are to be expected.
    pub ended: bool,
}
