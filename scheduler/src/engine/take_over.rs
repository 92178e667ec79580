//! Taking over jobs when the membership changes: first their past is read, then the own watermark
//! is moved back before it, and only when that is stored do they fire.

use std::collections::BTreeSet;
use std::iter::Peekable;
use std::sync::Arc;

use taskparty_common::name::{Instance, JobId};
use tokio::time::Instant;

use super::catch_up::Open;
use super::ownership::Members;
use super::scheduled::Scheduled;
use super::{Engine, Happening};
use crate::cursor::Confirmed;
use crate::fire::Held;
use crate::kept::Kept;
use crate::recover::{Recovered, ToTakeOver};

/// How far taking over is.
#[derive(Debug, Default)]
pub(super) enum TakeOver {
    /// Nothing is being taken over.
    #[default]
    Settled,
    /// The past of `jobs` is being read. `again`: the membership changed meanwhile.
    Reading { jobs: Arc<ToTakeOver>, again: bool },
    /// The watermark is being moved back to `floor_ms`; then the timer lets out what it holds.
    Confirming { floor_ms: i64, again: bool },
}

/// Jobs in the order of their ids, for going along others in that order: faster than to look for
/// each of a million.
struct Along<I: Iterator>(Peekable<I>);

impl<'a, I: Iterator<Item = &'a JobId>> Along<I> {
    fn new(jobs: I) -> Self {
        Self(jobs.peekable())
    }

    /// Whether `job` is among them; no job that was asked for before comes after it.
    fn have(&mut self, job: &JobId) -> bool {
        while self.0.next_if(|known| *known < job).is_some() {}
        self.0.peek() == Some(&job)
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
        let scheduled = self.scheduled.iter().map(|(job, _)| job);
        let all = scheduled.chain(self.lagging.without_past());
        let jobs: Vec<JobId> = all.filter(|job| given_up(self, job)).cloned().collect();
        self.freeze();
        self.leave_cursors(&jobs);
        let missing = Arc::new(ToTakeOver(self.missing()));
        self.take_over = TakeOver::Reading { jobs: missing.clone(), again: false };
        let firing = self.firing.clone();
        self.tasks.spawn(async move {
            loop {
                let now = firing.clock.now();
                let read = Recovered::read(&firing.buckets, now, &missing);
                match firing.shutdown.run_until_cancelled(read).await {
                    None => return Happening::Interrupted,
                    Some(Ok(recovered)) => return Happening::Recovered(Box::new(recovered)),
                    Some(Err(error)) => {
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
        let mut loaded = self.loaded.end();
        let mut floor_ms = self.firing.clock.now_ms();
        let mut read = Along::new(read.0.iter().map(|kept| kept.id()));
        let mut missing = self.missing();
        missing.retain(|job| read.have(job.id()));
        let mut taken = Vec::with_capacity(missing.len());
        for kept in missing {
            let job = kept.id().clone();
            if let Some(cursor) = recovered.lagging.remove(&job) {
                self.await_past(&kept, cursor);
                continue;
            }
            let accounted = recovered.past.take_accounted(&job);
            let known = loaded.take(&kept, recovered.start).filter(|_| accounted.is_none());
            let anew = || Scheduled::after(kept.clone(), recovered.start, accounted).timed();
            let timed = known.unwrap_or_else(anew);
            floor_ms = timed.due_ms().map_or(floor_ms, |due| floor_ms.min(due - 1));
            self.fold(&kept, timed.due_ms());
            taken.push((job, timed));
        }
        self.scheduled.hold(taken);
        let floor_ms = self.floor_ms.map_or(floor_ms, |frozen| frozen.min(floor_ms));
        self.floor_ms = Some(floor_ms);
        self.take_overs += 1;
        self.take_over = TakeOver::Confirming { floor_ms, again };
        self.look_at_lagging();
        self.report();
        // Whoever left during the reading left jobs that were not read: its watermark stays.
        if !again && self.missing().is_empty() {
            let departed: BTreeSet<Instance> =
                recovered.seen.into_iter().filter(|instance| !self.members.has(instance)).collect();
            self.ties.walked.send_replace(departed);
        }
    }

    /// A watermark is stored: if it is far enough back, the jobs that were taken over fire.
    ///
    /// *Invariant: what was stored before they were taken over does not count*, however far back: a later
    /// one may be on its way to take its place, or another member may have removed it since.
    pub(super) fn confirmed(&mut self) {
        let marks = |stored: &Confirmed| (stored.take_overs, stored.watermark_ms);
        let stored = self.ties.stored.borrow().as_ref().map(marks);
        let TakeOver::Confirming { floor_ms, again } = self.take_over else { return };
        if stored.is_none_or(|(count, ms)| count < self.take_overs || ms > floor_ms) {
            return;
        }
        self.take_over = TakeOver::Settled;
        self.floor_ms = None;
        let jobs = self.scheduled.release();
        tracing::info!(jobs, all = self.scheduled.len(), "Jobs are taken over.");
        self.read_past();
        // Also a job that was saved meanwhile waits to be taken over.
        if again || !self.missing().is_empty() {
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
    fn missing(&self) -> Vec<Arc<Kept>> {
        let mut scheduled = Along::new(self.scheduled.iter().map(|(job, _)| job));
        self.jobs.select(|job| {
            let known = scheduled.have(job.id()) || self.lagging.awaits_past(job.id()).is_some();
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
