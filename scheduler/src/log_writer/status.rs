//! What `doctor` and tests can read of a log writer.

use std::sync::{Arc, PoisonError, RwLock};

use chrono::{DateTime, Utc};
use serde::Serialize;

/// What a log writer does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It has not begun, or has ended.
    Stopped,
    /// Another one writes; it waits.
    Standby,
    /// It writes.
    Active,
}

/// How a log writer is.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LogWriterStatus {
    /// What it does.
    pub standing: Standing,
    /// Messages that wait in the stream, as of the last delivery or sweep.
    pub pending: u64,
    /// Batches written since the process started.
    pub batches: u64,
    /// Events written since the process started.
    pub events: u64,
    /// Lines set aside since the process started.
    pub set_aside: u64,
    /// When the last batch was written.
    pub last_batch_at: Option<DateTime<Utc>>,
    /// Since when SQL has not worked; none while it does.
    pub outage_since: Option<DateTime<Utc>>,
    /// What SQL last said of it.
    pub outage: Option<String>,
}

/// A handle on the status of a log writer. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StatusHandle {
    status: Arc<RwLock<LogWriterStatus>>,
}

impl Default for StatusHandle {
    fn default() -> Self {
        let status = LogWriterStatus {
            standing: Standing::Stopped,
            pending: 0,
            batches: 0,
            events: 0,
            set_aside: 0,
            last_batch_at: None,
            outage_since: None,
            outage: None,
        };
        Self { status: Arc::new(RwLock::new(status)) }
    }
}

impl StatusHandle {
    /// The status now.
    pub fn get(&self) -> LogWriterStatus {
        self.status.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn update(&self, change: impl FnOnce(&mut LogWriterStatus)) {
        change(&mut self.status.write().unwrap_or_else(PoisonError::into_inner));
    }
}
