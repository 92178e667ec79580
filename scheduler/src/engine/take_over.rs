//! Taking over jobs when the membership changes: first their past is read, then the own watermark
//! is moved back before it, and only when that is stored do they fire.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use taskparty_common::name::{Instance, JobId};
use tokio::time::Instant;

use super::catch_up::Open;
use super::ownership::Members;
use super::scheduled::Scheduled;
use super::{Engine, Happening};
use crate::fire::Held;
use crate::kept::Kept;
use crate::recover::{self, Recovered};

/// How far taking over is.
#[derive(Debug, Default)]
pub(super) enum TakeOver {
    /// Nothing is being taken over.
    #[default]
    Settled,
    /// The past of `jobs`, which begins so, is being read. `again`: the membership changed meanwhile.
    Reading { jobs: Arc<BTreeMap<JobId, DateTime<Utc>>>, again: bool },
    /// The watermark is being moved back to `floor_ms`; then `jobs` fire, each when it is next due,
    /// as far as that is known.
    Confirming { floor_ms: i64, jobs: BTreeMap<JobId, Option<i64>>, again: bool },
}

impl TakeOver {
    /// Whether `job` fires only when the watermark is stored.
    pub(super) fn waits_for(&self, job: &JobId) -> bool {
        matches!(self, TakeOver::Confirming { jobs, .. } if jobs.contains_key(job))
    }

    /// `job` is given up.
    pub(super) fn left(&mut self, job: &JobId) {
        if let TakeOver::Confirming { jobs, .. } = self {
            jobs.remove(job);
        }
    }

    /// `job` has changed: when it is next due must be worked out again.
    pub(super) fn changed(&mut self, job: &JobId) {
        if let TakeOver::Confirming { jobs, .. } = self
            && let Some(due) = jobs.get_mut(job)
        {
            *due = None;
        }
    }
}

impl Engine {
    /// The membership changed.
    pub(super) fn membership_changed(&mut self, members: Members) {
        self.members = members;
        match &mut self.take_over {
            TakeOver::Reading { again, .. } | TakeOver::Confirming { again, .. } => *again = true,
            TakeOver::Settled => self.rebalance(),
        }
    }

    /// Looks whether this scheduler is, or was, cut off. Others may have fired its jobs meanwhile,
    /// so it fires nothing until it has taken them over anew.
    pub(super) fn look_at_standing(&mut self) {
        let lapses = self.ties.standing.lapses();
        let inside = self.is_inside();
        if !inside || lapses != self.lapses {
            if !self.cut_off {
                tracing::warn!(
                    "This scheduler was cut off, or its clock is wrong; it fires again when it is a member."
                );
                self.freeze();
            }
            (self.cut_off, self.lapses) = (true, lapses);
        }
        if self.cut_off && inside && matches!(self.take_over, TakeOver::Settled) {
            self.rebalance();
        }
    }

    /// Gives up jobs that are others', and begins to take over those that are this member's.
    fn rebalance(&mut self) {
        if !self.ready || !self.is_inside() {
            return;
        }
        let anew = std::mem::take(&mut self.cut_off);
        self.lapses = self.ties.standing.lapses();
        let given_up = |engine: &Self, job: &&JobId| anew || !engine.owns(job);
        let all = self.scheduled.keys().chain(self.lagging.without_past());
        let jobs: Vec<JobId> = all.filter(|job| given_up(self, job)).cloned().collect();
        self.freeze();
        self.leave_cursors(&jobs);
        let missing: Arc<BTreeMap<JobId, DateTime<Utc>>> =
            Arc::new(self.missing().map(|job| (job.id().clone(), job.since())).collect());
        self.take_over = TakeOver::Reading { jobs: missing.clone(), again: false };
        let firing = self.firing.clone();
        self.tasks.spawn(async move {
            loop {
                let now = firing.clock.now();
                match Recovered::read(&firing.buckets, now, &missing).await {
                    Ok(recovered) => return Happening::Recovered(Box::new(recovered)),
                    Err(error) => {
                        tracing::warn!(%error, "The past of the jobs to take over is not read; it is tried again.");
                    }
                }
                if firing.pause().await.is_err() {
                    return Happening::Interrupted;
                }
            }
        });
    }

