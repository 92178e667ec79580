//! Runs that are to stop: asked again each second until they have ended.
//!
//! History says which those are, so nothing is forgotten by a log writer that dies. Executors are
//! told on the run's cancel subject; what is dispatched is taken back by the sweep. What is not
//! dispatched yet is kept from it here. *Invariant: a run, or a retry, is kept from being dispatched
//! by what decides over its dispatch*, its lock or its entry in the overlap bucket: who loses that
//! changes nothing, and the run is stopped where it is then. What came of it is a fired record, as
//! of every other fire.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use serde_json::value::RawValue;
use taskparty_common::dispatch::Cancel;
use taskparty_common::fire::{FireId, Fired, Identity, Intent, Plan, Skipped, retry_id};
use taskparty_common::name::Handler;
use taskparty_common::outcome::{RunState, SkipReason, Trigger, TriggerResult};
use taskparty_common::overlap::Withdrawal;
use taskparty_nats::bucket::BucketError;
use taskparty_nats::fail_point;
use taskparty_nats::history::{ReadError, delete_message, last_by_subject};
use taskparty_nats::lock::{self, Locks, Take};
use taskparty_nats::publish::{Draft, PublishError};
use taskparty_nats::subject::Bucket;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Parts;
use crate::jobs;
use crate::store::{FiredPart, PlannedPart, Run, StoreError};

/// How often a run is asked to stop.
const EVERY: Duration = Duration::from_secs(1);

/// Runs that are looked at in one go; of more, the next ones a second later.
const ROWS: u32 = 500;

/// Runs that are seen to side by side.
const AT_ONCE: usize = 32;

/// How long it is tried to store what came of it, until the next time.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a run could not be seen to; a second later it is tried again.
#[derive(Debug, thiserror::Error)]
enum StopError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Bucket(#[from] BucketError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("it cannot be written: {0}")]
    Json(#[from] serde_json::Error),
}

/// Asks until `stop`.
pub(super) async fn run(parts: &Parts, stop: &CancellationToken) {
    let mut ticks = interval(EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut after = Uuid::nil();
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = parts.asked.notified() => {}
            () = stop.cancelled() => return,
        }
        let runs = match parts.store.to_stop(after, ROWS).await {
            Ok(runs) => runs,
            Err(error) => {
                tracing::debug!(%error, "Runs that are to stop cannot be looked up; it is tried again.");
                continue;
            }
        };
        let whole = runs.len() == ROWS as usize;
        after = runs.last().filter(|_| whole).map_or(Uuid::nil(), |run| run.id);
        futures::stream::iter(runs)
            .for_each_concurrent(AT_ONCE, |run| async move {
                if stop.is_cancelled() {
                    return;
                }
                if let Err(error) = see_to(parts, &run).await {
                    tracing::debug!(run = %run.id, job = %run.job, %error, "A run that is to stop was not seen to; it is tried again.");
                }
            })
            .await;
    }
}

async fn see_to(parts: &Parts, run: &Run) -> Result<(), StopError> {
    match (&run.fired, &run.planned) {
        (None, Some(planned)) if run.attempts.is_empty() => {
            return keep_from_firing(parts, run, planned).await;
        }
        (Some(fired), _) if fired.awaits_place() => return leave(parts, run, fired).await,
        _ => {}
    }
    ask(parts, run).await;
    let Some(fired) = &run.fired else { return Ok(()) };
    for ((shard, attempt), open) in &run.attempts {
        if open.state == RunState::Retrying {
            keep_from_retry(parts, run, fired, (*shard, *attempt)).await?;
        }
    }
    Ok(())
}

/// Tells all executors of the app: one of them may have it.
async fn ask(parts: &Parts, run: &Run) {
    let by = run.cancel.as_ref().map(|cancel| cancel.by.clone()).unwrap_or_default();
    let Ok(body) = serde_json::to_vec(&Cancel { run: run.id, shard: None, by }) else { return };
    let nats = parts.buckets.nats();
    let subject = nats.names().cancel(&run.app, run.id);
    if let Err(error) = nats.client().publish(subject, Bytes::from(body)).await {
        tracing::debug!(run = %run.id, %error, "A run is not asked to stop; it is tried again.");
    }
}

/// A delayed trigger waits: takes the lock that it would take, and then the trigger itself.
async fn keep_from_firing(
    parts: &Parts,
    run: &Run,
    planned: &PlannedPart,
) -> Result<(), StopError> {
    let Some(id) = FireId::from_lock_key(&planned.lock) else { return Ok(()) };
    let Identity::Trigger(trigger) = &id.identity else { return Ok(()) };
    let entry = parts.buckets.get_leader(Bucket::Jobs, run.job.as_str()).await?;
    let current = entry.and_then(|entry| {
        let value = entry.value?;
        jobs::read(&run.job, entry.revision, &value).ok()
    });
    let now = parts.clock.now();
    let shards = current.as_ref().and_then(|definition| definition.spec().shards.count());
    let what = NotFired {
        lock: &planned.lock,
        handler: &planned.handler,
        trigger: planned.trigger,
        fire_time: planned.fire_time,
        revision: current.as_ref().map_or(0, |definition| definition.revision),
        since: current.as_ref().map_or(now, |definition| definition.since()),
        plan: Plan::whole(shards.unwrap_or(1)),
        definition: match &current {
            Some(definition) => definition.json.as_ref().to_owned(),
            None => RawValue::NULL.to_owned(),
        },
        params: planned.params.clone().and_then(|params| RawValue::from_string(params).ok()),
    };
    let subject = parts.buckets.nats().names().delay_at(&run.job, trigger);
    take_instead(parts, run, what, subject).await
}

