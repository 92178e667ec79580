//! Whether a schedule can still fire.
//!
//! Apart from `spec`, because the answer changes with time: it is asked when a job is created or its
//! schedule changes, never of a stored job.

use chrono::{DateTime, Utc};

use super::cron_error::{CronError, CronErrorReason};
use super::spec::{ScheduleError, ScheduleErrorReason};
use super::{CronExpr, Schedule, Timing};

impl Schedule {
    /// Checks that it can fire after `now`. `anchor` is when the job was created.
    ///
    /// # Errors
    /// Each cron expression that can never fire or whose last instant is past; an `at` that is past;
    /// an `until` before which nothing is left.
    pub fn check_can_fire(
        &self,
        anchor: DateTime<Utc>,
        now: DateTime<Utc>,
    ) -> Result<(), Vec<ScheduleError>> {
        let mut errors = Vec::new();
        if let Timing::Cron(list) = &self.timing {
            for (at, expression) in list.iter().enumerate() {
                if let Some(reason) = self.cannot_match(expression, now) {
                    let reason = CronError::new(expression.as_str(), reason).into();
                    errors.push(ScheduleError::in_list("cron", at, list.len(), reason));
                }
            }
        }
        if errors.is_empty() && !self.fires_after(anchor, now) {
            let (field, reason) = match (&self.timing, &self.until) {
                (Timing::At(at), _) => ("at", ScheduleErrorReason::AtIsPast(at.to_string())),
                (_, Some(until)) => {
                    ("until", ScheduleErrorReason::NothingBeforeUntil(until.to_string()))
                }
                (_, None) => ("", ScheduleErrorReason::NothingLeft),
            };
            errors.push(ScheduleError::in_field(field, reason));
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    fn cannot_match(&self, expression: &CronExpr, now: DateTime<Utc>) -> Option<CronErrorReason> {
        if expression.never_fires() {
            return Some(CronErrorReason::NeverFires);
        }
        let now = now.timestamp();
        let mut stretch = self.timezone.stretch_at(now);
        let next = self.place().next(expression, now.saturating_add(1), &mut stretch);
        next.is_none().then_some(CronErrorReason::InThePast)
    }

    fn fires_after(&self, anchor: DateTime<Utc>, now: DateTime<Utc>) -> bool {
        match self.timing {
            Timing::FixedDelay(_) => self.until_instant.is_none_or(|until| now < until),
            // A skipped instant of `at` is still to come: it will be recorded.
            Timing::At(_) => self.upcoming(anchor, now).next().is_some(),
            _ => self.fires(anchor, now).next().is_some(),
        }
    }
}