    /// The past is read: the jobs get their places, and the watermark goes back before them.
    ///
    /// *Invariant: a job fires only when its own past was read.* What became this member's in the
    /// meantime waits for the next reading: of it nothing is known.
    pub(super) fn recovered(&mut self, mut recovered: Recovered) {
        let TakeOver::Reading { jobs: read, again } = std::mem::take(&mut self.take_over) else {
            return;
        };
        self.complete_held(std::mem::take(&mut recovered.past.held));
        let mut taken = Vec::new();
        let mut floor_ms = self.firing.clock.now_ms();
        let missing = self.missing().filter(|job| read.contains_key(job.id()));
        for kept in missing.collect::<Vec<_>>() {
            let job = kept.id().clone();
            if let Some(cursor) = recovered.lagging.remove(&job) {
                self.await_past(&kept, cursor);
                continue;
            }
            let Some(definition) = kept.whole() else { continue };
            let accounted = recovered.past.take_accounted(&job);
            let place = recover::place(&definition, recovered.start);
            let scheduled = Scheduled::new(kept, place, accounted);
            let due = scheduled.next_due().map(|due| due.timestamp_millis());
            floor_ms = due.map_or(floor_ms, |due| floor_ms.min(due - 1));
            self.fold(scheduled.job(), due);
            taken.push((job, scheduled, due));
        }
        // All at once: a tree that is built of what is in order has full nodes.
        let jobs = taken.iter().map(|(job, _, due)| (job.clone(), *due)).collect();
        let taken = taken.into_iter().map(|(job, scheduled, _)| (job, scheduled));
        self.scheduled.append(&mut taken.collect());
        let floor_ms = self.floor_ms.map_or(floor_ms, |frozen| frozen.min(floor_ms));
        self.floor_ms = Some(floor_ms);
        self.take_over = TakeOver::Confirming { floor_ms, jobs, again };
        self.look_at_lagging();
        self.report();
        // Whoever left during the reading left jobs that were not read: its watermark stays.
        if !again && self.missing().next().is_none() {
            let departed: BTreeSet<Instance> =
                recovered.seen.into_iter().filter(|instance| !self.members.has(instance)).collect();
            self.ties.walked.send_replace(departed);
        }
        self.confirmed();
    }

    /// A watermark is stored: if it is far enough back, the jobs that were taken over fire.
    pub(super) fn confirmed(&mut self) {
        let stored = self.ties.stored.borrow().as_ref().map(|stored| stored.watermark_ms);
        let TakeOver::Confirming { floor_ms, jobs, again } = &mut self.take_over else { return };
        if stored.is_none_or(|stored| stored > *floor_ms) {
            return;
        }
        let (jobs, again) = (std::mem::take(jobs), *again);
        self.take_over = TakeOver::Settled;
        self.floor_ms = None;
        tracing::info!(jobs = jobs.len(), all = self.scheduled.len(), "Jobs are taken over.");
        let mut known = Vec::new();
        for (job, due) in jobs {
            match due {
                Some(due) => known.push((job, due)),
                None => self.arm(&job),
            }
        }
        self.timer.set_all(known);
        self.read_past();
        // Also a job that was saved meanwhile waits to be taken over.
        if again || self.missing().next().is_some() {
            self.rebalance();
        }
    }

    /// The watermark does not advance until what is taken over is under way. Where it is stored it
    /// also covers the jobs whose own cursors are not.
    fn freeze(&mut self) {
        let last = self.ties.progress.borrow().as_ref().map(|progress| progress.watermark_ms);
        let stored = self.ties.stored.borrow().as_ref().map(|stored| stored.watermark_ms);
        self.floor_ms = [self.floor_ms, last, stored].into_iter().flatten().min();
    }

    /// This member's jobs that it does not fire yet, but those whose past is still to be read; in
    /// the order of their ids.
    fn missing(&self) -> impl Iterator<Item = Arc<Kept>> + '_ {
        // Both are in order: going along them is faster than to look for each of a million.
        let mut scheduled = self.scheduled.keys().peekable();
        let mut is_scheduled = move |job: &JobId| {
            while scheduled.next_if(|known| *known < job).is_some() {}
            scheduled.peek() == Some(&job)
        };
        let all = self.jobs.all().into_iter();
        all.filter(move |job| {
            let known = is_scheduled(job.id()) || self.lagging.awaits_past(job.id()).is_some();
            !known && self.owns(job.id())
        })
    }

    /// Half-done fires of this member's jobs: of those that have gone at once, of the living after
    /// a while. Its own count, too: it may have given one up whose lock was stored and never confirmed.
    pub(super) fn complete_held(&mut self, held: Vec<Held>) {
        let (mut gone, mut living) = (Vec::new(), Vec::new());
        for held in held {
            let owner = &held.intent.owner;
            if self.catch_up.looks_after(&held.id) || !self.owns(&held.id.job) {
                continue;
            }
            let lives = self.members.has(owner);
            let due_ms = held.intent.fire_time.timestamp_millis();
            let (job, since, at) = (held.id.job.clone(), held.intent.since, held.intent.fire_time);
            self.under_way.begin(&job, due_ms);
            let open = Open { job, since, at, due_ms, held };
            if lives { living.push(open) } else { gone.push(open) }
        }
        let now = Instant::now();
        self.catch_up.hold(living, now);
        self.catch_up.hold_overdue(gone, now);
        self.look_after_held();
    }
}
