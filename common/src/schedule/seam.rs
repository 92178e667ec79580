//! What a cron expression means in a time zone: literal matching inside the stretches of the zone,
//! and decisions at the seams between them.
//!
//! - Clocks go back (a *fold*): the later stretch shows local times again. [`Fold`] says which of the
//!   instants count.
//! - Clocks go forward (a *gap*): local times between two stretches do not exist. A fixed time there
//!   is moved to the seam or recorded as skipped, by [`Gap`]. A repeating expression has no instant
//!   there; a day of it that ends empty is recorded as skipped at the seam.
//!
//! *Invariant: bounded work.* Stretches without a match are jumped over, not walked; every round of
//! the loop moves forward, and it ends a few days after the last literal match.

use std::ops::Range;

use super::cron::CronExpr;
use super::literal::DAY;
use super::policy::{Fold, Gap};
use super::stretch::{MAX_OFFSET, MAX_OFFSET_DISTANCE, Stretch};
use super::upcoming::OccurrenceKind;
use super::zone::Zone;

/// No expression matches after this instant: the beginning of 2200, and the largest offset.
const LAST_INSTANT: i64 = 7_258_118_400 + MAX_OFFSET;

/// Where and how an expression is read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) zone: &'a Zone,
    pub(super) gap: Gap,
    pub(super) fold: Fold,
}

impl Place<'_> {
    /// The first occurrence of `expr` at or after the instant `from`, in seconds since 1970.
    ///
    /// `stretch` is where the last search ended; it saves looking it up again.
    pub(super) fn next(
        &self,
        expr: &CronExpr,
        from: i64,
        stretch: &mut Stretch,
    ) -> Option<(i64, OccurrenceKind)> {
        let mut from = from.max(-MAX_OFFSET);
        while from <= LAST_INSTANT {
            if !(stretch.start..stretch.end).contains(&from) {
                *stretch = self.zone.stretch_at(from);
            }
            let local = expr.next_local(from + stretch.offset);
            let instant = local.map(|local| local - stretch.offset).filter(|&at| at < stretch.end);
            let unwanted = instant.and_then(|at| self.unwanted_until(expr, stretch, at));
            if instant == Some(from) && unwanted.is_none() {
                return Some((from, OccurrenceKind::Fire));
            }
            // A real fire at the seam, just returned, wins over what the gap moved there.
            if from == stretch.start
                && let Some(kind) = self.after_gap(expr, stretch)
            {
                return Some((from, kind));
            }
            from = match (instant, unwanted) {
                (Some(at), None) => return Some((at, OccurrenceKind::Fire)),
                (Some(_), Some(until)) => until,
                (None, _) => self.beyond(stretch, from, local)?,
            };
        }
        None
    }

    /// Where to go on when nothing was found from `from` to the end of `stretch`, and the next
    /// literal match of its clock is `local`.
    fn beyond(&self, stretch: &Stretch, from: i64, local: Option<i64>) -> Option<i64> {
        if stretch.end == i64::MAX {
            return None;
        }
        // A seam this near may turn the clock back to before `from`.
        if stretch.end - from < MAX_OFFSET_DISTANCE {
            return Some(stretch.end);
        }
        // All later clocks are past the local time of `from`, and none shows `local` before this.
        Some(stretch.end.max(local? - MAX_OFFSET))
    }

    /// None when the match at the instant `at` counts; else, the instant up to which matches do not
    /// count for the same reason, because another stretch shows the same local times.
    fn unwanted_until(&self, expr: &CronExpr, stretch: &Stretch, at: i64) -> Option<i64> {
        let twin = match (self.fold, expr.is_fixed()) {
            (Fold::Both, _) | (Fold::Auto, false) => None,
            (Fold::First, _) | (Fold::Auto, true) => self.earlier_twin(stretch, at),
            (Fold::Last, _) => self.later_twin(stretch, at),
        }?;
        let shown_until = twin.end.saturating_add(twin.offset).saturating_sub(stretch.offset);
        Some(shown_until.min(stretch.end).max(at + 1))
    }

    /// An earlier stretch that shows the local time of `at`.
    fn earlier_twin(&self, stretch: &Stretch, at: i64) -> Option<Stretch> {
        let mut other = *stretch;
        while other.start > at - MAX_OFFSET_DISTANCE {
            other = self.zone.stretch_at(other.start - 1);
            if other.shows(at + stretch.offset) {
                return Some(other);
            }
        }
        None
    }

    /// A later stretch that shows the local time of `at`.
    fn later_twin(&self, stretch: &Stretch, at: i64) -> Option<Stretch> {
        let mut other = *stretch;
        while other.end < at + MAX_OFFSET_DISTANCE {
            other = self.zone.stretch_at(other.end);
            if other.shows(at + stretch.offset) {
                return Some(other);
            }
        }
        None
    }

    /// What the gap before `stretch`, if there is one, leaves at its first instant.
    fn after_gap(&self, expr: &CronExpr, stretch: &Stretch) -> Option<OccurrenceKind> {
        let gap = stretch.gap_before();
        if gap.is_empty() {
            return None;
        }
        if expr.is_fixed() {
            self.first_missing(expr, gap)?;
            return Some(match self.gap {
                Gap::Shift => OccurrenceKind::Fire,
                Gap::Skip => OccurrenceKind::Gap,
            });
        }
        let mut days = gap.start.div_euclid(DAY)..=(gap.end - 1).div_euclid(DAY);
        days.any(|day| {
            let (midnight, next_midnight) = (day * DAY, (day + 1) * DAY);
            let in_gap = gap.start.max(midnight)..gap.end.min(next_midnight);
            self.first_missing(expr, in_gap).is_some()
                && self.first_shown(expr, midnight..gap.start).is_none()
                && self.first_shown(expr, gap.end..next_midnight).is_none()
        })
        .then_some(OccurrenceKind::Gap)
    }

    /// The first matching local time in `window` that no clock shows.
    fn first_missing(&self, expr: &CronExpr, window: Range<i64>) -> Option<i64> {
        matches(expr, window).find(|&local| self.zone.instants_of(local).next().is_none())
    }

    /// The first matching local time in `window` that a clock shows.
    fn first_shown(&self, expr: &CronExpr, window: Range<i64>) -> Option<i64> {
        matches(expr, window).find(|&local| self.zone.instants_of(local).next().is_some())
    }
}

/// All matching local times in `window`.
fn matches(expr: &CronExpr, window: Range<i64>) -> impl Iterator<Item = i64> + '_ {
    std::iter::successors(expr.first_in(window.clone()), move |&last| {
        expr.first_in(last + 1..window.end)
    })
}
