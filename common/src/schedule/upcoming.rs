//! The occurrences of a schedule after an instant, in order: what the scheduler fires, what the
//! command line and the API show.

use std::iter::FusedIterator;

use chrono::{DateTime, Utc};

use super::cron::CronExpr;
use super::interval::Rate;
use super::policy::{Fold, Gap};
use super::seam::Place;
use super::stretch::Stretch;
use super::{Schedule, Timing};

/// A nominal instant of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Occurrence {
    /// The nominal instant, in whole milliseconds, before any spread. With the job it is the
    /// identity of the fire.
    pub at: DateTime<Utc>,
    /// Whether it fires.
    pub kind: OccurrenceKind,
}

/// What an occurrence is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum OccurrenceKind {
    /// The job runs.
    Fire,
    /// The local time does not exist that day: recorded as a skipped run with the reason `gap`,
    /// never run.
    Gap,
}

/// The occurrences of a schedule, strictly increasing. Endless for most schedules: `take` some.
///
/// Holds no heap memory, and finds each in constant time; making one costs a look at the zone.
#[derive(Debug, Clone)]
pub struct Upcoming<'a> {
    source: Source<'a>,
    /// The next occurrence is not before this, in milliseconds since 1970.
    from: i64,
    /// Exclusive.
    until: i64,
}

#[derive(Debug, Clone)]
enum Source<'a> {
    Cron { list: &'a [CronExpr], place: Place<'a>, stretch: Stretch },
    Rate(Rate),
    Once(i64, OccurrenceKind),
    Never,
}

/// The occurrences of `schedule` after `after` (exclusive).
///
/// `anchor` is when the job was created: a fixed rate without `from` counts from it, its first
/// instant one period later. A fixed delay yields nothing; see [`Schedule::first_delayed`].
pub fn upcoming(schedule: &Schedule, anchor: DateTime<Utc>, after: DateTime<Utc>) -> Upcoming<'_> {
    let earliest = schedule.from_instant.map_or(i64::MIN, |from| from.timestamp_millis());
    let until = schedule.until_instant.map_or(i64::MAX, |until| until.timestamp_millis());
    // The first millisecond after `after`, which may have microseconds.
    let from = after.timestamp_millis().saturating_add(1).max(earliest);
    let source = match &schedule.timing {
        Timing::Cron(list) => {
            let stretch = schedule.timezone.stretch_at(from.div_euclid(1_000));
            Source::Cron { list, place: schedule.place(), stretch }
        }
        Timing::FixedRate(period) => {
            let (anchor, first) = match schedule.from_instant {
                Some(from) => (from, 0),
                None => (anchor, 1),
            };
            let period = i64::try_from(period.as_millis()).unwrap_or(i64::MAX).max(1);
            Source::Rate(Rate { anchor: anchor.timestamp_millis(), period, first })
        }
        Timing::FixedDelay(_) => Source::Never,
        Timing::At(moment) => {
            let at = moment.resolve(&schedule.timezone);
            let instant = if schedule.fold == Fold::Last { at.last } else { at.first };
            let skipped = at.in_gap && schedule.gap == Gap::Skip;
            let kind = if skipped { OccurrenceKind::Gap } else { OccurrenceKind::Fire };
            Source::Once(instant.timestamp_millis(), kind)
        }
    };
    Upcoming { source, from, until }
}

impl Iterator for Upcoming<'_> {
    type Item = Occurrence;

    fn next(&mut self) -> Option<Occurrence> {
        let found = match &mut self.source {
            Source::Cron { list, place, stretch } => next_of(list, *place, stretch, self.from),
            Source::Rate(rate) => rate.at_or_after(self.from).map(|at| (at, OccurrenceKind::Fire)),
            Source::Once(at, kind) => (*at >= self.from).then_some((*at, *kind)),
            Source::Never => None,
        };
        let found = found.filter(|(at, _)| *at < self.until);
        let occurrence = found.and_then(|(at, kind)| {
            Some(Occurrence { at: DateTime::from_timestamp_millis(at)?, kind })
        });
        match found {
            Some((at, _)) if occurrence.is_some() => self.from = at.saturating_add(1),
            _ => self.source = Source::Never,
        }
        occurrence
    }
}

impl Schedule {
    /// Where and how its expressions are read.
    pub(super) fn place(&self) -> Place<'_> {
        Place { zone: &self.timezone, gap: self.gap, fold: self.fold }
    }
}

impl FusedIterator for Upcoming<'_> {}

/// The first occurrence of any expression of `list` at or after `from`; at the same instant a fire
/// wins over a gap. Milliseconds.
fn next_of(
    list: &[CronExpr],
    place: Place<'_>,
    stretch: &mut Stretch,
    from: i64,
) -> Option<(i64, OccurrenceKind)> {
    let from = from.saturating_add(999).div_euclid(1_000);
    let start = *stretch;
    let mut best: Option<(i64, OccurrenceKind)> = None;
    for expr in list {
        let mut here = start;
        let found = place.next(expr, from, &mut here);
        if let Some(found) = found
            && best.is_none_or(|best| found < best)
        {
            best = Some(found);
            *stretch = here;
        }
    }
    best.map(|(at, kind)| (at.saturating_mul(1_000), kind))
}
