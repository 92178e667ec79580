//! Who is there, what is in NATS, and whether all is well.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use taskparty_common::dispatch::{ExecutorEntry, SchedulerEntry};

use super::Page;

/// `executor.list`.
pub type Executors = Page<ExecutorEntry>;

/// `scheduler.list`.
pub type Schedulers = Page<SchedulerEntry>;

/// How one check of `doctor` came out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// Which check.
    pub check: String,
    /// How it came out.
    pub verdict: Verdict,
    /// What was found.
    pub what: String,
    /// What to do about it; empty when there is nothing.
    #[serde(default)]
    pub todo: String,
}

impl Check {
    /// All is well.
    pub fn ok(check: &str, what: impl Into<String>) -> Self {
        Self { check: check.into(), verdict: Verdict::Ok, what: what.into(), todo: String::new() }
    }

    /// It works, and somebody should look.
    pub fn warn(check: &str, what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { check: check.into(), verdict: Verdict::Warn, what: what.into(), todo: todo.into() }
    }

    /// It does not work.
    pub fn fail(check: &str, what: impl Into<String>, todo: impl Into<String>) -> Self {
        Self { check: check.into(), verdict: Verdict::Fail, what: what.into(), todo: todo.into() }
    }
}

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All is well.
    Ok,
    /// It works, and somebody should look.
    Warn,
    /// It does not work.
    Fail,
}

/// What `doctor` found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Diagnosis {
    /// Every check.
    pub items: Vec<Check>,
    /// Always absent: there is one page.
    #[serde(default)]
    pub next: Option<String>,
    /// The clock of the process that answered, when it did.
    pub now: DateTime<Utc>,
}

/// A stream, bucket or consumer, expected against found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TopologyItem {
    /// `stream`, `bucket` or `consumer`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// `ok`, `missing`, `different`, `created`, `changed`; `later` for what a job names and nobody
    /// has needed yet.
    pub state: String,
    /// What is different, setting by setting.
    #[serde(default)]
    pub differences: Vec<String>,
}

/// The topology of an installation.
pub type Topology = Page<TopologyItem>;
