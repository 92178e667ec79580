//! What to do next for one job: pure, from its schedule, its place in it and the time.
//!
//! A job walks through its instants in order. Each step takes it to one instant: fired on time
//! (or a little late), caught up with, or recorded as left out. *Invariant: no step passes an
//! instant that it does not account for.*

use std::collections::HashSet;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::fire::Skipped;
use taskparty_common::job::{Job, MisfirePolicy};
use taskparty_common::outcome::{SkipReason, Trigger};
use taskparty_common::schedule::{OccurrenceKind, Schedule, spread_offset, upcoming};

/// Instants older than this are recorded and never fired: the records of what was fired are kept
/// for seven days, and beyond them nobody can tell.
pub(crate) const OLDEST: TimeDelta = TimeDelta::days(6);

/// How long what was sent in time may be on its way: as long as a process or a connection can stand
/// still and yet go on. After its grace an instant can still come to be locked for as long, by a scheduler
/// that asked in time (a lock is asked for again for up to 20 s), and a dispatch still come.
pub(crate) const ON_ITS_WAY: TimeDelta = TimeDelta::seconds(40);

/// What is to be done about one instant, or about a stretch of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Step {
    /// The instant; of a stretch the last.
    pub(crate) at: DateTime<Utc>,
    /// Why the job is due.
    pub(crate) trigger: Trigger,
    /// Present when the instants are recorded and not run.
    pub(crate) skipped: Option<Skipped>,
    /// The one of many missed instants that runs: all before it are left out with these, also the
    /// merely late ones.
    pub(crate) runs: Option<DateTime<Utc>>,
}

impl Step {
    /// The instant runs.
    fn of(at: DateTime<Utc>, trigger: Trigger) -> Self {
        Self { at, trigger, skipped: None, runs: None }
    }

    /// Whether the instant is caught up with, or left out since it is too late.
    pub(super) fn is_missed(&self) -> bool {
        self.trigger == Trigger::Misfire
    }
}

/// The instants of a job that are accounted for already, though the job's place is before them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Accounted {
    single: HashSet<i64>,
    stretches: Vec<(i64, i64)>,
}

impl Accounted {
    /// Notes an instant, or with `first` all of them from there.
    pub(crate) fn add(&mut self, at: DateTime<Utc>, first: Option<DateTime<Utc>>) {
        match stretch(at, first) {
            (first, at) if first < at => self.stretches.push((first, at)),
            (_, at) => {
                self.single.insert(at);
            }
        }
    }

    /// Takes back what [`Accounted::add`] noted of the same instants.
    pub(crate) fn remove(&mut self, at: DateTime<Utc>, first: Option<DateTime<Utc>>) {
        match stretch(at, first) {
            (first, at) if first < at => self.stretches.retain(|known| *known != (first, at)),
            (_, at) => {
                self.single.remove(&at);
            }
        }
    }

    /// Whether nothing in here is after `place`.
    pub(crate) fn is_over(&self, place: DateTime<Utc>) -> bool {
        let place = place.timestamp_millis();
        self.single.iter().all(|at| *at <= place)
            && self.stretches.iter().all(|(_, last)| *last <= place)
    }

    /// Whether `at` is accounted for.
    pub(crate) fn has(&self, at: DateTime<Utc>) -> bool {
        let at = at.timestamp_millis();
        self.single.contains(&at)
            || self.stretches.iter().any(|(first, last)| (*first..=*last).contains(&at))
    }
}

/// From where to where: the same twice of one instant.
fn stretch(at: DateTime<Utc>, first: Option<DateTime<Utc>>) -> (i64, i64) {
    (first.unwrap_or(at).timestamp_millis(), at.timestamp_millis())
}

/// The offset between a job's nominal instants and the times at which it is due.
pub(crate) fn spread_of(job: &Job) -> TimeDelta {
    let Some(schedule) = &job.spec.schedule else { return TimeDelta::zero() };
    let offset = spread_offset(job.spec.id.as_str(), schedule.spread());
    TimeDelta::from_std(offset).unwrap_or_default()
}

