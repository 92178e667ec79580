//! What the end of a run leads to beyond the run: jobs that follow on a success, and a pause of the
//! job after too many failures.
//!
//! Both are rows of the outbox first, so that a crash neither loses nor repeats them. *Invariants.* A
//! job that follows is triggered under the id of the run that it follows: once. A pause is decided by
//! what the history knows since the job last began anew, so that a resumed job starts from nothing.

use chrono::{DateTime, Utc};
use futures::FutureExt;
use taskparty_common::fire::{FireId, TriggerRequest, then_id};
use taskparty_common::job::{Job, Paused};
use taskparty_common::name::JobId;
use taskparty_common::outcome::Trigger;
use taskparty_nats::bucket::Swap;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;

use super::Parts;
use super::ids;
use crate::store::{AlertPart, Decision, Posting, Run};

/// Who pauses a job that fails again and again.
const BY: &str = "taskparty";

/// The trigger of a job that follows; nothing when it is not known what it follows.
pub(super) async fn then(parts: &Parts, posting: &Posting) -> Result<Option<Draft>, String> {
    let job = posting.id.rsplit_once('.').and_then(|(_, job)| JobId::new(job).ok());
    let (Some(run), Some(due), Some(job)) = (&posting.run, posting.due, job) else {
        return Ok(None);
    };
    let Some(fired) = &run.fired else { return Ok(None) };
    let found = read(parts, &job).await?.map(|(found, _)| found.spec);
    // One that is gone is refused when it is triggered, and that is on record beside the others.
    let (app, handler) = found
        .map_or_else(|| (run.app.clone(), fired.handler.clone()), |spec| (spec.app, spec.handler));
    let names = parts.buckets.nats().names();
    let id = then_id(run.id);
    let fire = FireId::trigger(job.clone(), id.clone());
    let request = TriggerRequest {
        v: 1,
        id,
        app,
        handler,
        trigger: Trigger::Dependency,
        run: fire.run(names.prefix(), fired.since.timestamp_millis(), due),
        at: due,
        by: String::new(),
        params: None,
        instance: None,
        overlap: None,
        backfill: None,
        retry: None,
        since: None,
        job: job.clone(),
    };
    let body = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
    Ok(Some(Draft::new(names.trigger(&job), body).id(posting.id.clone())))
}

/// Counts a failed run, and pauses its job when it was the last of too many.
pub(super) async fn strike(parts: &Parts, posting: &Posting) -> Result<(), String> {
    let Some(run) = &posting.run else { return Ok(()) };
    let Some(fired) = &run.fired else { return Ok(()) };
    let Some((job, revision)) = read(parts, &run.job).await? else { return Ok(()) };
    let Some(most) = job.spec.pause_after_failures else { return Ok(()) };
    let reason = format!("{most} runs in a row failed, the last of them {}", run.id);
    if let Some(paused) = job.meta.paused.as_ref().filter(|_| job.is_paused(parts.clock.now())) {
        // By this very row, whose alert may be missing; or for reasons of their own.
        let ours = paused.by == BY && paused.reason == reason;
        return if ours { tell(parts, run, &reason, paused.at).await } else { Ok(()) };
    }
    // Of a past that is over: somebody has resumed or changed the job since.
    if fired.since.timestamp_millis() != job.meta.since.timestamp_millis() {
        return Ok(());
    }
    let failed = parts.store.all_failed(&run.job, fired.since, most).await;
    if !failed.map_err(|error| error.to_string())? {
        return Ok(());
    }
    let now = parts.clock.now();
    let paused = Paused { at: now, by: BY.into(), reason: reason.clone(), until: None };
    let value = job.with_pause(Some(paused), now, BY).to_json().to_string();
    let key = run.job.as_str();
    match parts.buckets.put_if(Bucket::Jobs, key, revision, value, None).await {
        Ok(Swap::Done { .. }) => {}
        Ok(Swap::Lost { .. }) => return Err("the job was changed meanwhile".into()),
        Err(error) => return Err(error.to_string()),
    }
    tracing::warn!(job = %run.job, run = %run.id, reason, "A job is paused.");
    tell(parts, run, &reason, now).await
}

/// The job as it is, with its revision; nothing when it is gone or cannot be read.
async fn read(parts: &Parts, job: &JobId) -> Result<Option<(Job, u64)>, String> {
    let entry = parts.buckets.get_leader(Bucket::Jobs, job.as_str()).await;
    let Some(entry) = entry.map_err(|error| error.to_string())? else { return Ok(None) };
    let read = |value: &[u8]| Job::from_json(&serde_json::from_slice(value).ok()?).ok();
    let job = entry.value.as_deref().and_then(read);
    Ok(job.map(|job| (job, entry.revision)))
}

async fn tell(parts: &Parts, run: &Run, reason: &str, at: DateTime<Utc>) -> Result<(), String> {
    let alert = Decision::Alert(AlertPart {
        id: ids::paused(run.id),
        kind: "paused",
        job: Some(run.job.clone()),
        run: Some(run.id),
        state: Some(run.state),
        code: run.code,
        message: format!(
            "{} is paused: {reason}. `taskparty job resume {}` lets it go on",
            run.job, run.job
        ),
        attempts: 0,
        fire_time: run.fired.as_ref().map(|fired| fired.fire_time),
        at,
    });
    let kept = parts.store.write(move |mut tx| async move { tx.decide(&[alert]).await }.boxed());
    kept.await.map_err(|error| error.to_string())?;
    parts.decided.notify_one();
    Ok(())
}
