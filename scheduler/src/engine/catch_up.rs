//! What is not on time: missed instants that wait for room, and instants that others hold.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::stream::BoxStream;
use taskparty_common::fire::FireId;
use taskparty_common::name::JobId;
use tokio::time::Instant;

use super::step::{Accounted, Step};
use crate::definition::Definition;
use crate::fire::Held;

/// Missed instants that are fired side by side, over all jobs.
const ROOM: usize = 64;

/// How long whoever took a lock has, until another one completes the fire.
const PATIENCE: Duration = Duration::from_secs(5);

/// A decided step of a job.
#[derive(Debug)]
pub(super) struct Due {
    pub(super) job: JobId,
    pub(super) step: Step,
    /// Of a record of several: what is accounted for otherwise.
    pub(super) accounted: Option<Accounted>,
    pub(super) definition: Arc<Definition>,
    pub(super) due_ms: i64,
    /// It was missed.
    pub(super) late: bool,
}

/// An instant whose lock is stored and whose record is not: someone else's, or an own one that was
/// never confirmed.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) job: JobId,
    pub(super) since: DateTime<Utc>,
    pub(super) at: DateTime<Utc>,
    pub(super) due_ms: i64,
    pub(super) held: Held,
}

impl AsRef<Held> for Open {
    fn as_ref(&self) -> &Held {
        &self.held
    }
}

/// Those that are being completed; as they are through, and whether each has its fired record now.
pub(super) type Completing = BoxStream<'static, Vec<(Open, bool)>>;

#[derive(Debug, Default)]
pub(super) struct CatchUp {
    running: usize,
    waiting: VecDeque<Due>,
    /// In the order of their deadlines.
    held: VecDeque<(Instant, Open)>,
    /// Those of `held`, and those that are being completed: each once.
    looked_after: HashSet<FireId>,
}

impl CatchUp {
    /// A missed instant: it comes back when there is room for it now, else it waits.
    pub(super) fn admit(&mut self, due: Due) -> Option<Due> {
        if self.running < ROOM {
            self.running += 1;
            return Some(due);
        }
        self.waiting.push_back(due);
        None
    }

    /// A missed instant is over: the next one that waits takes its room.
    pub(super) fn release(&mut self) -> Option<Due> {
        let next = self.waiting.pop_front();
        if next.is_none() {
            self.running = self.running.saturating_sub(1);
        }
        next
    }

    /// The job is gone: its missed instant does not run any more. When it was due.
    pub(super) fn forget(&mut self, job: &JobId) -> Option<i64> {
        let index = self.waiting.iter().position(|due| due.job == *job)?;
        self.waiting.remove(index).map(|due| due.due_ms)
    }

    /// Someone else holds these; they have a while.
    pub(super) fn hold(&mut self, open: Vec<Open>, now: Instant) {
        self.looked_after.extend(open.iter().map(|open| open.held.id.clone()));
        self.held.extend(open.into_iter().map(|open| (now + PATIENCE, open)));
    }

    /// Whoever holds these has had time enough.
    pub(super) fn hold_overdue(&mut self, open: Vec<Open>, now: Instant) {
        for open in open.into_iter().rev() {
            self.looked_after.insert(open.held.id.clone());
            self.held.push_front((now, open));
        }
    }

    /// Whether this is held already, or is being completed: then it must not be a second time.
    pub(super) fn looks_after(&self, id: &FireId) -> bool {
        self.looked_after.contains(id)
    }

    /// This has its fired record.
    pub(super) fn completed(&mut self, id: &FireId) {
        self.looked_after.remove(id);
    }

    /// Takes out what has been held for too long.
    pub(super) fn overdue(&mut self, now: Instant) -> Vec<Open> {
        let mut overdue = Vec::new();
        while let Some((_, open)) = self.held.pop_front_if(|(deadline, _)| *deadline <= now) {
            overdue.push(open);
        }
        overdue
    }
}
