//! A fire of a job that may not overlap itself: it asks for a place, and waits for one.

use taskparty_common::fire::{FireId, Intent, Plan, Skipped};
use taskparty_common::job::{JobSpec, Overlap};
use taskparty_common::name::JobId;
use taskparty_common::outcome::{SkipReason, TriggerResult};
use taskparty_common::overlap::Admission;
use taskparty_nats::bucket::BucketError;
use taskparty_nats::fail_point;
use uuid::Uuid;

use super::record::Verdict;
use super::{Firing, Held};
use crate::definition::Definition;
use crate::overlap::Kept;
use crate::route::{Chance, Router};

/// What a fire does that asked for a place.
pub(super) enum Place {
    /// It goes on.
    Free,
    /// It does not, and this is recorded.
    Over(Verdict),
    /// The node ended first.
    Interrupted,
}

/// Whether a fire with this plan needs a place: a retry has its run's.
pub(super) fn asks_for_place(spec: &JobSpec, plan: &Plan) -> bool {
    spec.overlap != Overlap::Allow && plan.only.is_none()
}

impl Firing {
    /// Asks for a place, until there is an answer. A retry has its run's.
    pub(super) async fn ask_for_place(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
    ) -> Place {
        let spec = definition.spec();
        if !asks_for_place(spec, &intent.plan) {
            return Place::Free;
        }
        loop {
            match self.admit(id, intent, definition).await {
                Ok(Admission::Active) => return Place::Free,
                Ok(Admission::Waiting | Admission::Promoted) => {
                    let message = "an earlier run goes on; it waits for its turn";
                    return Place::Over(Verdict::new(TriggerResult::Queued, message));
                }
                Ok(Admission::Ended) => {
                    let message = "it had ended before this was recorded";
                    return Place::Over(Verdict::new(TriggerResult::Dispatched, message));
                }
                Ok(Admission::Overlap) => return skipped(intent, SkipReason::Overlap),
                Ok(Admission::QueueFull) => return skipped(intent, SkipReason::QueueFull),
                Err(error) => {
                    tracing::warn!(fire = %id, %error, "A place is not confirmed; it is asked for again.");
                }
            }
            if self.pause().await.is_err() {
                return Place::Interrupted;
            }
        }
    }

    async fn admit(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
    ) -> Result<Admission, BucketError> {
        let admission = self.queues.admit(definition.spec(), intent.run, intent.trigger).await?;
        if admission == Admission::Waiting {
            fail_point!("fire.after_queued");
            self.queues.keep(id, intent).await?;
        }
        Ok(admission)
    }

    /// Gives free places of `job` to runs that wait, and dispatches them. What cannot be done now
    /// is left as it is, for the next call.
    pub(crate) async fn promote(&self, job: &JobId) {
        if let Err(error) = self.try_promote(job).await {
            tracing::warn!(%job, %error, "Waiting runs are not promoted; it is tried again.");
        }
    }

    async fn try_promote(&self, job: &JobId) -> Result<(), BucketError> {
        let (new, left) = self.queues.promote(job).await?;
        fail_point!("fire.after_promoted");
        for run in new {
            self.start_waiter(job, run, Found::Fresh).await?;
        }
        for run in left {
            self.start_waiter(job, run, Found::Left).await?;
        }
        Ok(())
    }

    /// Dispatches a run that waited.
    async fn start_waiter(&self, job: &JobId, run: Uuid, found: Found) -> Result<(), BucketError> {
        let Some(kept) = self.queues.kept(job, run).await? else {
            // Whoever queued it died before it kept the intent: the lock's completion keeps it.
            return Ok(());
        };
        let Some(Kept { waiter, stored_at, .. }) = self.routed(kept).await? else { return Ok(()) };
        let Some(id) = FireId::from_lock_key(&waiter.lock) else {
            tracing::error!(%job, %run, "A waiting run has no lock; its place is given back.");
            return self.queues.release(job, run).await;
        };
        let held = Held { id, intent: waiter.intent, stored_at };
        let over = match found {
            Found::Fresh => self.dispatch_waiter(&held, &[]).await,
            // It may have been dispatched, and may even have ended.
            Found::Left => self.complete_waiter(&held).await,
        };
        if over { self.queues.dispatched(job, run).await } else { Ok(()) }
    }

    /// Chooses the executors of a run that has its place, unless that is done.
    ///
    /// *Invariant: the choice is stored before anything is dispatched by it*, and only the first one is.
    async fn routed(&self, kept: Kept) -> Result<Option<Kept>, BucketError> {
        let intent = &kept.waiter.intent;
        let definition = Definition::frozen(&intent.definition, intent.revision, intent.since);
        let Ok(definition) = definition else { return Ok(Some(kept)) };
        let spec = definition.spec();
        if kept.waiter.routed || intent.instance.is_some() || !Router::has_a_say(spec) {
            return Ok(Some(kept));
        }
        let plan = Plan::whole(intent.plan.total);
        let plan = self.router.route(spec, intent.run, plan, Chance::Sure).await;
        self.queues.keep_plan(kept, plan).await
    }

    /// Ends the runs that wait of a job that is gone. What cannot be done now is left as it is, for
    /// the next call.
    pub(crate) async fn end_waiters(&self, job: &JobId) {
        if let Err(error) = self.try_end_waiters(job).await {
            tracing::warn!(%job, %error, "Waiting runs of a deleted job are not ended; it is tried again.");
        }
    }

    async fn try_end_waiters(&self, job: &JobId) -> Result<(), BucketError> {
        for run in self.queues.waiting(job).await? {
            if let Some(Kept { waiter, .. }) = self.queues.kept(job, run).await?
                && let Some(id) = FireId::from_lock_key(&waiter.lock)
                && !self.record_deleted(&id, waiter.intent).await
            {
                return Ok(());
            }
            self.queues.release(job, run).await?;
            self.queues.drop_intent(job, run).await?;
        }
        Ok(())
    }
}

/// How a run that is to be dispatched was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// It has just got its place.
    Fresh,
    /// It got its place from someone who may have died half way.
    Left,
}

fn skipped(intent: &Intent, reason: SkipReason) -> Place {
    let skipped = Skipped { reason, count: 1, first: intent.fire_time };
    Place::Over(Verdict::skipped(skipped))
}
