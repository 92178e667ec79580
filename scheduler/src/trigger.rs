//! Triggers: fire this job now, whatever its schedule says.
//!
//! All schedulers pull from one durable consumer. *Invariants.* A trigger is acked only after its
//! fired record is stored; one that is delivered again is always completed; one whose id was used
//! before fires nothing.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use taskparty_common::fire::{FireId, Fired, Plan, Skipped, TriggerRequest};
use taskparty_common::job::Overlap;
use taskparty_common::outcome::{SkipReason, Trigger, TriggerResult};
use taskparty_nats::consume::{Pull, PullConfig, Received};
use taskparty_nats::lease::{self, Delivery, Renewer};
use taskparty_nats::subject::{Bucket, SCHEDULERS};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::task::TaskTracker;

use crate::definition::Definition;
use crate::fire::{Fire, Firing, Request};
use crate::jobs::{self, Jobs};

/// Triggers that are fired side by side.
const ROOM: usize = 256;

/// Retries that somebody has begun and that are gone on with side by side, some of them for as long
/// as a lease: they leave room for others.
pub(crate) const RETRIES: usize = ROOM / 2;

/// How long NATS leaves a trigger to who has it: the ack-wait of the consumer.
const HELD: Duration = Duration::from_secs(30);

/// How long an ack is tried; without it the trigger comes again, and changes nothing.
const ACK: Duration = Duration::from_secs(5);

/// How long whoever took a lock has, until another one completes the fire.
const PATIENCE: Duration = Duration::from_secs(5);

/// The clocks of two servers may differ by this much.
const MARGIN: TimeDelta = TimeDelta::seconds(2);

/// A key can be told from a new one for at least this long.
const KEY_LIFE: Duration = Duration::from_secs(7 * 86_400);

/// Fires what is triggered.
#[derive(Debug, Clone)]
pub(crate) struct Triggers {
    pub(crate) firing: Firing,
    pub(crate) jobs: Jobs,
}

/// What a trigger comes to.
pub(crate) enum Decision {
    Fire(Arc<Definition>, Plan),
    /// The job is paused, and takes none of this kind.
    Paused(Arc<Definition>),
    /// There is no such job any more.
    JobGone,
    /// It is not to run, for this reason.
    Refused(String),
    /// It belongs to a past of the job that is over.
    Over,
    /// The job cannot be read now.
    Unknown,
}

impl Triggers {
    /// Pulls and fires triggers until the node ends, then waits for those under way.
    pub(crate) async fn run(self) {
        let nats = self.firing.nats().clone();
        let stream = nats.names().triggers_stream();
        let mut pull = Pull::new(nats.js(), stream, SCHEDULERS, PullConfig::default());
        let slots = Arc::new(Semaphore::new(ROOM));
        let mut reserved = Vec::new();
        let tasks = TaskTracker::new();
        let shutdown = self.firing.shutdown.clone();
        let renewer = Renewer::start(self.firing.publisher().clone(), &shutdown);
        loop {
            let next = tokio::select! {
                next = pull.next_slot(&slots, &mut reserved) => next,
                () = shutdown.cancelled() => break,
            };
            let Ok((received, slot)) = next else { break };
            let (triggers, renewer) = (self.clone(), renewer.clone());
            tasks.spawn(async move {
                triggers.handle(received, &renewer).await;
                drop(slot);
            });
        }
        for received in pull.stop().await {
            let _ = lease::nak(self.firing.publisher(), &received.delivery, ACK).await;
        }
        tasks.close();
        tasks.wait().await;
    }

    async fn handle(&self, received: Received, renewer: &Renewer) {
        let publisher = self.firing.publisher();
        // It may take longer, as a retry that waits for the lease of the attempt before.
        let lease = renewer.keep(received.delivery.clone(), HELD);
        let mut retry = false;
        let over = match serde_json::from_slice::<TriggerRequest>(&received.message.payload) {
            Ok(request) if request.backfill.is_some() => {
                self.step(request, &received.delivery).await
            }
            Ok(request) => {
                retry = request.retry.is_some();
                self.fire(request, &received.delivery).await
            }
            Err(error) => {
                tracing::error!(%error, subject = %received.message.subject, "A trigger cannot be read; it is dropped.");
                true
            }
        };
        drop(lease);
        if !over && retry && !self.firing.shutdown.is_cancelled() {
            // Too many wait, perhaps: it comes again by itself, when this delivery has lapsed.
            return;
        }
        let acked = match over {
            true => lease::ack(publisher, &received.delivery, ACK).await,
            false => lease::nak(publisher, &received.delivery, ACK).await,
        };
        if let Err(error) = acked {
            tracing::warn!(%error, "A trigger is not acked; it comes again and changes nothing.");
        }
    }

