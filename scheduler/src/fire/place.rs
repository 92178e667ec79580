//! A fire of a job that may not overlap itself, or has a rate: it asks for a place, and waits for one.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::ask::{Ask, Asked};
use taskparty_common::fire::{FireId, Intent, Plan, Skipped};
use taskparty_common::job::{JobSpec, Overlap};
use taskparty_common::name::JobId;
use taskparty_common::outcome::{SkipReason, TriggerResult};
use taskparty_common::overlap::{AT_ONCE, Admission, Place as Found};
use taskparty_nats::bucket::BucketError;
use taskparty_nats::fail_point;
use taskparty_nats::publish::{Draft, PublishError};
use tokio::time::Instant;
use uuid::Uuid;

use super::record::{Stopped, Verdict};
use super::{Firing, Held};
use crate::definition::Definition;
use crate::overlap::{Answer, Bounds, KeptWaiter};
use crate::route::{Certainty, Router};

/// How long it is looked for where a run is.
const PATIENCE: Duration = Duration::from_secs(10);

/// A fire that was locked more recently may be on its way to its entry.
const YOUNG: TimeDelta = TimeDelta::seconds(5);

/// What a fire does that asked for a place.
pub(super) enum Place {
    /// It goes on.
    Free,
    /// It does not, and this is recorded.
    Over(Verdict),
    /// It was not asked for.
    Stopped(Stopped),
}

/// When there is more to do for waiting runs of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum More {
    AtOnce,
    /// When its entry changes, or its rate lets the next one begin.
    Later,
}

/// Whether a fire with this plan needs a place: a retry has its run's.
pub(super) fn asks_for_place(spec: &JobSpec, plan: &Plan) -> bool {
    spec.places().is_some() && plan.only.is_none()
}

/// Where the run of a fire is that was locked a while ago.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whereabouts {
    /// It has its place, or needs none, or nobody knows.
    GoesOn,
    /// It waits.
    Waits,
    /// It was not let in.
    LeftOut(SkipReason),
}

impl Firing {
    /// Where the run of a lock is, by the entry of its job.
    pub(super) async fn whereabouts(&self, held: &Held, definition: &Definition) -> Whereabouts {
        let (intent, spec) = (&held.intent, definition.spec());
        if !asks_for_place(spec, &intent.plan) {
            return Whereabouts::GoesOn;
        }
        let end = Instant::now() + PATIENCE;
        loop {
            // What is on its way is waited for: whoever locked it, or promotes it.
            let found = match self.queues.find(&intent.job, intent.run).await {
                Ok(Some(Found::Waiting)) => return Whereabouts::Waits,
                Ok(Some(Found::Active | Found::Ended) | None) => return Whereabouts::GoesOn,
                Ok(Some(Found::Due)) => Whereabouts::Waits,
                Ok(Some(Found::Unknown)) if spec.overlap == Overlap::Skip => {
                    Whereabouts::LeftOut(SkipReason::Overlap)
                }
                Ok(Some(Found::Unknown)) => Whereabouts::LeftOut(SkipReason::QueueFull),
                Err(error) => {
                    tracing::warn!(fire = %held.id, %error, "Where a run is cannot be seen; it is looked for again.");
                    Whereabouts::GoesOn
                }
            };
            let old = self.clock.now() - intent.planned_at > YOUNG;
            let left_out = matches!(found, Whereabouts::LeftOut(_));
            if (old && left_out) || Instant::now() >= end || self.pause().await.is_err() {
                return found;
            }
        }
    }

