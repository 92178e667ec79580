//! What an audit is asked for: which period, and how strictly it is judged.

use std::time::Duration;

use chrono::{DateTime, Utc};

use super::held::ms;

/// What is judged, and how strictly.
#[derive(Debug, Clone)]
pub struct Bounds {
    /// Instants and runs from this on.
    pub from: DateTime<Utc>,
    /// And before this.
    pub to: DateTime<Utc>,
    /// When the audit began: nothing that was read is older.
    pub now: DateTime<Utc>,
    /// What is younger than this may still be under way.
    pub settle: Duration,
    /// How long before and after an edit it is open which definition holds.
    pub edit_margin: Duration,
    /// How long an executor holds a dispatch without a sign of life.
    pub lease: Duration,
    /// The most runs that are held in memory.
    pub max_runs: usize,
    /// How many violations are put into words, and how many notes.
    pub most: usize,
    /// Whether executors wrote their starts.
    pub starts: Starts,
    /// When NATS may have forgotten what it had just delivered.
    pub forgot: Vec<DateTime<Utc>>,
}

/// Whether there are files in which executors wrote their starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// Every executor wrote one, and all of them are read.
    Given,
    /// Nothing is known: starts are not judged.
    NotGiven,
}

impl Bounds {
    /// What happened before this has had its time, in milliseconds.
    pub(super) fn settled_ms(&self) -> i64 {
        self.now.timestamp_millis().saturating_sub(ms(self.settle))
    }
}
