//! Fired records that wait because their stream is full.
//!
//! *Invariant: while a record waits for room no new fire begins*: its record would have to wait
//! too, and the work would pile up with nothing to show for it. The watermark stands still, so
//! nothing is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How many records wait for room. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Waiting(Arc<AtomicUsize>);

/// One record that waits, until this is dropped.
#[derive(Debug)]
pub(super) struct OneWaits(Arc<AtomicUsize>);

impl Waiting {
    /// Whether any record waits.
    pub(super) fn any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// One more waits.
    pub(super) fn begin(&self) -> OneWaits {
        self.0.fetch_add(1, Ordering::Relaxed);
        OneWaits(self.0.clone())
    }
}

impl Drop for OneWaits {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
