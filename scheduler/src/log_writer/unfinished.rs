//! Runs that have not ended, as they were written last: what happens to them next needs no reading.
//!
//! A run whose handler takes its time is written when it is fired, when it has started and when it has
//! ended: reading it in between took a sixth of what that costs.
//!
//! *Invariant: a run that is kept is as the store has it.* Runs are taken out for a transaction, and
//! come back when it has committed: when it failed, or nobody waited for it, there are none. All are
//! forgotten once another connection has written; and in this process nobody but the writer of batches
//! changes runs and attempts.

use uuid::Uuid;

use super::recent::Recent;
use crate::store::{Run, Version};

/// Bytes of runs, about, both turns of [`Recent`] together.
const BYTES: usize = 64 << 20;

/// What a run takes beside its texts, and likewise an attempt, or a note.
const EACH: usize = 600;

/// A run that takes more is read when it is needed.
const LARGE: usize = 8 << 10;

/// Runs that were written and have not ended.
#[derive(Debug)]
pub(super) struct Unfinished {
    /// Of the store, when they were written.
    version: Option<Version>,
    runs: Recent<Uuid, Box<Run>>,
}

impl Default for Unfinished {
    fn default() -> Self {
        Self { version: None, runs: Recent::new(BYTES, |run| size(run)) }
    }
}

impl Unfinished {
    /// Forgets all, unless the store is still as it was left.
    pub(super) fn check(&mut self, now: Version) {
        if self.version != Some(now) {
            *self = Self { version: Some(now), ..Self::default() };
        }
    }

    /// Whether the run is kept.
    pub(super) fn has(&self, id: &Uuid) -> bool {
        self.runs.has(id)
    }

    /// The run, to change it; it is kept no more.
    pub(super) fn take(&mut self, id: &Uuid) -> Option<Run> {
        self.runs.take(id).map(|run| *run)
    }

    /// Keeps a run that was just written, unless nothing will happen to it soon.
    pub(super) fn keep(&mut self, mut run: Run) {
        if !run.state.is_terminal() && size(&run) <= LARGE {
            run.cut_as_stored();
            self.runs.put(run.id, Box::new(run));
        }
    }
}

/// About how many bytes it takes.
fn size(run: &Run) -> usize {
    let fired = run.fired.as_ref().map_or(0, |fired| fired.message.len() + fired.lock.len());
    let attempts = run.attempts.values().map(|attempt| {
        let output = attempt.output.as_ref().map_or(0, String::len);
        let progress = attempt.progress.as_ref().map_or(0, |progress| progress.note.len());
        let ending = attempt.ending.as_ref().map_or(0, |ending| ending.message.len());
        EACH + attempt.message.len() + output + progress + ending + EACH * attempt.notes.len()
    });
    EACH + run.params().map_or(0, String::len) + fired + attempts.sum::<usize>()
}
