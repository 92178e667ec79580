//! One job's place in its schedule.
//!
//! *Invariant: every instant between the job's `since` and its place is recorded, or stands in
//! `decided`, or is accounted for by someone else.* When a decided instant has to be decided
//! again, the place goes back to it, and what was decided after it is not decided twice; and it
//! stays under way, for the watermark, until the timer has it again.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::fire::Intent;

use super::step::{Accounted, Step, next_due, next_step, spread_of};
use super::timer::Timed;
use crate::definition::Definition;
use crate::kept::Kept;
use crate::recover;

/// A job that is being fired. Small: most jobs are at rest.
#[derive(Debug)]
pub(super) struct Scheduled {
    /// The job as it is now.
    job: Arc<Kept>,
    /// The instant up to which the job's instants are decided.
    place: Place,
    /// What is open of its past; nothing while it is at rest.
    work: Option<Box<Work>>,
}

/// An instant, in nanoseconds since 1970: smaller than a `DateTime`, and as exact.
#[derive(Debug, Clone, Copy)]
struct Place(i64);

impl Place {
    /// The instant, or what is next to it of 1677 to 2262.
    fn of(at: DateTime<Utc>) -> Self {
        let outside = if at < DateTime::UNIX_EPOCH { i64::MIN } else { i64::MAX };
        Self(at.timestamp_nanos_opt().unwrap_or(outside))
    }

    fn at(self) -> DateTime<Utc> {
        DateTime::from_timestamp_nanos(self.0)
    }
}

/// What is open of a job's past.
#[derive(Debug, Default)]
struct Work {
    /// Decided instants, and whether they are over; none before the oldest that is not.
    decided: BTreeMap<i64, Decided>,
    /// Instants after the place that need no decision.
    accounted: Accounted,
    /// The latest of the missed instants that are being left out: it runs.
    runs: Option<DateTime<Utc>>,
    /// When those were due that have to be decided again, until the job is armed.
    again: Vec<i64>,
    /// One of the job's missed instants is being fired: the next one waits for it.
    catching_up: bool,
}

impl Work {
    /// Whether nothing is open any more of a job that is decided up to `place`.
    fn is_over(&self, place: DateTime<Utc>) -> bool {
        self.decided.is_empty()
            && !self.catching_up
            && self.runs.is_none()
            && self.again.is_empty()
            && self.accounted.is_over(place)
    }
}

/// How far a decided instant is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decided {
    UnderWay { first: i64 },
    Over { first: i64 },
}

impl Scheduled {
    /// A job whose instants up to `place` are handled, and those in `accounted`.
    pub(super) fn new(job: Arc<Kept>, place: DateTime<Utc>, accounted: Option<Accounted>) -> Self {
        let work = accounted.map(|accounted| Work { accounted, ..Work::default() });
        Self { job, place: Place::of(place), work: work.map(Box::new) }
    }

    /// A job of which everything that was due up to `handled` is handled, and what is in `accounted`.
    pub(super) fn after(
        job: Arc<Kept>,
        handled: DateTime<Utc>,
        accounted: Option<Accounted>,
    ) -> Self {
        // One whose own text cannot be read is never due.
        let place = job.whole().map_or(handled, |whole| recover::place(&whole.job, handled));
        Self::new(job, place, accounted)
    }

    /// With the time at which it is next due.
    pub(super) fn timed(self) -> Timed<Self> {
        let due = self.next_due();
        Timed::new(self, due.map(|due| due.timestamp_millis()))
    }

    /// The job as it is now.
    pub(super) fn job(&self) -> &Kept {
        &self.job
    }

    /// Takes in a change that leaves the job's past as it is.
    pub(super) fn redefine(&mut self, job: Arc<Kept>) {
        self.job = job;
        if let Some(work) = &mut self.work {
            work.runs = None;
        }
    }

    /// When the job is next due; nothing when it never is again.
    pub(super) fn next_due(&self) -> Option<DateTime<Utc>> {
        let definition = self.job.whole()?;
        let none = Accounted::default();
        let accounted = self.work.as_deref().map_or(&none, |work| &work.accounted);
        next_due(&definition.job, self.place.at(), accounted)
    }

    /// Decides the next step, if anything is due at `now`, and moves the place behind it.
    pub(super) fn decide(&mut self, now: DateTime<Utc>) -> Option<(Step, Arc<Definition>)> {
        let definition = self.job.whole()?;
        let work = self.work.get_or_insert_default();
        let step = next_step(&definition.job, self.place.at(), now, &work.accounted, work.runs)?;
        let first = first_of(&step).timestamp_millis();
        work.decided.insert(step.at.timestamp_millis(), Decided::UnderWay { first });
        work.catching_up = step.is_missed();
        (self.place, work.runs) = (Place::of(step.at), step.runs);
        Some((step, definition))
    }

    /// The fired record of the step at `at` is stored.
    pub(super) fn recorded(&mut self, at: DateTime<Utc>) {
        let Some(work) = &mut self.work else { return };
        if let Some(decided) = work.decided.get_mut(&at.timestamp_millis())
            && let Decided::UnderWay { first } = *decided
        {
            *decided = Decided::Over { first };
        }
        while let Some(entry) = work.decided.first_entry()
            && matches!(entry.get(), Decided::Over { .. })
        {
            entry.remove();
        }
        self.rest();
    }

