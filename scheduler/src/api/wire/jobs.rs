//! Jobs: applied, looked at, edited, triggered.

use std::collections::BTreeMap;

use chrono::{DateTime, SecondsFormat, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use taskparty_common::job::Meta;
use taskparty_common::schedule::Zone;
use uuid::Uuid;

/// `job.apply`: save these jobs. All are checked before the first is saved.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Apply {
    /// The specs, in the form of job files.
    pub jobs: Vec<Value>,
    /// Say what would change, and change nothing.
    #[serde(default)]
    pub dry_run: bool,
    /// A job that is new begins paused; one that is there keeps its pause.
    #[serde(default)]
    pub paused: bool,
    /// Save only where the job has this revision; 0: only where there is none. With one job only.
    #[serde(default)]
    pub check_revision: Option<u64>,
    /// Who asks.
    #[serde(default)]
    pub by: String,
}

/// What became of [`Apply`].
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AppliedAll {
    /// A line for each job, in the order of the request.
    pub results: Vec<Applied>,
    /// Whether every scheduler goes by it now.
    #[serde(flatten)]
    pub confirmation: Confirmation,
}

/// What became of one job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// The job.
    pub id: String,
    /// What was done.
    pub change: Change,
    /// The job's revision now; for a dry run the one found, 0 for none.
    pub revision: u64,
    /// Field by field, what is different.
    #[serde(default)]
    pub diff: Vec<FieldDiff>,
    /// The next five fires as it was.
    #[serde(default)]
    pub upcoming_before: Vec<DateTime<Utc>>,
    /// The next five fires as it is.
    #[serde(default)]
    pub upcoming_after: Vec<DateTime<Utc>>,
    /// What is allowed and probably not meant.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// What a save does to a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It was not there.
    Created,
    /// It was there and meant something else.
    Updated,
    /// It was there and meant the same: no new revision.
    Unchanged,
}

impl Change {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Updated => "updated",
            Self::Unchanged => "unchanged",
        }
    }
}

/// One field that is different.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FieldDiff {
    /// Its path, as `retry.max`.
    pub field: String,
    /// As it was; absent: the default. What is long is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<Value>,
    /// As it is; absent: the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<Value>,
}

/// Whether every live scheduler goes by a change. Until it does, a fire of the old definition
/// can still happen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confirmation {
    /// Every live scheduler has it, or there is none.
    pub confirmed: bool,
    /// The schedulers that have not shown it in time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waiting_for: Vec<String>,
}

/// `job.list`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ListJobs {
    /// Only jobs that have all of these labels.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Only jobs of this app.
    #[serde(default)]
    pub app: Option<String>,
    /// Only jobs of this handler.
    #[serde(default)]
    pub handler: Option<String>,
    /// Only jobs that are paused, or that are not.
    #[serde(default)]
    pub paused: Option<bool>,
    /// Go on after this page.
    #[serde(default)]
    pub after: Option<String>,
    /// How many at most; the answer may hold fewer. Default 100, at most 1000.
    #[serde(default)]
    pub limit: Option<usize>,
}

/// A job as it is stored, with what follows from it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JobView {
    /// The job.
    pub id: String,
    /// Its revision.
    pub revision: u64,
    /// What the user said; absent when the stored definition is broken.
    #[serde(default)]
    pub spec: Option<Value>,
    /// What the system knows; absent when the stored definition is broken.
    #[serde(default)]
    pub meta: Option<Meta>,
    /// It has no scheduled fires now.
    pub paused: bool,
    /// Its next fire.
    #[serde(default)]
    pub next_fire: Option<DateTime<Utc>>,
    /// Why the stored definition cannot be read; the job does not fire.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broken: Option<String>,
}

/// `job.get`, and whatever names one job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneJob {
    /// The job.
    pub id: String,
    /// Who asks.
    #[serde(default)]
    pub by: String,
}

/// `job.pause`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PauseJob {
    /// The job.
    pub id: String,
    /// Why.
    #[serde(default)]
    pub reason: String,
    /// When it goes on by itself.
    #[serde(default)]
    pub until: Option<DateTime<Utc>>,
    /// Who asks.
    #[serde(default)]
    pub by: String,
}