/// When `job`, whose place is `place`, is next due, but for what is accounted for.
pub(crate) fn next_due(
    job: &Job,
    place: DateTime<Utc>,
    accounted: &Accounted,
) -> Option<DateTime<Utc>> {
    next_instant(job, place, accounted)?.checked_add_signed(spread_of(job))
}

/// The first instant of `job` after `place` that is not accounted for.
pub(crate) fn next_instant(
    job: &Job,
    place: DateTime<Utc>,
    accounted: &Accounted,
) -> Option<DateTime<Utc>> {
    let schedule = active_schedule(job)?;
    occurrences(schedule, job, place).map(|(at, _)| at).find(|at| !accounted.has(*at))
}

/// The schedule, unless the job is paused until somebody resumes it. A pause with an end is over
/// for the instants after its end, and a job's place is never before that.
fn active_schedule(job: &Job) -> Option<&Schedule> {
    let paused = job.meta.paused.as_ref().is_some_and(|paused| paused.until.is_none());
    job.spec.schedule.as_ref().filter(|_| !paused)
}

fn occurrences(
    schedule: &Schedule,
    job: &Job,
    place: DateTime<Utc>,
) -> impl Iterator<Item = (DateTime<Utc>, OccurrenceKind)> {
    // A fixed delay has one instant of its own, its first; the log writer chains the others.
    let since = job.meta.since;
    let first = schedule.first_delayed(since).map(|first| first.max(since));
    let first =
        first.filter(|first| *first > place && schedule.until().is_none_or(|until| *first < until));
    let first = first.map(|at| (at, OccurrenceKind::Fire));
    let rest = upcoming(schedule, job.meta.anchor, place).map(|o| (o.at, o.kind));
    first.into_iter().chain(rest)
}

/// The next step of `job` from `place`, if anything is due at `now`; `runs` is what the step before
/// said of it.
pub(crate) fn next_step(
    job: &Job,
    place: DateTime<Utc>,
    now: DateTime<Utc>,
    accounted: &Accounted,
    runs: Option<DateTime<Utc>>,
) -> Option<Step> {
    let schedule = active_schedule(job)?;
    let due_by = now - spread_of(job);
    let all_due = || {
        let until_now = occurrences(schedule, job, place).take_while(|(at, _)| *at <= due_by);
        until_now.filter(|(at, _)| !accounted.has(*at))
    };
    let mut due = all_due();
    let (first, kind) = due.next()?;
    if kind == OccurrenceKind::Gap {
        let skipped = Skipped { reason: SkipReason::Gap, count: 1, first };
        return Some(Step { skipped: Some(skipped), ..Step::of(first, Trigger::Schedule) });
    }
    let misfire = &job.spec.misfire;
    let missed = |at: DateTime<Utc>| due_by - at >= delta(misfire.grace);
    if !missed(first) && runs.is_none_or(|runs| first >= runs) {
        return Some(Step::of(first, Trigger::Schedule));
    }
    let oldest = delta(misfire.window).min(OLDEST);
    let too_old = |at: DateTime<Utc>| due_by - at > oldest;
    // Only the last instant of a record of several is locked. So the others are such as nobody can
    // lock any more; of those that somebody can, each has a record, and a lock, of its own.
    let settled = delta(misfire.grace).checked_add(&ON_ITS_WAY).unwrap_or(TimeDelta::MAX);
    let is_settled = |at: DateTime<Utc>| due_by - at >= settled;
    // The stretch of instants that are left out together, beginning at `first`.
    let left_out =
        |until: &dyn Fn(DateTime<Utc>) -> bool,
         due: &mut dyn Iterator<Item = (DateTime<Utc>, OccurrenceKind)>| {
            let (mut last, mut count) = (first, 1_u64);
            for (at, kind) in due {
                if kind != OccurrenceKind::Fire || !is_settled(last) || !until(at) {
                    break;
                }
                (last, count) = (at, count + 1);
            }
            (last, count)
        };
    let record = |(at, count)| Step {
        skipped: Some(Skipped { reason: SkipReason::Misfire, count, first }),
        ..Step::of(at, Trigger::Misfire)
    };
    let run = |at| Step::of(at, Trigger::Misfire);
    Some(match misfire.policy {
        MisfirePolicy::Skip => record(left_out(&missed, &mut due)),
        _ if too_old(first) => record(left_out(&too_old, &mut due)),
        MisfirePolicy::All => run(first),
        // Record first, run last: whoever goes on after a crash finds the one that runs undone.
        MisfirePolicy::Once => match latest(&mut due) {
            None => run(first),
            Some(latest) => {
                let mut due = all_due().skip(1);
                Step { runs: Some(latest), ..record(left_out(&|at| at < latest, &mut due)) }
            }
        },
    })
}