    /// Whether one of the job's missed instants is being fired: the next one waits for it.
    pub(super) fn is_catching_up(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.catching_up)
    }

    /// The missed instant was fired, or not.
    pub(super) fn caught_up(&mut self) {
        if let Some(work) = &mut self.work {
            work.catching_up = false;
        }
        self.rest();
    }

    fn rest(&mut self) {
        if self.work.as_ref().is_some_and(|work| work.is_over(self.place.at())) {
            self.work = None;
        }
    }

    /// The instants after the place that need no decision.
    pub(super) fn accounted(&self) -> Accounted {
        self.work.as_deref().map(|work| work.accounted.clone()).unwrap_or_default()
    }

    /// Someone else has locked these.
    pub(super) fn locked(&mut self, intents: &[&Intent]) {
        let accounted = &mut self.work.get_or_insert_default().accounted;
        for intent in intents {
            let first = intent.skipped.as_ref().map(|skipped| skipped.first);
            accounted.add(intent.fire_time, first);
        }
    }

    /// The step at `at`, which was due at `due_ms`, has to be decided again, and is under way until
    /// [`Scheduled::take_again`] says that it is not; false when it was never decided here.
    pub(super) fn undecided(&mut self, at: DateTime<Utc>, due_ms: i64) -> bool {
        let Some(work) = &mut self.work else { return false };
        let Some(decided) = work.decided.remove(&at.timestamp_millis()) else { return false };
        work.again.push(due_ms);
        let (Decided::UnderWay { first } | Decided::Over { first }) = decided;
        // An earlier one may have had to be decided again meanwhile, and passed over this one.
        work.accounted.remove(at, DateTime::from_timestamp_millis(first));
        let back = |ms: i64| DateTime::from_timestamp_millis(ms - 1);
        let before = back(first).map_or(self.place.at(), |before| before.min(self.place.at()));
        self.place = Place::of(before);
        for (at, decided) in work.decided.range(at.timestamp_millis()..) {
            let (Decided::UnderWay { first } | Decided::Over { first }) = *decided;
            let instant = DateTime::from_timestamp_millis;
            if let Some(at) = instant(*at) {
                work.accounted.add(at, instant(first));
            }
        }
        true
    }

    /// The timer has the job, or nothing of it is decided any more: the due times of what had to be
    /// decided again, which is under way no longer.
    pub(super) fn take_again(&mut self) -> Vec<i64> {
        self.work.as_mut().map(|work| std::mem::take(&mut work.again)).unwrap_or_default()
    }
}

/// The first instant that a step is about.
pub(super) fn first_of(step: &Step) -> DateTime<Utc> {
    step.skipped.as_ref().map_or(step.at, |skipped| skipped.first)
}

/// When the step's first instant was due.
pub(super) fn due_of(step: &Step, definition: &Definition) -> DateTime<Utc> {
    let spread: TimeDelta = spread_of(&definition.job);
    first_of(step).checked_add_signed(spread).unwrap_or(step.at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use taskparty_common::fire::{FireId, Plan};
    use taskparty_common::job::{Job, JobSpec, Unknown};
    use taskparty_common::name::Instance;
    use taskparty_common::outcome::Trigger;

    fn job_each_10s(policy: &str) -> (Arc<Kept>, DateTime<Utc>) {
        let since = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let spec = json!({ "id": "a", "app": "shop", "handler": "settle",
            "schedule": { "fixed_rate": "10s" }, "misfire": { "policy": policy } });
        let job = Job::new(JobSpec::from_json(&spec, Unknown::Refuse).unwrap(), since, "");
        let kept = Kept::new(job.spec.id.clone(), job, 1, None).unwrap();
        (Arc::new(kept), since)
    }

    #[test]
    fn whatever_has_to_be_decided_again_is_in_whatever_order_that_is_found() {
        for order in [[10, 20, 30], [30, 20, 10], [20, 10, 30], [10, 30, 20]] {
            let (kept, since) = job_each_10s("all");
            let at = |seconds: i64| since + TimeDelta::seconds(seconds);
            let mut scheduled = Scheduled::new(kept, at(0), None);
            let decide = |scheduled: &mut Scheduled| {
                [10, 20, 30].map(|now| scheduled.decide(at(now)).map(|(step, _)| step.at))
            };
            let all = [10, 20, 30].map(|seconds| Some(at(seconds)));
            assert_eq!(decide(&mut scheduled), all);
            for seconds in order {
                let due = at(seconds).timestamp_millis();
                assert!(scheduled.undecided(at(seconds), due), "{order:?}");
            }
            assert_eq!(scheduled.next_due(), Some(at(10)), "{order:?}");
            assert_eq!(decide(&mut scheduled), all, "{order:?}");
        }
    }

    #[test]
    fn what_others_have_locked_of_missed_instants_is_not_left_out_again() {
        let (kept, since) = job_each_10s("skip");
        let at = |seconds: i64| since + TimeDelta::seconds(seconds);
        let id = kept.id().clone();
        let mut scheduled = Scheduled::new(kept, at(0), None);
        let count = |step: &Step| step.skipped.as_ref().map(|skipped| skipped.count);
        let (step, definition) = scheduled.decide(at(1_000)).unwrap();
        assert_eq!((step.at, count(&step)), (at(960), Some(96)));
        let id = FireId::at(id, at(500));
        let intent = Intent {
            v: 1,
            run: id.run(&Default::default(), 0, at(500)),
            job: id.job,
            revision: 1,
            since: at(0),
            owner: Instance::new("other").unwrap(),
            trigger: Trigger::Schedule,
            fire_time: at(500),
            planned_at: at(500),
            plan: Plan::whole(1),
            skipped: None,
            definition: definition.json.as_ref().to_owned(),
            params: None,
            instance: None,
        };
        let due = step.at.timestamp_millis();
        assert!(scheduled.undecided(step.at, due) && !scheduled.undecided(step.at, due));
        assert_eq!((scheduled.take_again(), scheduled.take_again()), (vec![due], vec![]));
        scheduled.locked(&[&intent]);
        let (step, _) = scheduled.decide(at(1_000)).unwrap();
        assert_eq!((step.at, count(&step)), (at(960), Some(95)));
    }
}
