//! What an audit asks of history.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::audit::{AskRuns, HistoryPage, Leftovers};

/// `doctor.audit`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AskAudit {
    /// Runs of a period.
    #[serde(default)]
    pub runs: Option<AskRuns>,
    /// What was set aside since then, and the outbox.
    #[serde(default)]
    pub leftovers_since: Option<DateTime<Utc>>,
}

/// The answer: what was asked for.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct AuditAnswer {
    /// The runs.
    #[serde(default)]
    pub runs: Option<HistoryPage>,
    /// What should not stay in history.
    #[serde(default)]
    pub leftovers: Option<Leftovers>,
}