/// A retry waits: likewise.
async fn keep_from_retry(
    parts: &Parts,
    run: &Run,
    fired: &FiredPart,
    (shard, attempt): (u32, u32),
) -> Result<(), StopError> {
    let id = retry_id(run.id, shard, attempt);
    let lock = FireId::trigger(run.job.clone(), id.clone()).lock_key();
    let definition = definition(parts, fired).await?;
    let what = NotFired {
        lock: &lock,
        handler: &fired.handler,
        trigger: Trigger::Retry,
        fire_time: fired.fire_time,
        revision: fired.revision,
        since: fired.since,
        plan: Plan::again(fired.shards, shard, attempt),
        definition,
        params: fired.params.clone().and_then(|params| RawValue::from_string(params).ok()),
    };
    let subject = parts.buckets.nats().names().delay(&id);
    take_instead(parts, run, what, subject).await
}

/// A run waits for its place: it waits no more, unless it has one by now.
async fn leave(parts: &Parts, run: &Run, fired: &FiredPart) -> Result<(), StopError> {
    if parts.queues.withdraw(&run.job, run.id).await? != Withdrawal::Left {
        // What became of it is on its way.
        return Ok(());
    }
    fail_point!("log_writer.after_withdrawn");
    let what = NotFired {
        lock: &fired.lock,
        handler: &fired.handler,
        trigger: fired.trigger,
        fire_time: fired.fire_time,
        revision: fired.revision,
        since: fired.since,
        plan: Plan::whole(fired.shards),
        definition: definition(parts, fired).await?,
        params: fired.params.clone().and_then(|params| RawValue::from_string(params).ok()),
    };
    what.record(parts, run).await
}

async fn definition(parts: &Parts, fired: &FiredPart) -> Result<Box<RawValue>, StopError> {
    let spec = parts.store.definition(&fired.definition).await?;
    Ok(match spec {
        Some(spec) => RawValue::from_string(spec)?,
        None => RawValue::NULL.to_owned(),
    })
}

/// Takes the lock of what waits for its time, so that nobody else ever does; then the trigger.
async fn take_instead(
    parts: &Parts,
    run: &Run,
    what: NotFired<'_>,
    waits_on: String,
) -> Result<(), StopError> {
    let value = serde_json::to_vec(&what.intent(parts, run))?;
    match Locks::new(parts.buckets.clone()).take(what.lock, value, lock::LONGEST).await? {
        Take::Taken { .. } => {}
        Take::Held(held) => {
            let theirs = serde_json::from_slice::<Intent>(&held.value).ok();
            let skipped = theirs.and_then(|intent| intent.skipped);
            if skipped.is_none_or(|skipped| skipped.reason != SkipReason::Cancelled) {
                // It is being fired: its record is on its way, and the run is stopped from there.
                return Ok(());
            }
        }
    }
    fail_point!("log_writer.after_withdrawn");
    // Before the record, which is the last that is ever looked at: a lock lives for days, and what
    // waits here may wait for years.
    let nats = parts.buckets.nats();
    let stream = nats.names().triggers_stream();
    if let Some(found) = last_by_subject(nats.js(), &stream, &waits_on).await? {
        delete_message(nats.js(), &stream, found.seq).await?;
    }
    what.record(parts, run).await
}

/// A fire that does not take place, because its run is cancelled.
struct NotFired<'a> {
    lock: &'a str,
    handler: &'a Handler,
    trigger: Trigger,
    fire_time: DateTime<Utc>,
    revision: u64,
    since: DateTime<Utc>,
    plan: Plan,
    definition: Box<RawValue>,
    params: Option<Box<RawValue>>,
}

impl NotFired<'_> {
    fn skipped(&self) -> Skipped {
        Skipped { reason: SkipReason::Cancelled, count: 1, first: self.fire_time }
    }

    fn intent(&self, parts: &Parts, run: &Run) -> Intent {
        Intent {
            v: 1,
            run: run.id,
            job: run.job.clone(),
            revision: self.revision,
            since: self.since,
            owner: parts.config.instance.clone(),
            trigger: self.trigger,
            fire_time: self.fire_time,
            planned_at: parts.clock.now(),
            plan: self.plan.clone(),
            instance: None,
            skipped: Some(self.skipped()),
            definition: self.definition.clone(),
            params: self.params.clone(),
        }
    }

    /// Stores what came of it, among what happened.
    async fn record(&self, parts: &Parts, run: &Run) -> Result<(), StopError> {
        let words = run.cancel.as_ref().map(|cancel| cancel.words()).unwrap_or_default();
        let fired = Fired {
            v: 1,
            lock: self.lock.to_owned(),
            run: run.id,
            job: run.job.clone(),
            app: run.app.clone(),
            handler: self.handler.clone(),
            revision: self.revision,
            since: self.since,
            owner: parts.config.instance.clone(),
            trigger: self.trigger,
            result: TriggerResult::Skipped,
            message: format!("{words} before it was dispatched"),
            fire_time: self.fire_time,
            fired_at: parts.clock.now(),
            start_by: None,
            plan: self.plan.clone(),
            skipped: Some(self.skipped()),
            definition: self.definition.clone(),
            params: self.params.clone(),
        };
        let subject = parts.buckets.nats().names().fired(&run.app);
        let draft =
            Draft::new(subject, serde_json::to_vec(&fired)?).id(format!("{}.cancelled", self.lock));
        parts.buckets.publisher().publish_within(draft, PATIENCE).await?;
        Ok(())
    }
}
