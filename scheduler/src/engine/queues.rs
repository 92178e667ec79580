//! The jobs that have runs that wait: who of them is to be promoted and when, and whose catch-up
//! waits.
//!
//! What is known here comes from a watch of the overlap bucket, and only says where to look; the
//! entry itself decides.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use taskparty_common::job::{MisfirePolicy, Overlap};
use taskparty_common::name::JobId;
use taskparty_common::overlap::Places;
use taskparty_common::rate::Starts;
use taskparty_nats::bucket;

use super::take_over::TakeOver;
use super::timer::Timer;
use super::{Engine, Happening};
use crate::fire::More;
use crate::overlap::{self, Bounds};

/// Jobs whose rates let runs begin that are looked at in one go, before the engine listens again.
const AT_ONCE: usize = 512;

/// How soon a job is looked at again whose rate let a run begin while it was looked after.
const SOON_MS: i64 = 100;

/// What the last seen entry of a job says.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    active: usize,
    waiting: bool,
    /// A run has its place and is to be dispatched.
    due: bool,
    /// When runs began lately, while one waits.
    starts: Starts,
    /// Those that wait may go on beside others, if the job has no limits.
    beside: bool,
}

/// When something is to be done for a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Now,
    /// When its rate lets a run begin, in milliseconds.
    At(i64),
    /// When its entry changes.
    Later,
}

impl Seen {
    /// When a run can be given a place, inside `bounds`; at once, when one has its place and is to
    /// be dispatched.
    fn next(&self, bounds: Bounds, now_ms: i64) -> Next {
        if self.due {
            return Next::Now;
        }
        if !self.waiting || self.active >= bounds.places {
            return Next::Later;
        }
        match bounds.rate.map(|rate| self.starts.next(rate, now_ms)) {
            // What a clock that was set back has left is put right there.
            Some(at) if at > now_ms && !self.starts.are_ahead(now_ms) => Next::At(at),
            _ => Next::Now,
        }
    }
}

