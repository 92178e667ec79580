//! Stretches: the pieces of a zone's time line that have one constant offset.
//!
//! Inside a stretch local time is plain arithmetic, so schedules match literally there. All that
//! is hard about zones (gaps, folds, whole missing days, changes that are not summer time) is at
//! the *seams* between two stretches, and is decided by whoever walks them.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// No two offsets of a zone are further apart than this, in seconds (offsets stay within ±26 h).
pub(super) const MAX_OFFSET_DISTANCE: i64 = 2 * MAX_OFFSET;

/// No offset is larger than this, in seconds.
pub(super) const MAX_OFFSET: i64 = 26 * 3_600;

/// A piece of the time line with one offset. Seconds since 1970; *local* seconds count the same
/// way on the wall clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    /// First second, or `i64::MIN`.
    pub(super) start: i64,
    /// First second after it, or `i64::MAX`.
    pub(super) end: i64,
    /// Local minus UTC, in seconds.
    pub(super) offset: i64,
    /// The offset just before `start`; the same as `offset` where there is nothing before.
    pub(super) offset_before: i64,
}

impl Stretch {
    /// The stretch of `zone` in which the instant `at` lies.
    pub(super) fn at(zone: &TimeZone, at: i64) -> Stretch {
        let instant = timestamp(at);
        let offset = i64::from(zone.to_offset(instant).seconds());
        // `preceding` is strict, and `at` may be the first second of its stretch.
        let start = zone.preceding(timestamp(at.saturating_add(1))).next();
        let end = zone.following(instant).next();
        let (start, offset_before) = match start {
            Some(seam) => {
                let start = seam.timestamp().as_second();
                (start, i64::from(zone.to_offset(timestamp(start - 1)).seconds()))
            }
            None => (i64::MIN, offset),
        };
        let end = end.map_or(i64::MAX, |seam| seam.timestamp().as_second());
        Stretch { start, end, offset, offset_before }
    }

    /// Whether the local second `local` is shown by the clock during this stretch.
    pub(super) fn shows(&self, local: i64) -> bool {
        (self.start..self.end).contains(&local.saturating_sub(self.offset))
    }

    /// The local seconds that the clock jumps over at `start`: empty unless it went forward there.
    pub(super) fn gap_before(&self) -> std::ops::Range<i64> {
        if self.start == i64::MIN {
            return 0..0;
        }
        self.start + self.offset_before..self.start + self.offset
    }
}

/// The instant, held inside the years that the zone data can answer for.
fn timestamp(seconds: i64) -> Timestamp {
    let bound = if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX };
    Timestamp::from_second(seconds).unwrap_or(bound)
}
