//! The JSON of the NATS service: what is asked and what is answered, shared with the command line.
//!
//! Requests are strict, as files are: an unknown field is refused. Answers may get more fields
//! later; whoever reads them ignores what it does not know.

mod audit;
mod installation;
mod jobs;
mod runs;

use serde::{Deserialize, Serialize};

pub use super::problem::{Code, Problem, ProblemField};
pub use audit::{AskAudit, AuditAnswer};
pub use installation::{Check, Diagnosis, Executors, Schedulers, Topology, TopologyItem, Verdict};
pub use jobs::{
    Applied, AppliedAll, Apply, BackfillJob, Backfilled, Change, Confirmation, Edited, FieldDiff,
    JobView, ListJobs, NextFires, OneJob, PauseJob, TriggerJob, Triggered, Upcoming, UpcomingFire,
};
pub use runs::{AskRun, ListRuns, LogLine, LogPage, OneRun, RetryRun, RunAsked, RunLogs};

/// A list that goes on where `next` says; `next` is absent at the end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    /// What is on this page.
    pub items: Vec<T>,
    /// What to send as `after` for the next page.
    #[serde(default)]
    pub next: Option<String>,
}

/// A request that needs nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Nothing {}
