//! Publishing decisions.
//!
//! *Invariant: an outbox row goes only after the PubAck of its message.* Publishing twice is
//! harmless: a retry and a next run have trigger ids, and one id fires once; an alert has its id
//! as message id. The message id of a trigger has its due time too: one that is triggered again
//! must not be taken for a repetition.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::{FutureExt, StreamExt};
use serde_json::value::RawValue;
use taskparty_common::dispatch::Alert;
use taskparty_common::fire::{FireId, Identity, Plan, RetryOf, TriggerRequest};
use taskparty_common::outcome::{RunState, Trigger};
use taskparty_common::overlap::{Admission, place_id};
use taskparty_nats::fail_point;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Names;
use tokio_util::sync::CancellationToken;

use super::Parts;
use super::follow::{self, Follows};
use super::policy::Policy;
use crate::alarm::TRIGGERS_FULL;
use crate::store::{OutboxKind, Posting, StoreError};

/// Rows that are taken at once.
const ROWS: u32 = 256;

/// Publishes that wait for their PubAcks at once.
const IN_FLIGHT: usize = 64;

/// How long a publish is tried before its row is put off.
const PATIENCE: Duration = Duration::from_secs(5);

/// Drains the outbox at the start and whenever something was decided, until `stop`.
pub(super) async fn run(parts: &Parts, stop: &CancellationToken) {
    loop {
        if let Err(error) = drain(parts, stop).await {
            tracing::debug!(%error, "The outbox could not be read or written; the sweep tries again.");
        }
        if stop.run_until_cancelled(parts.decided.notified()).await.is_none() {
            return;
        }
    }
}

async fn drain(parts: &Parts, stop: &CancellationToken) -> Result<(), StoreError> {
    while !stop.is_cancelled() {
        let postings = parts.store.postings(parts.clock.now(), ROWS).await?;
        if postings.is_empty() {
            return Ok(());
        }
        let whole = postings.len() == ROWS as usize;
        let mut results = futures::stream::iter(postings)
            .map(|posting| async move {
                let error = publish(parts, &posting).await.err();
                (posting, error)
            })
            .buffer_unordered(IN_FLIGHT);
        let (mut done, mut failed) = (Vec::new(), Vec::new());
        while let Some((posting, error)) = results.next().await {
            let Posting { id, tries, .. } = posting;
            let wait = match error {
                None => {
                    done.push(id);
                    continue;
                }
                Some(Put::Off) => TimeDelta::seconds(1),
                Some(Put::Failed(error)) => {
                    if tries == 0 {
                        tracing::warn!(
                            id,
                            error,
                            "A decision could not be published; it is tried again."
                        );
                    }
                    TimeDelta::seconds(1 << tries.min(6))
                }
            };
            failed.push((id, parts.clock.now() + wait));
        }
        fail_point!("log_writer.after_publish");
        let none_went = done.is_empty();
        parts
            .store
            .write(move |mut tx| {
                async move {
                    tx.posted(&done).await?;
                    for (id, next_at) in &failed {
                        tx.put_off(id, *next_at).await?;
                    }
                    Ok(())
                }
                .boxed()
            })
            .await?;
        if none_went || !whole {
            return Ok(());
        }
    }
    Ok(())
}

/// Why a decision is not published yet.
enum Put {
    /// It is not its turn.
    Off,
    /// It did not work.
    Failed(String),
}

impl<E: ToString> From<E> for Put {
    fn from(error: E) -> Self {
        Put::Failed(error.to_string())
    }
}

async fn publish(parts: &Parts, posting: &Posting) -> Result<(), Put> {
    let names = parts.buckets.nats().names();
    if posting.kind == OutboxKind::Release {
        return release(parts, posting).await;
    }
    if matches!(posting.kind, OutboxKind::Retry | OutboxKind::Turn)
        && posting.run.as_ref().is_some_and(|run| run.cancel.is_some())
    {
        // It is not made any more.
        return Ok(());
    }
    if posting.kind == OutboxKind::Turn {
        take_turn(parts, posting).await?;
    }
    if posting.kind == OutboxKind::Again
        && posting.run.as_ref().is_some_and(|run| run.planned.is_none())
    {
        // It was only late: it has fired by now, or has ended.
        return Ok(());
    }
    if posting.kind == OutboxKind::Strike {
        return Ok(follow::strike(parts, posting).await?);
    }
    if posting.kind != OutboxKind::Alert
        && let Err(full) = parts.triggers_room.check().await
    {
        parts.alarms.raise("triggers_full", TRIGGERS_FULL).await;
        return Err(full.into());
    }
    let draft = match posting.kind {
        OutboxKind::Release | OutboxKind::Strike => None,
        OutboxKind::Then => match follow::then(parts, posting).await? {
            Follows::Now(draft) => Some(draft),
            Follows::Before => return Ok(()),
            Follows::Unknown => None,
        },
        OutboxKind::Retry | OutboxKind::Turn => retry(names, posting),
        OutboxKind::Next => next(names, posting),
        OutboxKind::Alert => alert(names, posting),
        OutboxKind::Again => again(names, posting),
    };
    let draft = draft.ok_or("what it is made of is not in the history")?;
    parts.buckets.publisher().publish_within(draft, PATIENCE).await?;
    Ok(())
}

