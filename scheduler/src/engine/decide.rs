//! Deciding: what changes of jobs mean, when each is next due, and what to do then.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::fire::{FireId, Plan};
use taskparty_common::job::Job;
use taskparty_common::name::JobId;
use taskparty_nats::bucket;

use super::catch_up::Due;
use super::scheduled::{Scheduled, due_of};
use super::step::{self, Accounted, Step};
use super::take_over::TakeOver;
use super::{Done, Engine, Happening};
use crate::definition::Definition;
use crate::fire::{Firing, Request};
use crate::jobs::Change;
use crate::kept::Kept;

/// A job that is not due for longer than this is folded meanwhile. To read it again costs a few
/// microseconds, and twice that many bytes to keep it whole.
const LONG: TimeDelta = TimeDelta::minutes(10);

/// Jobs that are decided in one go, before the engine listens again.
const AT_ONCE: usize = 512;

impl Engine {
    pub(super) fn take_in(&mut self, change: bucket::Change) {
        let bucket::Change::Entry(entry) = change else {
            self.ready = true;
            self.report();
            return;
        };
        let ahead = |job: &Job| (!self.ready).then(|| self.loaded.look_ahead(job));
        match self.jobs.take_in(&entry.key, entry.revision, entry.value.as_ref(), ahead) {
            Change::Saved(job, ahead) => {
                let id = job.id().clone();
                if let Some(ahead) = ahead {
                    self.loaded.take_in(&job, ahead);
                }
                self.saved(job);
                self.look_after_waiting(&id);
            }
            Change::Gone(job) => {
                self.give_up(&job);
                self.look_after_waiting(&job);
            }
            Change::Nothing => {}
        }
        self.jobs_revision = self.jobs_revision.max(entry.revision);
        // Rare: else each of a million jobs that load would have it looked for all that lag.
        if self.lagging.is_stale() {
            self.look_at_lagging();
        }
        self.report();
    }

    /// A job is new, or has changed.
    pub(super) fn saved(&mut self, kept: Arc<Kept>) {
        let job = kept.id().clone();
        // While jobs are taken over, those that are not fired yet get their places together.
        let mine = matches!(self.take_over, TakeOver::Settled) && self.owns(&job);
        if let Some(cursor) = self.lagging.awaits_past(&job) {
            self.await_past(&kept, cursor);
            return kept.fold();
        }
        match self.scheduled.get_mut(&job) {
            Some(known) if known.job().since() == kept.since() => known.redefine(kept),
            Some(_) => self.begin(kept),
            None if mine => self.begin(kept),
            None => return kept.fold(),
        }
        self.arm(&job);
    }

    /// Begins to fire a job whose past is new.
    pub(super) fn begin(&mut self, kept: Arc<Kept>) {
        let watermark = self.ties.progress.borrow().as_ref().map(|known| known.watermark_ms);
        let watermark = watermark.and_then(DateTime::from_timestamp_millis);
        let handled = watermark.unwrap_or(DateTime::<Utc>::MIN_UTC);
        let scheduled = Scheduled::after(kept.clone(), handled, None);
        self.drop_missed(kept.id());
        self.scheduled.insert(kept.id().clone(), scheduled);
    }

    /// Fires a job no more: it is gone, or another member's.
    pub(super) fn give_up(&mut self, job: &JobId) {
        self.drop_missed(job);
        if let Some(scheduled) = self.scheduled.remove(job) {
            scheduled.job().fold();
        }
        self.let_go_of_past(job);
    }

    /// The missed instants of `job` that wait do not run any more: it is given up, or has a new past.
    fn drop_missed(&mut self, job: &JobId) {
        let again = self.scheduled.get_mut(job).map(|known| known.take_again()).unwrap_or_default();
        let waiting = [self.catch_up.forget(job), self.waiting.let_go(job)];
        let missed = waiting.into_iter().flatten().chain(again);
        missed.for_each(|due| self.under_way.end(job, due));
        self.lagging.forget(job);
    }

    /// Sets when `job` is next due, unless a missed instant of it is being fired. What is being taken
    /// over comes out when the watermark is stored all the same.
    pub(super) fn arm(&mut self, job: &JobId) {
        let Some(scheduled) = self.scheduled.get_mut(job) else { return };
        if scheduled.is_catching_up() {
            return;
        }
        let due = scheduled.next_due().map(|due| due.timestamp_millis());
        let again = scheduled.take_again();
        self.scheduled.set(job, due);
        again.into_iter().for_each(|due| self.under_way.end(job, due));
        if let Some(scheduled) = self.scheduled.get(job) {
            self.fold(scheduled.job(), due);
        }
    }

    /// Folds a job that is not due for long, if it is at all.
    pub(super) fn fold(&self, job: &Kept, due_ms: Option<i64>) {
        if due_ms.is_none_or(|due| due - self.firing.clock.now_ms() > LONG.num_milliseconds()) {
            job.fold();
        }
    }

    pub(super) fn fire_due(&mut self) {
        let now = self.firing.clock.now();
        for _ in 0..AT_ONCE {
            if !self.has_room() {
                return;
            }
            let Some(job) = self.scheduled.pop_due(now.timestamp_millis()) else { return };
            self.decide(&job, now);
        }
    }

    /// Decides the next step of `job` and has it made.
    pub(super) fn decide(&mut self, job: &JobId, now: DateTime<Utc>) {
        if self.must_wait(job, now) {
            return;
        }
        let Some(scheduled) = self.scheduled.get_mut(job) else { return };
        let Some((step, definition)) = scheduled.decide(now) else {
            self.arm(job);
            return;
        };
        let due_ms = due_of(&step, &definition).timestamp_millis();
        let late = step.is_missed();
        let several = step.skipped.as_ref().is_some_and(|skipped| skipped.count > 1);
        let accounted = several.then(|| scheduled.accounted());
        self.under_way.begin(job, due_ms);
        let done = Due { job: job.clone(), step, accounted, definition, due_ms, late };
        if !late {
            self.make(done);
            self.arm(job);
        } else if let Some(done) = self.catch_up.admit(done) {
            self.make(done);
        }
    }

    pub(super) fn make(&mut self, due: Due) {
        let firing = self.firing.clone();
        self.tasks.spawn(async move {
            let Due { job, step, accounted, definition, due_ms, late } = due;
            let (since, at) = (definition.since(), step.at);
            let request = Request { accounted, ..request(&firing, job.clone(), step, definition) };
            let fire = firing.fire(request).await;
            Happening::Fired(Box::new(Done { job, since, at, due_ms, catching_up: late, fire }))
        });
    }
}

/// The fire for a step.
fn request(firing: &Firing, job: JobId, step: Step, definition: Arc<Definition>) -> Request {
    let id = FireId::at(job, step.at);
    let run =
        id.run(firing.nats().names().prefix(), definition.since().timestamp_millis(), step.at);
    let total = definition.spec().shards.count().unwrap_or(1);
    let late = step.is_missed();
    let grace = TimeDelta::from_std(definition.spec().misfire.grace).unwrap_or(TimeDelta::MAX);
    let due = due_of(&step, &definition);
    let next = step::next_instant(&definition.job, step.at, &Accounted::default());
    Request {
        id,
        run,
        trigger: step.trigger,
        fire_time: step.at,
        plan: Plan::whole(total),
        instance: None,
        skipped: step.skipped,
        params: None,
        until_next: next.and_then(|next| (next - step.at).to_std().ok()),
        accounted: None,
        decided_until: if late { None } else { due.checked_add_signed(grace) },
        definition,
    }
}