/// What became of a pause, a resume or a delete.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Edited {
    /// The job.
    pub id: String,
    /// It was different before.
    pub changed: bool,
    /// The revision now.
    pub revision: u64,
    /// Whether every scheduler goes by it now.
    #[serde(flatten)]
    pub confirmation: Confirmation,
}

/// `job.next`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NextFires {
    /// The job.
    pub id: String,
    /// Fires after this; default: now.
    #[serde(default)]
    pub after: Option<DateTime<Utc>>,
    /// How many, at most 1000. Default 5.
    #[serde(default)]
    pub n: Option<usize>,
}

/// The upcoming fires of a job.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Upcoming {
    /// The job.
    pub id: String,
    /// The zone of its schedule.
    pub timezone: String,
    /// It has no scheduled fires now.
    pub paused: bool,
    /// For a fixed delay: how long after the end of each run the next one fires, like `30s`. Of
    /// its fires only the next is known, and that only while no run goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_each_run: Option<String>,
    /// In order.
    pub items: Vec<UpcomingFire>,
}

/// One upcoming fire.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct UpcomingFire {
    /// The nominal instant.
    pub at: DateTime<Utc>,
    /// The same in the schedule's zone, with its offset, as RFC 3339.
    pub local: String,
    /// The day of the week there.
    pub weekday: String,
    /// Its local time does not exist: recorded as skipped, not run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
}

impl UpcomingFire {
    /// A fire at `at`, as the clocks in `zone` show it.
    pub fn at(at: DateTime<Utc>, zone: &Zone) -> Self {
        let local = zone.local(at);
        Self {
            at,
            local: local.to_rfc3339_opts(SecondsFormat::AutoSi, false),
            weekday: local.format("%A").to_string(),
            skipped: false,
        }
    }
}

/// `job.trigger`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TriggerJob {
    /// The job.
    pub id: String,
    /// Params of this run alone. Absent: the job's; `null`: none.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    pub params: Option<Value>,
    /// How long from now, like `30s`.
    #[serde(default, rename = "in", skip_serializing_if = "Option::is_none")]
    pub delay: Option<String>,
    /// When.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<DateTime<Utc>>,
    /// What this run does while an earlier one goes on, whatever the job says: `queue`, `skip`,
    /// `replace` or `allow`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
    /// The caller's own name for it: the same key triggers once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The only executor that may run it, whatever the job's route: its instance id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instance: Option<String>,
    /// Who asks.
    #[serde(default)]
    pub by: String,
}

/// An explicit `null` is a value, and not the same as none.
fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

/// What a trigger made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Triggered {
    /// The run.
    pub run: Uuid,
    /// The job.
    pub job: String,
    /// The trigger's id: the key, or a fresh one.
    pub trigger_id: String,
    /// This call made it; else an earlier one with the same key did.
    pub created: bool,
    /// When it is due.
    pub at: DateTime<Utc>,
}

/// `job.backfill`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackfillJob {
    /// The job.
    pub id: String,
    /// The first instant that may run.
    pub from: DateTime<Utc>,
    /// Instants before this.
    pub to: DateTime<Utc>,
    /// What these runs do while another one goes on; else they take turns, or may overlap where the
    /// job may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlap: Option<String>,
    /// The instants that ran, too.
    #[serde(default)]
    pub again: bool,
    /// Who asks.
    #[serde(default)]
    pub by: String,
}

/// A backfill that is stored, and will be carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backfilled {
    /// The job.
    pub job: String,
    /// The backfill's id.
    pub backfill: String,
    /// Instants in the period.
    pub instants: usize,
    /// Those that will run.
    pub to_run: usize,
    /// Those that ran, and are left out.
    pub left_out: usize,
    /// Those that the schedule itself has yet to run, or to leave out; they are left to it.
    #[serde(default)]
    pub to_come: usize,
    /// Runs of earlier backfills in the period.
    pub known: usize,
    /// Inclusive.
    pub from: DateTime<Utc>,
    /// Exclusive.
    pub to: DateTime<Utc>,
}
