//! The jobs that have runs that wait: who of them is to be promoted, and whose catch-up waits.
//!
//! What is known here comes from a watch of the overlap bucket, and only says where to look; the
//! entry itself decides.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use taskparty_common::job::{MisfirePolicy, Overlap};
use taskparty_common::name::JobId;
use taskparty_common::overlap::Places;
use taskparty_nats::bucket;

use super::take_over::TakeOver;
use super::{Engine, Happening};
use crate::overlap;

/// What the last seen entry of a job says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Seen {
    active: usize,
    waiting: bool,
    /// A run has its place and is to be dispatched.
    due: bool,
}

impl Seen {
    /// Whether a run can be given a place, of `most` that there are, or has one and is to be
    /// dispatched.
    fn is_open(&self, most: usize) -> bool {
        self.due || (self.waiting && self.active < most)
    }
}

/// The entries of the overlap bucket that say anything.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    seen: HashMap<JobId, Seen>,
    /// Jobs that are being looked after just now.
    busy: HashSet<JobId>,
    /// Jobs whose missed instants wait for their turn, with the time at which the next was due.
    held_back: HashMap<JobId, i64>,
}

impl Waiting {
    /// The entry of `job` is so now; nothing: it is gone.
    pub(super) fn take_in(&mut self, job: JobId, places: Option<&Places>) {
        let seen = places.map(|places| Seen {
            active: places.active.len(),
            waiting: !places.waiting.is_empty(),
            due: places.due().next().is_some(),
        });
        match seen.filter(|seen| seen.active > 0 || seen.waiting) {
            Some(seen) => self.seen.insert(job, seen),
            None => self.seen.remove(&job),
        };
    }

    /// Whether a run of `job` goes on or waits.
    pub(super) fn is_known(&self, job: &JobId) -> bool {
        self.seen.contains_key(job)
    }

    /// Whether a further run of `job` has to wait, when there are places for `most`.
    pub(super) fn is_full(&self, job: &JobId, most: usize) -> bool {
        self.seen.get(job).is_some_and(|seen| seen.waiting || seen.active >= most)
    }

    /// Whether something is to be done for `job`, of which `most` runs may go on at once; then it
    /// counts as being done.
    pub(super) fn begin(&mut self, job: &JobId, most: usize) -> bool {
        let open = self.seen.get(job).is_some_and(|seen| seen.is_open(most));
        open && self.busy.insert(job.clone())
    }

    /// Whether runs of `job`, which is gone, wait; then they count as being ended.
    pub(super) fn begin_to_end(&mut self, job: &JobId) -> bool {
        let waits = self.seen.get(job).is_some_and(|seen| seen.due || seen.waiting);
        waits && self.busy.insert(job.clone())
    }

    /// It was done, or tried.
    pub(super) fn end(&mut self, job: &JobId) {
        self.busy.remove(job);
    }

    /// The jobs for which something may be to be done.
    pub(super) fn open(&self) -> Vec<JobId> {
        let may =
            |(job, seen): &(&JobId, &Seen)| (seen.due || seen.waiting) && !self.busy.contains(*job);
        let open = self.seen.iter().filter(may);
        open.map(|(job, _)| job.clone()).collect()
    }

    /// The missed instants of `job` wait; the next was due at `due_ms`.
    pub(super) fn hold_back(&mut self, job: &JobId, due_ms: i64) {
        self.held_back.insert(job.clone(), due_ms);
    }

    /// Whether missed instants of `job` wait.
    pub(super) fn holds_back(&self, job: &JobId) -> bool {
        self.held_back.contains_key(job)
    }

    /// The missed instants of `job` wait no more; when the next was due, if they did.
    pub(super) fn let_go(&mut self, job: &JobId) -> Option<i64> {
        self.held_back.remove(job)
    }
}

