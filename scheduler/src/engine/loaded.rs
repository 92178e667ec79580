//! The jobs that were there at the start, until the first of them are taken over: when each is next
//! due is worked out while its definition is at hand. A million definitions are not read twice.

use std::iter::Peekable;
use std::sync::Arc;
use std::vec;

use chrono::{DateTime, SubsecRound, Utc};
use taskparty_common::job::Job;

use super::scheduled::Scheduled;
use super::step::{Accounted, next_due};
use super::timer::Timed;
use crate::kept::Kept;
use crate::recover;

/// When jobs are next due after the earliest watermark that was there at the start. A list: in one
/// piece, it leaves no holes behind when it goes.
#[derive(Debug)]
pub(super) struct Loaded {
    start: DateTime<Utc>,
    /// As they came; of a job that changed meanwhile each time.
    jobs: Vec<Timed<Scheduled>>,
}

/// What was noted, to be taken in the order of the ids.
pub(super) struct Noted {
    start: DateTime<Utc>,
    jobs: Peekable<vec::IntoIter<Timed<Scheduled>>>,
}

/// Where a job is at the start, and when it is next due.
pub(super) struct Ahead {
    place: DateTime<Utc>,
    due: Option<DateTime<Utc>>,
}

impl Loaded {
    /// Nothing, before the jobs come. Everything up to `start` is handled. What is stored of that, and
    /// read later, has whole milliseconds.
    pub(super) fn new(start: DateTime<Utc>) -> Self {
        Self { start: start.trunc_subsecs(3), jobs: Vec::new() }
    }

    /// All that was noted.
    pub(super) fn end(&mut self) -> Noted {
        let mut jobs = std::mem::take(&mut self.jobs);
        jobs.sort_unstable_by(|one, other| one.value.job().id().cmp(other.value.job().id()));
        Noted { start: self.start, jobs: jobs.into_iter().peekable() }
    }

    /// Looks when `job` is due after the start.
    pub(super) fn look_ahead(&self, job: &Job) -> Ahead {
        let place = recover::place(job, self.start);
        Ahead { place, due: next_due(job, place, &Accounted::default()) }
    }

    /// `job` is so now.
    pub(super) fn take_in(&mut self, job: &Arc<Kept>, ahead: Ahead) {
        let Ahead { place, due } = ahead;
        let scheduled = Scheduled::new(job.clone(), place, None);
        self.jobs.push(Timed::new(scheduled, due.map(|due| due.timestamp_millis())));
    }
}