/// The entries of the overlap bucket that say anything.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// Each is due when its rate lets a run that waits begin.
    seen: Timer<Seen>,
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
            starts: if places.waiting.is_empty() {
                Starts::default()
            } else {
                places.starts.clone()
            },
            beside: places.beside,
        });
        match seen.filter(|seen| seen.active > 0 || seen.waiting) {
            Some(seen) => self.seen.insert(job, seen),
            None => drop(self.seen.remove(&job)),
        }
    }

    /// Whether a run of `job` goes on or waits.
    pub(super) fn is_known(&self, job: &JobId) -> bool {
        self.seen.get(job).is_some()
    }

    /// Whether a further run of `job` has to wait, when there are places for `most`.
    pub(super) fn is_full(&self, job: &JobId, most: usize) -> bool {
        self.seen.get(job).is_some_and(|seen| seen.waiting || seen.active >= most)
    }

    /// Whether something is to be done for `job` at `now_ms`, inside `bounds`; then it counts as
    /// being done. What is to be done later has its time.
    pub(super) fn begin(&mut self, job: &JobId, bounds: Bounds, now_ms: i64) -> bool {
        self.time(job, bounds, now_ms) == Next::Now && self.busy.insert(job.clone())
    }

    /// Sets the time at which something is to be done for `job`, if there is one.
    fn time(&mut self, job: &JobId, bounds: Bounds, now_ms: i64) -> Next {
        let next = self.seen.get(job).map_or(Next::Later, |seen| seen.next(bounds, now_ms));
        let at = if let Next::At(at) = next { Some(at) } else { None };
        self.seen.set(job, at);
        next
    }

    /// As [`Waiting::time`], after something was done: what its rate has let begin meanwhile is
    /// looked at again soon.
    fn time_again(&mut self, job: &JobId, bounds: Bounds, now_ms: i64) {
        if self.time(job, bounds, now_ms) == Next::Now && bounds.rate.is_some() {
            self.seen.set(job, Some(now_ms + SOON_MS));
        }
    }

    /// When the rate of any job lets a waiting run begin.
    pub(super) fn next_due(&self) -> Option<i64> {
        self.seen.next_due()
    }

    /// Takes out a job whose rate lets a waiting run begin at `now_ms`.
    pub(super) fn pop_due(&mut self, now_ms: i64) -> Option<JobId> {
        self.seen.pop_due(now_ms)
    }

    /// The waiting runs of `job` are looked after by another member, or not now.
    fn leave(&mut self, job: &JobId) {
        self.seen.set(job, None);
    }

    /// Whether the runs of `job`, which has no limits, may go on beside each other.
    fn may_go_beside(&self, job: &JobId) -> bool {
        self.seen.get(job).is_some_and(|seen| seen.beside)
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
            && !self.waiting.is_full(&job, self.bounds_of(&job).places)
            && let Some(due) = self.waiting.let_go(&job)
        {
            self.under_way.end(&job, due);
            self.arm(&job);
        }
    }

    /// How many runs of `job` that wait may go on and begin, as it is now: also of a job that may
    /// overlap itself, of which only some runs were asked to take turns, or which has no rate any
    /// more.
    fn bounds_of(&self, job: &JobId) -> Bounds {
        let known = self.jobs.get(job).and_then(|kept| kept.peek());
        let bounds = known.and_then(|definition| Bounds::of(definition.spec()));
        let open =
            || if self.waiting.may_go_beside(job) { Bounds::open() } else { Bounds::default() };
        bounds.unwrap_or_else(open)
    }

    /// Looks after the waiting runs whose rates let them begin now.
    pub(super) fn look_after_rated(&mut self) {
        let now_ms = self.firing.clock.now_ms();
        for _ in 0..AT_ONCE {
            let Some(job) = self.waiting.pop_due(now_ms) else { return };
            self.look_after_waiting(&job);
        }
    }

    /// The waiting runs of `job` were looked after.
    pub(super) fn looked_after(&mut self, job: &JobId, more: More) {
        self.waiting.end(job);
        match more {
            More::AtOnce => self.look_after_waiting(job),
            More::Later if self.owns(job) => {
                let (bounds, now_ms) = (self.bounds_of(job), self.firing.clock.now_ms());
                self.waiting.time_again(job, bounds, now_ms);
            }
            More::Later => {}
        }
    }

    /// Gives waiting runs of `job` their places, if it is this member's; ends them if it is gone.
    pub(super) fn look_after_waiting(&mut self, job: &JobId) {
        let settled = !self.cut_off && matches!(self.take_over, TakeOver::Settled);
        if !settled || !self.owns(job) {
            return self.waiting.leave(job);
        }
        // What is left undone is found again at the next tick.
        let (firing, job) = (self.firing.clone(), job.clone());
        if self.jobs.exists(&job) {
            let bounds = self.bounds_of(&job);
            if self.waiting.begin(&job, bounds, firing.clock.now_ms()) {
                self.tasks.spawn(async move {
                    let more = firing.promote(&job, bounds).await;
                    Happening::LookedAfter(job, more)
                });
            }
        } else if self.waiting.begin_to_end(&job) {
            self.tasks.spawn(async move {
                firing.end_waiters(&job).await;
                Happening::LookedAfter(job, More::Later)
            });
        }
    }

    /// Whether the missed instants of `job` wait: an earlier run goes on, and all are to run in
    /// turn. They take no lock before it is their turn, so that none is dropped.
    pub(super) fn must_wait(&mut self, job: &JobId, now: DateTime<Utc>) -> bool {
        // It is decided anew, as after an edit: what was held back before is no longer.
        if let Some(before) = self.waiting.let_go(job) {
            self.under_way.end(job, before);
        }
        if !self.waiting.is_known(job) || !self.waiting.is_full(job, self.bounds_of(job).places) {
            return false;
        }
        let Some(scheduled) = self.scheduled.get_mut(job) else { return false };
        let Some(definition) = scheduled.job().whole() else { return false };
        let spec = definition.spec();
        let waits = match spec.overlap {
            Overlap::Queue => true,
            Overlap::Allow => spec.rate.is_some(),
            Overlap::Skip | Overlap::Replace => false,
        };
        let in_turn = waits && spec.misfire.policy == MisfirePolicy::All;
        let grace = spec.misfire.grace;
        let Some(due) = scheduled.next_due().filter(|_| in_turn) else { return false };
        if (now - due).to_std().is_ok_and(|late| late >= grace) {
            self.under_way.begin(job, due.timestamp_millis());
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
        let one = Bounds::default();
        assert!(waiting.is_full(&job, 1) && !waiting.begin(&job, one, 0));
        places.release(Uuid::from_u128(1));
        waiting.take_in(job.clone(), Some(&places));
        assert!(waiting.begin(&job, one, 0) && !waiting.begin(&job, one, 0), "once at a time");
        waiting.end(&job);
        places.promote(1);
        waiting.take_in(job.clone(), Some(&places));
        assert!(waiting.begin(&job, one, 0), "due");
        places.dispatched(Uuid::from_u128(2));
        places.release(Uuid::from_u128(2));
        waiting.take_in(job.clone(), Some(&places));
        assert!(!waiting.is_full(&job, 1) && waiting.open().is_empty());
    }

    #[test]
    fn a_job_whose_run_waits_for_its_rate_is_looked_after_when_that_lets_it_begin() {
        let (mut waiting, mut places) = (Waiting::default(), Places::default());
        let job = JobId::new("a").unwrap();
        let rated = |text: &str| Bounds { places: 10, rate: Some(text.parse().unwrap()) };
        let wait = WhenFull::Wait { limit: None };
        for n in 0..3 {
            places.admit(Uuid::from_u128(n), rated("2/s").at(100), wait);
        }
        waiting.take_in(job.clone(), Some(&places));
        assert!(!waiting.begin(&job, rated("2/s"), 200));
        assert_eq!((waiting.next_due(), waiting.pop_due(1_099)), (Some(1_100), None));
        assert_eq!(waiting.pop_due(1_100), Some(job.clone()));
        assert!(!waiting.begin(&job, rated("2/m"), 1_100), "the rate has changed");
        assert_eq!(waiting.next_due(), Some(60_100));
        let earlier = -3_600_000;
        assert!(waiting.begin(&job, rated("2/m"), earlier), "the clock was set back");
        waiting.end(&job);
        waiting.leave(&job);
        assert_eq!(waiting.next_due(), None);
        assert!(waiting.begin(&job, Bounds { rate: None, ..rated("2/m") }, 200), "it has none now");
    }
}
