//! Runs that have not ended, as they were written last: what happens to them next needs no reading.
//!
//! When much is under way, a run's fired record and its result come in different batches; reading what
//! the first one wrote cost half as much again as writing it.
//!
//! *Invariant: a run that is kept is as the store has it.* Runs are taken out for a transaction, and
//! come back when it has committed: when it failed, or nobody waited for it, there are none. And all are
//! forgotten once anybody else has written.

use uuid::Uuid;

use super::recent::Recent;
use crate::store::{Run, Version};

/// Bytes of runs, about.
const BYTES: usize = 64 << 20;

/// What a run takes beside its params, and likewise an attempt.
const EACH: usize = 600;

/// A run that takes more is read when it is needed.
const LARGE: usize = 8 << 10;

/// Runs that were written and have not ended.
#[derive(Debug)]
pub(super) struct OpenRuns {
    /// Of the store, when they were written.
    version: Option<Version>,
    runs: Recent<Uuid, Box<Run>>,
}

impl Default for OpenRuns {
    fn default() -> Self {
        Self { version: None, runs: Recent::new(BYTES, |run| size(run)) }
    }
}

impl OpenRuns {
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
            run.round_as_stored();
            self.runs.put(run.id, Box::new(run));
        }
    }
}

/// About how many bytes it takes.
fn size(run: &Run) -> usize {
    let params = run.params().map_or(0, String::len);
    let attempts = run.attempts.values().map(|attempt| {
        let output = attempt.output.as_ref().map_or(0, String::len);
        EACH + attempt.message.len() + output
    });
    EACH + params + attempts.sum::<usize>()
}