impl Noted {
    /// The place of `job` as it is now, of which nothing but what is due up to `handled` is accounted
    /// for; nothing when it was not noted.
    ///
    /// *Invariant: it is the one that the job would get if its definition were read again.* It may be
    /// before that by a stretch in which the job has no instant. Where there may be one, there is none.
    /// No job that was asked for before comes after it.
    pub(super) fn take(
        &mut self,
        job: &Arc<Kept>,
        handled: DateTime<Utc>,
    ) -> Option<Timed<Scheduled>> {
        let mut found = None;
        while let Some(timed) = self.jobs.next_if(|known| known.value.job().id() <= job.id()) {
            if std::ptr::eq(timed.value.job(), job.as_ref()) {
                found = Some(timed);
            }
        }
        let timed = found?;
        if handled < self.start {
            return None;
        }
        let is_ahead = timed.due_ms().is_none_or(|due| due > handled.timestamp_millis());
        is_ahead.then_some(timed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::TimeDelta;
    use proptest::prelude::*;
    use serde_json::json;
    use taskparty_common::job::{JobSpec, Paused, Unknown};

    fn at(seconds: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap() + TimeDelta::seconds(seconds)
    }

    fn job(n: usize, schedule: serde_json::Value, paused: Option<Option<i64>>) -> Job {
        let mut spec = json!({ "id": format!("job-{n}"), "app": "shop", "handler": "settle" });
        if !schedule.is_null() {
            spec["schedule"] = schedule;
        }
        let job = Job::new(JobSpec::from_json(&spec, Unknown::Refuse).unwrap(), at(0), "");
        let until = |until: Option<i64>| until.map(at);
        let paused = paused.map(|end| Paused {
            at: at(0),
            by: "ada".into(),
            reason: "".into(),
            until: until(end),
        });
        if paused.is_some() { job.with_pause(paused, at(0), "ada") } else { job }
    }

    fn taken(job: Job, start: i64, handled: i64) -> (Arc<Kept>, Option<Timed<Scheduled>>) {
        let mut loaded = Loaded::new(at(start));
        let ahead = loaded.look_ahead(&job);
        let kept = Arc::new(Kept::new(job.spec.id.clone(), job, 1, None).unwrap());
        loaded.take_in(&kept, ahead);
        let timed = loaded.end().take(&kept, at(handled));
        (kept, timed)
    }

    #[test]
    fn only_what_may_have_been_due_meanwhile_is_read_again() {
        let daily = || job(1, json!({ "cron": "0 0 2 * * ?", "timezone": "UTC" }), None);
        let (_, timed) = taken(daily(), 0, 60);
        assert!(timed.is_some_and(|timed| timed.due_ms().is_some()));
        let (_, manual) = taken(job(2, json!(null), None), 0, 60);
        assert!(manual.is_some_and(|timed| timed.due_ms().is_none()));
        assert!(taken(daily(), 0, 100_000).1.is_none(), "it was due meanwhile");
        assert!(taken(daily(), 0, -1).1.is_none(), "handled from earlier on than was known");
        let loaded = Loaded::new(at(0) + TimeDelta::nanoseconds(999_999));
        assert_eq!(loaded.start, at(0), "as it is when it was stored");
    }

    #[test]
    fn what_was_noted_of_a_job_that_has_changed_since_is_not_taken() {
        let mut loaded = Loaded::new(at(0));
        let daily = |n, hour| {
            job(n, json!({ "cron": format!("0 0 {hour} * * ?"), "timezone": "UTC" }), None)
        };
        let mut save = |n, hour| {
            let job = daily(n, hour);
            let ahead = loaded.look_ahead(&job);
            let kept = Arc::new(Kept::new(job.spec.id.clone(), job, 1, None).unwrap());
            loaded.take_in(&kept, ahead);
            kept
        };
        let (second, first, third) = (save(2, 2), save(1, 2), save(3, 2));
        let changed = save(2, 5);
        let mut noted = loaded.end();
        let due = |timed: Option<Timed<Scheduled>>| timed.and_then(|timed| timed.due_ms());
        assert!(due(noted.take(&first, at(60))).is_some());
        let fresh = Scheduled::after(changed.clone(), at(60), None).timed();
        assert_eq!(due(noted.take(&changed, at(60))), fresh.due_ms());
        assert!(noted.take(&second, at(60)).is_none(), "an earlier one");
        assert!(due(noted.take(&third, at(60))).is_some());
    }

    proptest! {
        /// Whatever the schedule, the start and what is handled later: what was noted at the start
        /// goes on as what is read again.
        #[test]
        fn what_was_worked_out_at_the_start_goes_on_as_what_is_read_again(
            n in 0_usize..1_000,
            schedule in prop::sample::select(vec![
                json!(null),
                json!({ "fixed_rate": "7s" }),
                json!({ "fixed_rate": "45s", "spread": "40s" }),
                json!({ "fixed_delay": "30s" }),
                json!({ "cron": "0 */2 * * * ?", "timezone": "Asia/Shanghai", "spread": "2m" }),
            ]),
            paused in prop::sample::select(vec![None, Some(None), Some(Some(100))]),
            start in -100_i64..300,
            later in -50_i64..300,
        ) {
            let handled = start + later;
            let (kept, timed) = taken(job(n, schedule, paused), start, handled);
            if let Some(Timed { value: mut known, .. }) = timed {
                let mut again = Scheduled::after(kept, at(handled), None);
                for now in [handled, handled + 60, handled + 900].map(at) {
                    prop_assert_eq!(known.next_due(), again.next_due());
                    let step = |scheduled: &mut Scheduled| scheduled.decide(now).map(|(step, _)| step);
                    prop_assert_eq!(step(&mut known), step(&mut again));
                }
            }
        }
    }
}
