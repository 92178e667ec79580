//! Schedules: when a job is due.
//!
//! A [`ScheduleSpec`] is what a user writes; a [`Schedule`] is the same, checked and compiled;
//! [`upcoming`] walks its nominal instants. The scheduler, the command line and the API all use
//! that one iterator, so what `job next` prints is what fires.
//!
//! *Invariants.* Nothing here reads a clock, the environment or the machine's time zone data: the
//! same schedule has the same instants on every machine of a cluster. No input, however odd, makes
//! a search without end or a panic.
//!
//! How it fits together: `cron` compiles an expression (`cron_field`, `days`), `literal` matches it
//! on a calendar without zones, `stretch` cuts a `zone` into pieces of constant offset, and `seam`
//! decides what happens between them.

mod check;
mod cron;
mod cron_error;
mod cron_field;
mod days;
mod interval;
mod literal;
mod moment;
mod policy;
mod seam;
mod spec;
mod spread;
mod stretch;
mod upcoming;
mod zone;
mod zone_hint;

use std::time::Duration;

use chrono::{DateTime, Utc};

pub use self::cron::CronExpr;
pub use self::cron_error::{CronError, CronErrorReason};
pub use self::cron_field::CronField;
pub use self::moment::{Moment, MomentError, MomentErrorReason};
pub use self::policy::{Fold, Gap};
pub use self::spec::{ScheduleError, ScheduleErrorReason, ScheduleSpec};
pub use self::spread::spread_offset;
pub use self::upcoming::{Occurrence, OccurrenceKind, Upcoming, upcoming};
pub use self::zone::{Zone, ZoneError, ZoneErrorReason, tzdata_version};

/// A checked schedule. Made by [`Schedule::new`], never changed.
///
/// Two are equal when they mean the same, however they are written: `@daily` and `0 0 * * *`, a
/// moment as local time and with its offset, a list of expressions in another order.
#[derive(Debug, Clone)]
pub struct Schedule {
    timing: Timing,
    timezone: Zone,
    timezone_given: bool,
    from: Option<Moment>,
    until: Option<Moment>,
    /// `from` in `timezone`; and so for `until`.
    from_instant: Option<DateTime<Utc>>,
    until_instant: Option<DateTime<Utc>>,
    spread: Duration,
    gap: Gap,
    fold: Fold,
}

/// The kinds of schedule.
#[derive(Debug, Clone)]
pub enum Timing {
    /// The union of these expressions; at least one.
    Cron(Box<[CronExpr]>),
    /// Anchor + n × period; the anchor is `from`, else the creation of the job.
    FixedRate(Duration),
    /// This long after the end of the previous run.
    FixedDelay(Duration),
    /// Once.
    At(Moment),
}

impl PartialEq for Timing {
    fn eq(&self, other: &Timing) -> bool {
        match (self, other) {
            (Timing::Cron(a), Timing::Cron(b)) => {
                a.iter().all(|expr| b.contains(expr)) && b.iter().all(|expr| a.contains(expr))
            }
            (Timing::FixedRate(a), Timing::FixedRate(b)) => a == b,
            (Timing::FixedDelay(a), Timing::FixedDelay(b)) => a == b,
            (Timing::At(a), Timing::At(b)) => a == b,
            _ => false,
        }
    }
}

impl Eq for Timing {}

impl PartialEq for Schedule {
    fn eq(&self, other: &Schedule) -> bool {
        let same_timing = match (&self.timing, &other.timing) {
            (Timing::At(a), Timing::At(b)) => {
                a.resolve(&self.timezone) == b.resolve(&other.timezone)
            }
            (a, b) => a == b,
        };
        same_timing
            && self.timezone == other.timezone
            && self.from_instant == other.from_instant
            && self.until_instant == other.until_instant
            && (self.spread, self.gap, self.fold) == (other.spread, other.gap, other.fold)
    }
}

impl Eq for Schedule {}

impl Schedule {
    /// What kind it is.
    pub fn timing(&self) -> &Timing {
        &self.timing
    }

    /// The zone of its local times; UTC unless given.
    pub fn timezone(&self) -> &Zone {
        &self.timezone
    }

    /// Whether it has a cron expression and leaves its timezone to the default: worth a warning,
    /// as the user may think of local time.
    pub fn lacks_timezone(&self) -> bool {
        matches!(self.timing, Timing::Cron(_)) && !self.timezone_given
    }

    /// The first instant that counts.
    pub fn from(&self) -> Option<DateTime<Utc>> {
        self.from_instant
    }

    /// The first instant that does not count any more.
    pub fn until(&self) -> Option<DateTime<Utc>> {
        self.until_instant
    }

    /// The bound of the job's start offset; see [`spread_offset`].
    pub fn spread(&self) -> Duration {
        self.spread
    }

    /// What becomes of a local time that does not exist.
    pub fn gap(&self) -> Gap {
        self.gap
    }

    /// What becomes of a local time that exists twice.
    pub fn fold(&self) -> Fold {
        self.fold
    }

    /// Its occurrences after `after` (exclusive), fires and gaps; see [`upcoming`].
    pub fn upcoming(&self, anchor: DateTime<Utc>, after: DateTime<Utc>) -> Upcoming<'_> {
        upcoming(self, anchor, after)
    }

    /// Its fires after `after` (exclusive), without the recorded gaps.
    pub fn fires(
        &self,
        anchor: DateTime<Utc>,
        after: DateTime<Utc>,
    ) -> impl Iterator<Item = DateTime<Utc>> + '_ {
        upcoming(self, anchor, after)
            .filter(|occurrence| occurrence.kind == OccurrenceKind::Fire)
            .map(|occurrence| occurrence.at)
    }

    /// The first instant of a fixed delay: `from`, else `anchor` (when the job was created). None
    /// for other kinds, and when `until` is not after it. What follows hangs on the ends of runs,
    /// which a schedule does not know.
    pub fn first_delayed(&self, anchor: DateTime<Utc>) -> Option<DateTime<Utc>> {
        let Timing::FixedDelay(_) = self.timing else { return None };
        let first = self.from_instant.unwrap_or(anchor);
        self.until_instant.is_none_or(|until| first < until).then_some(first)
    }
}
