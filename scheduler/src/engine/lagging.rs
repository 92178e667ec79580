//! The jobs that lag: which have cursors of their own, and whose past is still to be read.
//!
//! Who takes over a job with a cursor has to look at all that was recorded since then, which may be
//! much. It is read when the other jobs fire, and by itself. *Invariant: until it is read nothing is
//! fired for such a job, and its cursor stays.*

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use taskparty_common::name::JobId;

use super::scheduled::Scheduled;
use super::take_over::TakeOver;
use super::{Engine, Happening};
use crate::cursor::{Cursor, Marks, Wanted};
use crate::kept::Kept;
use crate::recover::Past;

/// How long reading the past of those that lag may take: some of them may be days behind.
const PATIENCE: Duration = Duration::from_secs(3_600);

/// Those that are further behind than the first ones by more than this are read after them.
const TOGETHER_MS: i64 = 86_400_000;

#[derive(Debug, Default)]
pub(super) struct Lagging {
    /// What is to become of the cursors, as of the last look.
    marks: Arc<Marks>,
    /// Jobs were forgotten since.
    stale: bool,
    /// Taken over, and not fired yet: each with the cursor that was found.
    without_past: HashMap<JobId, Cursor>,
    /// Those of `without_past` whose past is being read; nothing: none is.
    reading: Option<HashSet<JobId>>,
}

impl Lagging {
    /// Whether `job` has a cursor of its own, or is to have one.
    pub(super) fn has_cursor(&self, job: &JobId) -> bool {
        matches!(self.marks.get(job), Some(Wanted::At(_)))
    }

    pub(super) fn marks(&self) -> Arc<Marks> {
        self.marks.clone()
    }

    /// Where `job` is, if it is taken over and its past is still to be read.
    pub(super) fn awaits_past(&self, job: &JobId) -> Option<Cursor> {
        self.without_past.get(job).copied()
    }

    pub(super) fn without_past(&self) -> impl Iterator<Item = &JobId> {
        self.without_past.keys()
    }

    /// Until the next look nothing is known of `job`: the watermark counts it, and its cursor stays.
    pub(super) fn forget(&mut self, job: &JobId) {
        if self.marks.contains_key(job) {
            Arc::make_mut(&mut self.marks).remove(job);
            self.stale = true;
        }
    }

    /// Whether a job that had a mark is forgotten, and nobody has looked since.
    pub(super) fn is_stale(&self) -> bool {
        self.stale
    }
}

/// What holds the watermark at `cursor`, while the job's past is not read.
fn first_after(cursor: Cursor) -> i64 {
    cursor.handled_ms.saturating_add(1)
}

/// The jobs whose past is read first, and from where: not those that are days behind the others.
fn first_to_read(without_past: &HashMap<JobId, Cursor>) -> Option<(HashSet<JobId>, DateTime<Utc>)> {
    let last = without_past.values().map(|cursor| cursor.handled_ms).max()?;
    let near = |(_, cursor): &(&JobId, &Cursor)| cursor.handled_ms >= last - TOGETHER_MS;
    let near: Vec<_> = without_past.iter().filter(near).collect();
    let first = near.iter().map(|(_, cursor)| cursor.handled_ms).min()?;
    let jobs = near.into_iter().map(|(job, _)| job.clone()).collect();
    Some((jobs, DateTime::from_timestamp_millis(first)?))
}

impl Engine {
    /// Looks which jobs lag, where their cursors are, and which are no longer needed.
    pub(super) fn look_at_lagging(&mut self) {
        if !self.ready {
            return;
        }
        let (all, now_ms) = (self.unhandled(), self.firing.clock.now_ms());
        let since = |job: &JobId| {
            let awaited = self.lagging.awaits_past(job).map(|cursor| cursor.since);
            awaited.or_else(|| Some(self.scheduled.get(job)?.job().since()))
        };
        let had = self.lagging.marks.keys().filter(|job| self.lagging.has_cursor(job));
        let lagging: BTreeMap<JobId, i64> = all.lagging(had, now_ms, |job| since(job).is_some());
        let cursor = |(job, handled_ms): (JobId, i64)| {
            let since = since(&job)?;
            Some((job, Wanted::At(Cursor { since, handled_ms })))
        };
        let mut marks: Marks = lagging.into_iter().filter_map(cursor).collect();
        let kept = self.ties.stored.borrow().as_ref().map(|stored| stored.jobs.clone());
        for job in kept.iter().flat_map(|jobs| jobs.iter()) {
            let fires = since(job).is_some();
            let wanted = match () {
                // For want of room, the watermark counts it, and its cursor stays.
                () if marks.contains_key(job) || fires && all.lags(job, now_ms) => continue,
                () if fires || !self.jobs.exists(job) && self.owns(job) => Wanted::Covered,
                () => Wanted::GivenUp,
            };
            marks.insert(job.clone(), wanted);
        }
        self.lagging.stale = false;
        if *self.lagging.marks != marks {
            self.lagging.marks = Arc::new(marks);
        }
    }