/// The latest of the fires in a row that are due.
fn latest(due: &mut dyn Iterator<Item = (DateTime<Utc>, OccurrenceKind)>) -> Option<DateTime<Utc>> {
    due.take_while(|(_, kind)| *kind == OccurrenceKind::Fire).last().map(|(at, _)| at)
}

fn delta(duration: std::time::Duration) -> TimeDelta {
    TimeDelta::from_std(duration).unwrap_or(TimeDelta::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;
    use taskparty_common::job::{JobSpec, Unknown};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + seconds, 0).unwrap()
    }

    fn job(fields: serde_json::Value) -> Job {
        let mut spec = json!({ "id": "a", "app": "shop", "handler": "settle", "overlap": "allow",
            "schedule": { "fixed_rate": "30s" } });
        for (field, value) in fields.as_object().unwrap() {
            spec[field] = value.clone();
        }
        Job::new(JobSpec::from_json(&spec, Unknown::Refuse).unwrap(), at(0), "")
    }

    /// All steps from `place` to `now`, as (instant, "run" or what is recorded).
    fn walk(job: &Job, place: i64, now: i64) -> Vec<(i64, String)> {
        let (mut place, mut runs) = (at(place), None);
        let none = Accounted::default();
        std::iter::from_fn(|| {
            let step = next_step(job, place, at(now), &none, runs)?;
            (place, runs) = (step.at, step.runs);
            let what = match step.skipped {
                Some(skipped) => format!("{} {}", skipped.count, skipped.reason),
                None => step.trigger.to_string(),
            };
            Some(((step.at - at(0)).num_seconds(), what))
        })
        .collect()
    }

    fn policy(policy: &str) -> Job {
        job(json!({ "misfire": { "policy": policy } }))
    }

    #[test]
    fn on_time_and_a_little_late_are_no_misfires() {
        for name in ["once", "all", "skip"] {
            assert_eq!(walk(&policy(name), 0, 39), [(30, "schedule".to_owned())], "{name}");
            assert_eq!(walk(&policy(name), 0, 29), [], "{name}");
        }
    }

    #[test]
    fn six_hours_are_caught_up_with_by_policy() {
        // 720 instants, the latest of them 15 s ago.
        let (start, now) = (0, 6 * 3600 + 15);
        let all = walk(&policy("all"), start, now);
        assert_eq!(all.len(), 720);
        assert!(all.iter().all(|(_, what)| what == "misfire"));
        let once = walk(&policy("once"), start, now);
        assert_eq!(once, [(21_570, "719 misfire".to_owned()), (21_600, "misfire".to_owned())]);
        let skip = walk(&policy("skip"), start, now);
        let last = (21_600, "1 misfire".to_owned());
        assert_eq!(skip, [(21_570, "719 misfire".to_owned()), last]);
    }

    #[test]
    fn once_is_once_even_when_the_latest_instant_is_only_late() {
        let once = walk(&policy("once"), 0, 6 * 3600 + 2);
        assert_eq!(once, [(21_570, "719 misfire".to_owned()), (21_600, "schedule".to_owned())]);
        let skip = walk(&policy("skip"), 0, 6 * 3600 + 2);
        assert_eq!(skip, [(21_570, "719 misfire".to_owned()), (21_600, "schedule".to_owned())]);
    }

    #[test]
    fn what_is_older_than_the_window_is_recorded_and_not_run() {
        let spec = json!({ "misfire": { "policy": "all", "window": "2m" } });
        let steps = walk(&job(spec), 0, 300);
        assert_eq!(steps[0], (150, "5 misfire".to_owned()));
        assert_eq!(steps.len(), 6);
        assert_eq!(steps[1], (180, "misfire".to_owned()));
    }

    #[test]
    fn what_may_still_come_to_be_locked_has_a_record_of_its_own() {
        // Every 4 s, with a grace of 10 s: those of the last 50 s each for itself.
        let of = |policy: &str| {
            let spec =
                json!({ "misfire": { "policy": policy }, "schedule": { "fixed_rate": "4s" } });
            walk(&job(spec), 0, 101)
        };
        let one = |at| (at, "1 misfire".to_owned());
        let late = |at| (at, "schedule".to_owned());
        let skip = of("skip");
        assert_eq!(skip[..2], [(52, "13 misfire".to_owned()), one(56)]);
        assert_eq!(skip[9..], [one(88), late(92), late(96), late(100)]);
        let once = of("once");
        assert_eq!(once[..10], skip[..10]);
        assert_eq!(once[10..], [one(92), one(96), late(100)]);
    }

    #[test]
    fn what_someone_else_accounted_for_is_passed_over() {
        let mut accounted = Accounted::default();
        accounted.add(at(120), Some(at(30)));
        accounted.add(at(180), None);
        let job = policy("all");
        assert_eq!(next_instant(&job, at(0), &accounted), Some(at(150)));
        assert_eq!(next_instant(&job, at(150), &accounted), Some(at(210)));
        assert!(accounted.is_over(at(180)) && !accounted.is_over(at(150)));
    }

    #[test]
    fn a_fixed_delay_has_one_instant_of_its_own() {
        let job = job(json!({ "schedule": { "fixed_delay": "30s" } }));
        assert_eq!(walk(&job, -1, 5), [(0, "schedule".to_owned())]);
        assert_eq!(walk(&job, 0, 500), []);
    }

    #[test]
    fn a_gap_is_a_record_of_its_own() {
        let schedule =
            json!({ "cron": "0 30 2 * * ?", "timezone": "America/New_York", "gap": "skip" });
        let job = job(json!({ "schedule": schedule, "misfire": { "policy": "all" } }));
        let before: DateTime<Utc> = "2027-03-13T17:00:00Z".parse().unwrap();
        let step =
            next_step(&job, before, before + TimeDelta::days(1), &Accounted::default(), None)
                .unwrap();
        assert_eq!(step.skipped.map(|skipped| skipped.reason), Some(SkipReason::Gap));
        assert_eq!(step.trigger, Trigger::Schedule);
    }

    proptest! {
        /// However the checks fall, each instant is run or recorded once, in order.
        #[test]
        fn every_instant_is_accounted_for_once(
            name in prop::sample::select(vec!["once", "all", "skip"]),
            window in 10_u32..600,
            checks in prop::collection::vec(0_i64..200, 1..30),
        ) {
            let misfire = json!({ "policy": name, "window": format!("{window}s") });
            let job = job(json!({ "schedule": { "fixed_rate": "7s" }, "misfire": misfire }));
            let (mut now, mut place, mut count, mut last, mut runs) = (0, at(0), 0, 0, None);
            let none = Accounted::default();
            for check in checks {
                now += check;
                while let Some(step) = next_step(&job, place, at(now), &none, runs) {
                    let first = step.skipped.as_ref().map_or(step.at, |skipped| skipped.first);
                    prop_assert_eq!((first - at(0)).num_seconds(), last + 7);
                    count += step.skipped.map_or(1, |skipped| skipped.count);
                    last = (step.at - at(0)).num_seconds();
                    (place, runs) = (step.at, step.runs);
                }
                prop_assert_eq!(count, (now / 7) as u64);
                prop_assert_eq!(last, now / 7 * 7);
            }
        }
    }
}
