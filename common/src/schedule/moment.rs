//! Moments that users write: `from`, `until` and `at`.
//!
//! With an offset a moment is an instant. Without one it is a local time, and becomes an instant
//! only together with the zone of its schedule.

use std::fmt;

use chrono::{DateTime, Datelike, FixedOffset, NaiveDateTime, TimeDelta, Timelike, Utc};

use super::zone::Zone;

/// A date and time to the millisecond, in the years 1970 to 9999. Keeps how it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// `2027-01-31T09:00:00`: what the clocks of the schedule's zone show.
    Local(NaiveDateTime),
    /// `2027-01-31T09:00:00+08:00`: an instant.
    Instant(DateTime<FixedOffset>),
}

/// What a [`Moment`] is in a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Resolved {
    /// The first instant; for a local time in a gap, the first one after it.
    pub(super) first: DateTime<Utc>,
    /// The last instant: differs in a fold only.
    pub(super) last: DateTime<Utc>,
    /// The local time does not exist.
    pub(super) in_gap: bool,
}

impl Moment {
    /// Reads RFC 3339 with an offset, or a local date and time without one.
    ///
    /// # Errors
    /// Anything else, more than milliseconds, a leap second, a year before 1970.
    pub fn parse(text: &str) -> Result<Moment, MomentError> {
        let fail = |reason| MomentError { given: text.chars().take(60).collect(), reason };
        let starts_with_year = text.len() > 4
            && text.bytes().take(4).all(|byte| byte.is_ascii_digit())
            && text.as_bytes()[4] == b'-';
        if !starts_with_year {
            return Err(fail(MomentErrorReason::Form));
        }
        let moment = if let Ok(instant) = DateTime::parse_from_rfc3339(text) {
            Moment::Instant(instant)
        } else {
            let local = ["%Y-%m-%dT%H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M"]
                .iter()
                .find_map(|form| NaiveDateTime::parse_from_str(text, form).ok());
            Moment::Local(local.ok_or_else(|| fail(MomentErrorReason::Form))?)
        };
        let written = moment.written();
        if written.nanosecond() >= 1_000_000_000 {
            return Err(fail(MomentErrorReason::LeapSecond));
        }
        if written.nanosecond() % 1_000_000 != 0 {
            return Err(fail(MomentErrorReason::TooFine));
        }
        if !(1970..=9999).contains(&written.year()) {
            return Err(fail(MomentErrorReason::Year));
        }
        Ok(moment)
    }

    /// Whether it has no offset of its own.
    pub fn is_local(&self) -> bool {
        matches!(self, Moment::Local(_))
    }

    /// The instant in `zone`: of a local time that exists twice the first, for one that does not
    /// exist the first instant after the gap.
    pub fn instant_in(&self, zone: &Zone) -> DateTime<Utc> {
        self.resolve(zone).first
    }

    pub(super) fn resolve(&self, zone: &Zone) -> Resolved {
        let local = match self {
            Moment::Instant(instant) => {
                let instant = instant.to_utc();
                return Resolved { first: instant, last: instant, in_gap: false };
            }
            Moment::Local(local) => local.and_utc(),
        };
        let seconds = local.timestamp();
        let part = TimeDelta::milliseconds(i64::from(local.timestamp_subsec_millis()));
        let instant = |seconds| DateTime::from_timestamp(seconds, 0);
        let mut instants = zone.instants_of(seconds).filter_map(instant).map(|at| at + part);
        if let Some(first) = instants.next() {
            return Resolved { first, last: instants.last().unwrap_or(first), in_gap: false };
        }
        // Where no clock shows it there is a gap; reading it as UTC only satisfies the compiler.
        let after = zone.end_of_gap_at(seconds).and_then(instant).unwrap_or(local);
        Resolved { first: after, last: after, in_gap: true }
    }

    /// The digits, without the offset.
    fn written(&self) -> NaiveDateTime {
        match self {
            Moment::Local(local) => *local,
            Moment::Instant(instant) => instant.naive_local(),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.written().format("%Y-%m-%dT%H:%M:%S%.f"))?;
        match self {
            Moment::Local(_) => Ok(()),
            Moment::Instant(instant) if instant.offset().local_minus_utc() == 0 => f.write_str("Z"),
            Moment::Instant(instant) => write!(f, "{}", instant.format("%:z")),
        }
    }
}

/// Why a text is not a moment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} {reason}")]
pub struct MomentError {
    given: String,
    reason: MomentErrorReason,
}

impl MomentError {
    /// The kind of mistake.
    pub fn reason(&self) -> MomentErrorReason {
        self.reason
    }
}

/// The kinds of mistake in a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MomentErrorReason {
    /// Not a date and time.
    #[error(
        "is not a date and time; write 2027-01-31T09:00:00 (in the schedule's timezone) or \
         2027-01-31T09:00:00+08:00"
    )]
    Form,
    /// Microseconds.
    #[error("is finer than a millisecond")]
    TooFine,
    /// A second 60.
    #[error("is a leap second; write the second before or after it")]
    LeapSecond,
    /// Before 1970.
    #[error("is out of range; the year is from 1970 to 9999")]
    Year,
}