    /// Fires one trigger; true when it is over.
    pub(crate) async fn fire(&self, trigger: TriggerRequest, delivery: &Delivery) -> bool {
        let id = FireId::trigger(trigger.job.clone(), trigger.id.clone());
        let mut skipped = None;
        let (definition, plan) = match self.decide(&trigger).await {
            Decision::Fire(definition, plan) => (definition, plan),
            Decision::Paused(definition) => {
                let (reason, first) = (SkipReason::Paused, trigger.at);
                skipped = Some(Skipped { reason, count: 1, first });
                (definition, Plan::whole(1))
            }
            Decision::JobGone => {
                let reason = SkipReason::Deleted;
                let skipped = Skipped { reason, count: 1, first: trigger.at };
                return self.refuse(id, trigger, "the job is deleted", Some(skipped)).await;
            }
            Decision::Refused(why) => return self.refuse(id, trigger, &why, None).await,
            Decision::Over => return true,
            Decision::Unknown => return false,
        };
        let request = Request {
            id,
            run: trigger.run,
            definition,
            trigger: trigger.trigger,
            fire_time: trigger.retry.as_ref().map_or(trigger.at, |retry| retry.fire_time),
            plan,
            instance: trigger.instance,
            skipped,
            params: trigger.params,
            until_next: Some(KEY_LIFE / 2),
            decided_until: None,
            accounted: None,
        };
        match self.firing.fire(request).await {
            Fire::Recorded(_) => true,
            // Someone has fired this id before. If that was an earlier delivery of this message,
            // whoever had it may have died half way.
            Fire::Held(held) if delivery.delivered > 1 => self.firing.complete(&held).await,
            // It was stored before the lock, so the lock may be its own: the count begins again
            // with a consumer that is made anew. Or it is one of several, and another is at it.
            Fire::Held(held) if delivery.stored_at <= held.stored_at + MARGIN => {
                let _ = timeout(PATIENCE, self.firing.shutdown.cancelled()).await;
                self.firing.complete(&held).await
            }
            Fire::Held(_) => true,
            Fire::Locked(_) | Fire::Undecided => false,
        }
    }

    pub(crate) async fn decide(&self, trigger: &TriggerRequest) -> Decision {
        let current = match self.jobs.get(&trigger.job).and_then(|job| job.peek()) {
            Some(definition) => Some(definition),
            // It may be too new for the watch.
            None => match self.read(trigger).await {
                Ok(found) => found,
                Err(()) => return Decision::Unknown,
            },
        };
        let Some(current) = current else { return Decision::JobGone };
        if !trigger.refused.is_empty() {
            return Decision::Refused(trigger.refused.clone());
        }
        // In milliseconds, as history knows it: the definition's own is finer.
        let past = current.since().timestamp_millis();
        if trigger.since.is_some_and(|since| since.timestamp_millis() != past) {
            return Decision::Over;
        }
        // What somebody asks for works all the same.
        let follows = trigger.trigger == Trigger::Dependency;
        if follows && current.job.is_paused(self.firing.clock.now()) {
            return Decision::Paused(current);
        }
        let Some(retry) = &trigger.retry else {
            let plan = Plan::whole(current.spec().shards.count().unwrap_or(1));
            let current = match with_overlap(trigger, &current) {
                Some(other) => Arc::new(other),
                None => current,
            };
            return Decision::Fire(current, plan);
        };
        match Definition::frozen(&retry.definition, retry.revision, retry.since) {
            Ok(frozen) => Decision::Fire(Arc::new(frozen), retry.plan.clone()),
            Err(error) => {
                tracing::error!(job = %trigger.job, run = %trigger.run, %error, "The definition of a retry cannot be read; today's is used.");
                Decision::Fire(current, retry.plan.clone())
            }
        }
    }

    async fn read(&self, trigger: &TriggerRequest) -> Result<Option<Arc<Definition>>, ()> {
        let job = &trigger.job;
        match self.firing.buckets.get_leader(Bucket::Jobs, job.as_str()).await {
            Ok(Some(entry)) => {
                let Some(value) = entry.value else { return Ok(None) };
                let read = jobs::read(job, entry.revision, &value);
                Ok(read
                    .inspect_err(
                        |error| tracing::error!(%job, %error, "A stored job cannot be read."),
                    )
                    .ok()
                    .map(Arc::new))
            }
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::warn!(%job, %error, "A job cannot be looked up; its trigger waits.");
                Err(())
            }
        }
    }

    /// Records that a trigger comes to nothing, and why.
    async fn refuse(
        &self,
        id: FireId,
        trigger: TriggerRequest,
        why: &str,
        skipped: Option<Skipped>,
    ) -> bool {
        let now = self.firing.clock.now();
        let retry = trigger.retry;
        let plan = Plan::whole(1);
        let fired = Fired {
            v: 1,
            lock: id.lock_key(),
            run: trigger.run,
            job: trigger.job,
            app: trigger.app,
            handler: trigger.handler,
            revision: retry.as_ref().map_or(0, |retry| retry.revision),
            since: retry.as_ref().map_or(trigger.at, |retry| retry.since),
            owner: self.firing.instance.clone(),
            trigger: trigger.trigger,
            result: TriggerResult::Refused,
            message: why.into(),
            fire_time: retry.as_ref().map_or(trigger.at, |retry| retry.fire_time),
            fired_at: now,
            start_by: None,
            plan: retry.as_ref().map_or(plan, |retry| retry.plan.clone()),
            skipped,
            definition: match retry {
                Some(retry) => retry.definition,
                None => serde_json::value::RawValue::NULL.to_owned(),
            },
            params: trigger.params,
        };
        self.firing.store_fired(&fired).await
    }
}

/// The definition that a trigger goes by which asks for another overlap policy than the job's.
fn with_overlap(trigger: &TriggerRequest, current: &Definition) -> Option<Definition> {
    let wanted = trigger.overlap.as_deref().and_then(Overlap::from_word)?;
    // What the job's other settings have ruled out since it was asked for does not hold.
    let ruled_out = wanted == Overlap::Replace && current.spec().max_running.unwrap_or(1) > 1;
    if wanted == current.spec().overlap || ruled_out {
        return None;
    }
    let other = current.with_overlap(wanted);
    other
        .inspect_err(|error| {
            tracing::error!(job = %trigger.job, %error, "A definition cannot be written; the job's overlap policy holds.");
        })
        .ok()
}
