//! From the revisions of a job to the stretches of time in which one schedule held.
//!
//! A definition holds from its `since` until the next one's, or until the job was deleted. Around
//! an edit it is open for a moment which of the two a scheduler goes by.

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::schedule::{OccurrenceKind, Schedule, Timing, spread_offset, upcoming};

use super::facts::{Revision, RevisionKind};

/// The revisions of one job, only what its instants hang on.
#[derive(Debug, Default)]
pub(super) struct Revisions(Vec<Rev>);

#[derive(Debug)]
struct Rev {
    revision: u64,
    stored: DateTime<Utc>,
    what: What,
}

#[derive(Debug)]
enum What {
    Saved(Box<Saved>),
    Deleted,
    Unreadable,
}

#[derive(Debug)]
struct Saved {
    since: DateTime<Utc>,
    created: DateTime<Utc>,
    anchor: DateTime<Utc>,
    schedule: Option<Schedule>,
    pause: Pause,
    spread: TimeDelta,
}

/// Whether a job fires by its schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pause {
    No,
    Until(DateTime<Utc>),
    Open,
}

/// Whether a job's past is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Known {
    /// From the beginning.
    Whole,
    /// From this on: what came before is no longer there.
    Since(i64),
}

/// A stretch of time in which one schedule held; in milliseconds.
#[derive(Debug)]
pub(super) struct Era<'a> {
    /// Its first instant is not before this.
    pub(super) since: i64,
    /// When everybody could know of it.
    pub(super) stored: i64,
    /// When it was over, and when everybody could know that; none: it holds.
    pub(super) end: Option<(i64, i64)>,
    /// How long after its instants the job is due.
    pub(super) spread: i64,
    source: Option<(&'a Saved, DateTime<Utc>)>,
    /// What it says cannot be read.
    pub(super) unreadable: bool,
}

/// How a job's eras follow each other.
#[derive(Debug)]
pub(super) struct Eras<'a> {
    pub(super) all: Vec<Era<'a>>,
    pub(super) known: Known,
}

impl Revisions {
    pub(super) fn add(&mut self, revision: Revision) {
        let what = match revision.what {
            RevisionKind::Deleted => What::Deleted,
            RevisionKind::Unreadable => What::Unreadable,
            RevisionKind::Saved(job) => {
                let paused = job.meta.paused.as_ref();
                let pause = paused.map_or(Pause::No, |p| p.until.map_or(Pause::Open, Pause::Until));
                let schedule = job.spec.schedule.clone();
                let spread = schedule.as_ref().map_or(TimeDelta::zero(), |schedule| {
                    let offset = spread_offset(job.spec.id.as_str(), schedule.spread());
                    TimeDelta::from_std(offset).unwrap_or_default()
                });
                What::Saved(Box::new(Saved {
                    since: job.meta.since,
                    created: job.meta.created_at,
                    anchor: job.meta.anchor,
                    schedule,
                    pause,
                    spread,
                }))
            }
        };
        self.0.push(Rev { revision: revision.revision, stored: revision.stored_at, what });
    }

    /// The eras, in order.
    pub(super) fn eras(&mut self) -> Eras<'_> {
        self.0.sort_unstable_by_key(|rev| rev.revision);
        self.0.dedup_by_key(|rev| rev.revision);
        let mut all: Vec<Era<'_>> = Vec::new();
        let mut last: Option<&Rev> = None;
        for rev in &self.0 {
            if last.is_some_and(|last| same(last, rev)) {
                continue;
            }
            let stored = rev.stored.timestamp_millis();
            let since = match (&rev.what, last.map(|last| &last.what)) {
                (What::Saved(new), Some(What::Saved(old))) if new.since == old.since => stored,
                (What::Saved(new), _) => new.since.timestamp_millis(),
                _ => stored,
            };
            if let Some(before) = all.last_mut() {
                before.end = Some((since.max(before.since), stored));
            }
            let saved = match &rev.what {
                What::Saved(saved) => Some(&**saved),
                _ => None,
            };
            all.push(Era {
                since,
                stored,
                end: None,
                spread: saved.map_or(0, |saved| saved.spread.num_milliseconds()),
                source: saved.and_then(begin),
                unreadable: matches!(rev.what, What::Unreadable),
            });
            last = Some(rev);
        }
        Eras { all, known: self.known() }
    }

    fn known(&self) -> Known {
        match self.0.first().map(|rev| (&rev.what, rev.stored)) {
            Some((What::Saved(saved), _)) if saved.since <= saved.created => Known::Whole,
            Some((What::Saved(saved), _)) => Known::Since(saved.since.timestamp_millis()),
            Some((_, stored)) => Known::Since(stored.timestamp_millis()),
            None => Known::Whole,
        }
    }
}

/// Whether nothing changed that the instants hang on.
fn same(a: &Rev, b: &Rev) -> bool {
    match (&a.what, &b.what) {
        (What::Saved(a), What::Saved(b)) => {
            (a.since, a.pause, a.anchor) == (b.since, b.pause, b.anchor) && a.schedule == b.schedule
        }
        (What::Deleted, What::Deleted) | (What::Unreadable, What::Unreadable) => true,
        _ => false,
    }
}

/// After what its instants begin, exclusive; none when it has none.
fn begin(saved: &Saved) -> Option<(&Saved, DateTime<Utc>)> {
    let begin = match saved.pause {
        Pause::No => saved.since,
        Pause::Until(until) => saved.since.max(until),
        Pause::Open => return None,
    };
    saved.schedule.is_some().then_some((saved, begin - TimeDelta::milliseconds(1)))
}

impl Era<'_> {
    /// Whether it holds now, in the past of the job that began at `since`.
    pub(super) fn is_last_since(&self, since: DateTime<Utc>) -> bool {
        self.end.is_none() && self.source.is_some_and(|(saved, _)| saved.since == since)
    }

    /// Its instants from `from` to `to` (exclusive), in milliseconds; of a fixed delay only the
    /// first, which is the only one that hangs on nothing else.
    pub(super) fn instants(
        &self,
        from: i64,
        to: i64,
    ) -> impl Iterator<Item = (i64, OccurrenceKind)> {
        let end = self.end.map_or(to, |(end, _)| end.min(to));
        self.unbounded(from).take_while(move |(at, _)| *at < end)
    }

    /// Whether `at` is an instant of its schedule, also after its end.
    pub(super) fn has(&self, at: i64) -> bool {
        self.unbounded(at).next().is_some_and(|(found, _)| found == at)
    }

    fn unbounded(&self, from: i64) -> impl Iterator<Item = (i64, OccurrenceKind)> {
        let before = DateTime::from_timestamp_millis(from.saturating_sub(1));
        let source = self.source.and_then(|(saved, begin)| {
            let schedule = saved.schedule.as_ref()?;
            let after = before.map_or(begin, |before| begin.max(before));
            let first = match schedule.timing() {
                Timing::FixedDelay(_) => schedule
                    .first_delayed(saved.since)
                    .map(|first| first.max(saved.since))
                    .filter(|first| *first > after),
                _ => None,
            };
            let first = first.map(|at| (at.timestamp_millis(), OccurrenceKind::Fire));
            let rest = upcoming(schedule, saved.anchor, after);
            Some(first.into_iter().chain(rest.map(|o| (o.at.timestamp_millis(), o.kind))))
        });
        source.into_iter().flatten()
    }
}