impl Engine {
    /// An entry of the overlap bucket changed.
    pub(super) fn places_changed(&mut self, change: bucket::Change) {
        let bucket::Change::Entry(entry) = change else { return };
        let Ok(job) = JobId::new(&entry.key) else { return };
        let places = entry.value.as_ref().map(|value| overlap::read(&job, value));
        self.firing.queues.remember(&job, &entry, places.as_ref());
        self.waiting.take_in(job.clone(), places.as_ref());
        self.look_after_waiting(&job);
        if self.waiting.holds_back(&job)
            && !self.waiting.is_full(&job, self.places_of(&job))
            && let Some(due) = self.waiting.let_go(&job)
        {
            self.under_way.end(due);
            self.arm(&job);
        }
    }

    /// How many runs of `job` that take turns may go on at once, as it is now: also of a job that may
    /// overlap itself, of which only some runs were asked to take turns.
    fn places_of(&self, job: &JobId) -> usize {
        let known = self.jobs.get(job).and_then(|kept| kept.peek());
        known.map_or(1, |definition| definition.spec().places().unwrap_or(1))
    }

    /// Gives waiting runs of `job` their places, if it is this member's; ends them if it is gone.
    pub(super) fn look_after_waiting(&mut self, job: &JobId) {
        let settled = !self.cut_off && matches!(self.take_over, TakeOver::Settled);
        if !settled || !self.owns(job) {
            return;
        }
        // What is left undone is found again at the next tick.
        let (firing, job) = (self.firing.clone(), job.clone());
        if self.jobs.exists(&job) {
            let most = self.places_of(&job);
            if self.waiting.begin(&job, most) {
                self.tasks.spawn(async move {
                    firing.promote(&job, most).await;
                    Happening::LookedAfter(job)
                });
            }
        } else if self.waiting.begin_to_end(&job) {
            self.tasks.spawn(async move {
                firing.end_waiters(&job).await;
                Happening::LookedAfter(job)
            });
        }
    }

    /// Whether the missed instants of `job` wait: an earlier run goes on, and all are to run in
    /// turn. They take no lock before it is their turn, so that none is dropped.
    pub(super) fn must_wait(&mut self, job: &JobId, now: DateTime<Utc>) -> bool {
        if !self.waiting.is_known(job) || !self.waiting.is_full(job, self.places_of(job)) {
            return false;
        }
        let Some(scheduled) = self.scheduled.get_mut(job) else { return false };
        let Some(definition) = scheduled.job().whole() else { return false };
        let spec = definition.spec();
        let in_turn = spec.overlap == Overlap::Queue && spec.misfire.policy == MisfirePolicy::All;
        let grace = spec.misfire.grace;
        let Some(due) = scheduled.next_due().filter(|_| in_turn) else { return false };
        if (now - due).to_std().is_ok_and(|late| late >= grace) {
            self.under_way.begin(due.timestamp_millis());
            self.waiting.hold_back(job, due.timestamp_millis());
            return true;
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskparty_common::overlap::WhenFull;
    use uuid::Uuid;

    #[test]
    fn a_job_is_looked_after_when_a_waiting_run_can_go_on() {
        let (mut waiting, mut places) = (Waiting::default(), Places::default());
        let job = JobId::new("a").unwrap();
        let wait = WhenFull::Wait { limit: None };
        places.admit(Uuid::from_u128(1), 1, wait);
        places.admit(Uuid::from_u128(2), 1, wait);
        waiting.take_in(job.clone(), Some(&places));
        assert!(waiting.is_full(&job, 1) && !waiting.begin(&job, 1));
        places.release(Uuid::from_u128(1));
        waiting.take_in(job.clone(), Some(&places));
        assert!(waiting.begin(&job, 1) && !waiting.begin(&job, 1), "once at a time");
        waiting.end(&job);
        places.promote(1);
        waiting.take_in(job.clone(), Some(&places));
        assert!(waiting.begin(&job, 1), "due");
        places.dispatched(Uuid::from_u128(2));
        places.release(Uuid::from_u128(2));
        waiting.take_in(job.clone(), Some(&places));
        assert!(!waiting.is_full(&job, 1) && waiting.open().is_empty());
    }
}