/// Gives back the place of a run that has ended.
async fn release(parts: &Parts, posting: &Posting) -> Result<(), Put> {
    let run = posting.run.as_ref().ok_or("its run is not in the history")?;
    parts.queues.release(&run.job, place_id(run.id, posting.attempt)).await?;
    // One that waited when it was cancelled has left what it was to do.
    if run.state == RunState::Cancelled {
        parts.queues.drop_intent(&run.job, run.id).await?;
    }
    Ok(())
}

/// Takes a place for a run that is retried by hand. Its first one was given back when it ended, and
/// a run that has ended never gets that again.
async fn take_turn(parts: &Parts, posting: &Posting) -> Result<(), Put> {
    let run = posting.run.as_ref().ok_or("its run is not in the history")?;
    let bounds = posting.definition.as_deref().and_then(Policy::bounds_of).unwrap_or_default();
    match parts.queues.turn(&run.job, run.id, run.round, bounds).await? {
        Admission::Waiting | Admission::Overlap | Admission::QueueFull => Err(Put::Off),
        // Given back already: its job was deleted, and who fires it says so.
        Admission::Active | Admission::Promoted | Admission::Ended => Ok(()),
    }
}

fn message_id(posting: &Posting, due: DateTime<Utc>) -> String {
    format!("{}@{}", posting.id, due.timestamp_millis())
}

/// The next attempt of a shard: a delayed trigger with the frozen definition of its run.
fn retry(names: &Names, posting: &Posting) -> Option<Draft> {
    let targets: Vec<_> = posting.target.iter().cloned().collect();
    let run = posting.run.as_ref()?;
    let fired = run.fired.as_ref()?;
    let due = posting.due?;
    let whose = (run.app.clone(), fired.handler.clone());
    let request = TriggerRequest {
        params: raw(fired.params.as_ref()),
        retry: Some(RetryOf {
            revision: fired.revision,
            since: fired.since,
            fire_time: fired.fire_time,
            plan: Plan {
                pinned: !targets.is_empty(),
                targets,
                ..Plan::again(fired.shards, posting.shard, posting.attempt)
            },
            definition: RawValue::from_string(posting.definition.clone()?).ok()?,
        }),
        ..TriggerRequest::new(&posting.id, run.job.clone(), whose, Trigger::Retry, run.id, due)
    };
    let subject = names.delay(&posting.id);
    let body = serde_json::to_vec(&request).ok()?;
    Some(Draft::new(subject, body).id(message_id(posting, due)).at(due, names.trigger(&run.job)))
}

/// The next run of a fixed delay.
fn next(names: &Names, posting: &Posting) -> Option<Draft> {
    let run = posting.run.as_ref()?;
    let fired = run.fired.as_ref()?;
    let due = posting.due?;
    let whose = (run.app.clone(), fired.handler.clone());
    let fire = FireId::trigger(run.job.clone(), posting.id.clone());
    let made = fire.run(names.prefix(), fired.since.timestamp_millis(), due);
    let request = TriggerRequest {
        since: Some(fired.since),
        ..TriggerRequest::new(&posting.id, fire.job, whose, Trigger::Schedule, made, due)
    };
    let subject = names.next_delay(&run.job);
    let body = serde_json::to_vec(&request).ok()?;
    Some(Draft::new(subject, body).id(message_id(posting, due)).at(due, names.trigger(&run.job)))
}

/// The trigger of a planned run, as it was.
fn again(names: &Names, posting: &Posting) -> Option<Draft> {
    let run = posting.run.as_ref()?;
    let due = posting.due?;
    let planned = run.planned.as_ref()?;
    let Identity::Trigger(id) = FireId::from_lock_key(&planned.lock)?.identity else { return None };
    let whose = (run.app.clone(), planned.handler.clone());
    let (job, at) = (run.job.clone(), planned.fire_time);
    let request = TriggerRequest {
        params: raw(planned.params.as_ref()),
        by: planned.said.by.clone(),
        instance: planned.said.instance.clone(),
        overlap: planned.said.overlap.clone(),
        ..TriggerRequest::new(id, job, whose, planned.trigger, run.id, at)
    };
    let body = serde_json::to_vec(&request).ok()?;
    Some(Draft::new(names.trigger(&run.job), body).id(message_id(posting, due)))
}

fn raw(json: Option<&String>) -> Option<Box<RawValue>> {
    RawValue::from_string(json?.clone()).ok()
}

fn alert(names: &Names, posting: &Posting) -> Option<Draft> {
    let alert = posting.alert.as_ref()?;
    let subject = match &alert.job {
        Some(job) => names.alert(job),
        None => names.system_alert(),
    };
    let body = serde_json::to_vec(&Alert {
        v: 1,
        id: alert.id.clone(),
        kind: alert.kind.clone(),
        job: alert.job.clone(),
        run: alert.run,
        state: alert.state,
        code: alert.code,
        message: alert.message.clone(),
        attempts: alert.attempts,
        fire_time: alert.fire_time,
        at: alert.at,
    })
    .ok()?;
    Some(Draft::new(subject, body).id(&alert.id))
}