    /// Asks for a place, until there is an answer: for a fire that [`asks_for_place`].
    pub(super) async fn ask_for_place(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
        send_by: Option<DateTime<Utc>>,
    ) -> Place {
        let spec = definition.spec();
        loop {
            if send_by.is_some_and(|by| self.clock.now() > by) {
                return Place::Stopped(Stopped::Over);
            }
            let answer = self.admit(id, intent, definition).await;
            let held =
                answer.as_ref().ok().and_then(|answer| Some((answer.held_until?, answer.before)));
            match answer.map(|answer| answer.admission) {
                Ok(Admission::Active) => return Place::Free,
                Ok(Admission::Waiting | Admission::Promoted) => {
                    return Place::Over(match (spec.rate, held) {
                        (Some(rate), Some((at, before))) => Verdict::held(rate, at, before),
                        _ => Verdict::waits(),
                    });
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
                return Place::Stopped(Stopped::Interrupted);
            }
        }
    }

    async fn admit(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
    ) -> Result<Answer, BucketError> {
        let spec = definition.spec();
        let answer = self.queues.admit(spec, intent.run, intent.trigger).await?;
        if answer.admission == Admission::Waiting {
            fail_point!("fire.after_queued");
            self.queues.keep(id, intent).await?;
        }
        for run in &answer.replaced {
            self.stop_for(*run, intent, spec).await?;
        }
        Ok(answer)
    }

    /// Asks `run` to stop, for the one that replaces it: the log writer sees to it. *Invariant: that
    /// is stored before the later run is recorded*, so whoever completes a half-done fire asks again,
    /// and a run that waits is never waited for in vain.
    async fn stop_for(
        &self,
        run: Uuid,
        later: &Intent,
        spec: &JobSpec,
    ) -> Result<(), PublishError> {
        let asked = Asked {
            v: 1,
            run,
            job: spec.id.clone(),
            app: spec.app.clone(),
            ask: Ask::Cancel { round: None },
            by: format!("the later run {}", later.run),
            at: self.clock.now(),
        };
        let Ok(body) = serde_json::to_vec(&asked) else { return Ok(()) };
        let draft = Draft::new(self.nats().names().asked(&asked.app), body);
        // A run that was tried again may be replaced again.
        let draft = draft.id(format!("{}.for.{}", asked.message_id(), later.run));
        self.publisher().publish_within(draft, PATIENCE).await.map(drop)
    }

    /// Gives free places of `job`, inside `bounds`, to a few runs that wait, and dispatches them.
    /// What cannot be done now is left as it is, for the next call.
    pub(crate) async fn promote(&self, job: &JobId, bounds: Bounds) -> More {
        let promoted = self.try_promote(job, bounds).await;
        promoted.unwrap_or_else(|error| {
            tracing::warn!(%job, %error, "Waiting runs are not promoted; it is tried again.");
            More::Later
        })
    }

    async fn try_promote(&self, job: &JobId, bounds: Bounds) -> Result<More, BucketError> {
        let (new, left) = self.queues.promote(job, bounds).await?;
        fail_point!("fire.after_promoted");
        let more = if new.len() < AT_ONCE { More::Later } else { More::AtOnce };
        for run in new {
            self.start_waiter(job, run, Start::Fresh).await?;
        }
        for run in left {
            self.start_waiter(job, run, Start::Left(bounds)).await?;
        }
        Ok(more)
    }

    /// Dispatches a run that waited.
    async fn start_waiter(&self, job: &JobId, run: Uuid, how: Start) -> Result<(), BucketError> {
        let Some(kept) = self.queues.kept(job, run).await? else {
            // Whoever queued it died before it kept the intent: the lock's completion keeps it.
            return Ok(());
        };
        let Some(KeptWaiter { waiter, stored_at, .. }) = self.routed(kept).await? else {
            return Ok(());
        };
        let Some(id) = FireId::from_lock_key(&waiter.lock) else {
            tracing::error!(%job, %run, "A waiting run has no lock; its place is given back.");
            return self.queues.release(job, run).await;
        };
        let held = Held { id, intent: waiter.intent, stored_at };
        let over = match how {
            Start::Fresh => self.dispatch_waiter(&held, &[], Instant::now()).await,
            // It may have been dispatched, and may even have ended.
            Start::Left(bounds) => self.complete_waiter(&held, bounds).await,
        };
        if over { self.queues.dispatched(job, run).await } else { Ok(()) }
    }

    /// Chooses the executors of a run that has its place, unless that is done.
    ///
    /// *Invariant: the choice is stored before anything is dispatched by it*, and only the first one is.
    async fn routed(&self, kept: KeptWaiter) -> Result<Option<KeptWaiter>, BucketError> {
        let intent = &kept.waiter.intent;
        let definition = Definition::frozen(&intent.definition, intent.revision, intent.since);
        let Ok(definition) = definition else { return Ok(Some(kept)) };
        let spec = definition.spec();
        if kept.waiter.routed || intent.instance.is_some() || !Router::has_a_say(spec) {
            return Ok(Some(kept));
        }
        let plan = Plan::whole(intent.plan.total);
        let plan = self.router.route(spec, intent.run, plan, Certainty::Sure).await;
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
            if let Some(KeptWaiter { waiter, .. }) = self.queues.kept(job, run).await?
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
enum Start {
    /// It has just got its place.
    Fresh,
    /// It got its place from someone who may have died half way; what bounds its job now.
    Left(Bounds),
}

fn skipped(intent: &Intent, reason: SkipReason) -> Place {
    let skipped = Skipped { reason, count: 1, first: intent.fire_time };
    Place::Over(Verdict::skipped(skipped))
}
