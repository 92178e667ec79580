//! The wall clock: the only place that reads it.
//!
//! A [`Clock`] is handed down from `main`; a test hands down one that it can set. Deadlines and
//! leases never use it: they run on monotonic time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use chrono::{DateTime, TimeDelta, Utc};

/// The machine's wall clock, moved by an offset that is zero outside tests.
#[derive(Debug, Clone, Default)]
pub struct Clock {
    offset_ms: Arc<AtomicI64>,
}

impl Clock {
    /// The machine's clock.
    pub fn system() -> Self {
        Self::default()
    }

    /// The time now.
    #[allow(clippy::disallowed_methods, reason = "the one place that reads the wall clock")]
    pub fn now(&self) -> DateTime<Utc> {
        let offset = TimeDelta::milliseconds(self.offset_ms.load(Ordering::Relaxed));
        Utc::now().checked_add_signed(offset).unwrap_or(DateTime::<Utc>::MAX_UTC)
    }

    /// The time now in milliseconds since 1970.
    pub fn now_ms(&self) -> i64 {
        self.now().timestamp_millis()
    }

    /// Steps this clock, and every clone of it, as if someone had set the machine's clock.
    pub fn step(&self, by: TimeDelta) {
        self.offset_ms.fetch_add(by.num_milliseconds(), Ordering::Relaxed);
    }
}