    /// Gives up `jobs`, which are others' or taken over anew: others may write their cursors. That is
    /// said at once, so that what is known of those is not taken for what is there later.
    pub(super) fn leave_cursors(&mut self, jobs: &[JobId]) {
        let kept = self.ties.stored.borrow().as_ref().map(|stored| stored.jobs.clone());
        let is_kept = |job: &&JobId| {
            let stored = kept.as_ref().is_some_and(|kept| kept.contains(*job));
            stored || self.lagging.marks.contains_key(*job)
        };
        let left: Vec<JobId> = jobs.iter().filter(is_kept).cloned().collect();
        jobs.iter().for_each(|job| self.give_up(job));
        if !left.is_empty() {
            let given_up = left.into_iter().map(|job| (job, Wanted::GivenUp));
            Arc::make_mut(&mut self.lagging.marks).extend(given_up);
            self.report();
        }
    }

    /// A job was taken over and lags: it is fired when its past since `cursor` was read. Also a job
    /// that has a new past by now, of which nothing is handled.
    pub(super) fn await_past(&mut self, kept: &Kept, cursor: Cursor) {
        let (job, since) = (kept.id().clone(), kept.since());
        let nothing = since.timestamp_millis().saturating_sub(1);
        let handled_ms = match since == cursor.since {
            true => cursor.handled_ms,
            false => cursor.handled_ms.min(nothing),
        };
        let cursor = Cursor { since, handled_ms };
        self.under_way.begin(&job, first_after(cursor));
        if let Some(before) = self.lagging.without_past.insert(job.clone(), cursor) {
            self.under_way.end(&job, first_after(before));
        }
    }

    /// `job` is gone or another's, or its past is read.
    pub(super) fn let_go_of_past(&mut self, job: &JobId) {
        if let Some(cursor) = self.lagging.without_past.remove(job) {
            self.under_way.end(job, first_after(cursor));
        }
        if let Some(reading) = &mut self.lagging.reading {
            reading.remove(job);
        }
    }

    /// Begins to read the past of those that lag, unless that is going on, or others are being taken
    /// over: what is read meanwhile would fire before the watermark is stored.
    pub(super) fn read_past(&mut self) {
        if self.lagging.reading.is_some() || !matches!(self.take_over, TakeOver::Settled) {
            return;
        }
        let Some((jobs, handled)) = first_to_read(&self.lagging.without_past) else { return };
        self.lagging.reading = Some(jobs.clone());
        let firing = self.firing.clone();
        self.tasks.spawn(async move {
            loop {
                let wanted = |job: &JobId| jobs.contains(job);
                let read = Past::read(&firing.buckets, handled, PATIENCE, wanted);
                match firing.shutdown.run_until_cancelled(read).await {
                    None => return Happening::Interrupted,
                    Some(Ok(past)) => return Happening::LookedUp(Box::new(past)),
                    Some(Err(error)) => {
                        tracing::warn!(%error, "The past of jobs that lag is not read; it is tried again.");
                    }
                }
                if firing.pause().await.is_err() {
                    return Happening::Interrupted;
                }
            }
        });
    }

    /// The past of those that lag is read: they go on from there.
    pub(super) fn looked_up(&mut self, mut past: Past) {
        // Without those that were given up meanwhile: also of what came back nothing is known.
        let read = self.lagging.reading.take().unwrap_or_default();
        past.held.retain(|held| read.contains(&held.id.job));
        self.complete_held(std::mem::take(&mut past.held));
        for job in &read {
            let Some(cursor) = self.lagging.awaits_past(job) else { continue };
            let handled = DateTime::from_timestamp_millis(cursor.handled_ms);
            let handled = handled.unwrap_or(DateTime::<Utc>::MIN_UTC);
            let accounted = past.take_accounted(job);
            let after = |kept| Scheduled::after(kept, handled, accounted);
            if let Some(scheduled) = self.jobs.get(job).map(after) {
                self.scheduled.insert(job.clone(), scheduled);
                self.arm(job);
            }
            self.let_go_of_past(job);
        }
        tracing::info!(jobs = read.len(), "Jobs that lag are taken over.");
        self.look_at_lagging();
        self.report();
        self.read_past();
    }
}
