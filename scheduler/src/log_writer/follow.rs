//! What the end of a run leads to beyond the run: jobs that follow on a success, and a pause of the
//! job after too many failures.
//!
//! Both are rows of the outbox first, so that a crash neither loses nor repeats them. *Invariants.* A
//! job that follows is triggered under the id of the run that it follows: once. A chain of runs that
//! follow each other passes no job twice. A pause is decided by
//! what the history knows since the job last began anew, so that a resumed job starts from nothing.

use chrono::{DateTime, Utc};
use futures::FutureExt;
use taskparty_common::fire::{FireId, TriggerRequest, followed_by, then_id};
use taskparty_common::job::{Job, Paused};
use taskparty_common::name::JobId;
use taskparty_common::outcome::Trigger;
use taskparty_nats::bucket::Swap;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;

use super::Parts;
use super::ids;
use crate::store::{AlertPart, Decision, Posting, Run};

/// So many jobs follow each other at most.
const LONGEST_CHAIN: usize = 1_000;

/// Who pauses a job that fails again and again.
const BY: &str = "taskparty";

/// What becomes of a job that follows.
pub(super) enum Follows {
    /// It is triggered.
    Now(Draft),
    /// It has followed this run before: `run retry` can make a run succeed again.
    Before,
    /// It is not known what it follows.
    Unknown,
}

/// Triggers the job that follows. Its run has the nominal instant of the one that it follows, so that
/// whenever that succeeds, it is the same.
pub(super) async fn then(parts: &Parts, posting: &Posting) -> Result<Follows, String> {
    let job = posting.id.rsplit_once('.').and_then(|(_, job)| JobId::new(job).ok());
    let (Some(run), Some(job)) = (&posting.run, job) else { return Ok(Follows::Unknown) };
    let Some(fired) = &run.fired else { return Ok(Follows::Unknown) };
    let names = parts.buckets.nats().names();
    let fire = FireId::trigger(job.clone(), then_id(run.id));
    let at = fired.fire_time;
    let made = fire.run(names.prefix(), fired.since.timestamp_millis(), at);
    // Its lock says the same, but only lives for days.
    if parts.store.knows(made).await.map_err(|error| error.to_string())? {
        return Ok(Follows::Before);
    }
    let found = read(parts, &job).await?.map(|(found, _)| found.spec);
    // One that is gone is refused when it is triggered, and that is on record beside the others.
    let whose = found
        .map_or_else(|| (run.app.clone(), fired.handler.clone()), |spec| (spec.app, spec.handler));
    let refused = match circle(parts, run, &fired.lock, &job).await? {
        Some(circle) => {
            tell(parts, in_circle(run, &job, &circle, parts.clock.now())).await?;
            circle
        }
        None => String::new(),
    };
    let request = TriggerRequest {
        refused,
        ..TriggerRequest::new(then_id(run.id), job, whose, Trigger::Dependency, made, at)
    };
    let body = serde_json::to_vec(&request).map_err(|error| error.to_string())?;
    Ok(Follows::Now(Draft::new(names.trigger(&request.job), body).id(posting.id.clone())))
}

/// Why `job` must not follow `run`, if so: the chain of runs that led to it has passed the job before.
///
/// Circles are refused when jobs are saved, but two people who save at the same moment can make one.
async fn circle(
    parts: &Parts,
    run: &Run,
    lock: &str,
    job: &JobId,
) -> Result<Option<String>, String> {
    let mut way = vec![job.clone(), run.job.clone()];
    let mut before = followed_by(lock);
    while let Some(id) = before.filter(|_| way.last() != Some(job)) {
        if way.len() > LONGEST_CHAIN {
            return Ok(Some(format!("more than {LONGEST_CHAIN} jobs would follow each other")));
        }
        let found = parts.store.fire_of(id).await.map_err(|error| error.to_string())?;
        let Some((passed, lock)) = found else { break };
        way.push(passed);
        before = lock.as_deref().and_then(followed_by);
    }
    if way.last() != Some(job) {
        return Ok(None);
    }
    let way: Vec<&str> = way.iter().rev().map(JobId::as_str).collect();
    Ok(Some(format!("the jobs follow each other in a circle: {}", way.join(" → "))))
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
        return if ours { tell(parts, paused_by(run, &reason, paused.at)).await } else { Ok(()) };
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
    tell(parts, paused_by(run, &reason, now)).await
}

/// The job as it is, with its revision; nothing when it is gone or cannot be read.
async fn read(parts: &Parts, job: &JobId) -> Result<Option<(Job, u64)>, String> {
    let entry = parts.buckets.get_leader(Bucket::Jobs, job.as_str()).await;
    let Some(entry) = entry.map_err(|error| error.to_string())? else { return Ok(None) };
    let read = |value: &[u8]| Job::from_json(&serde_json::from_slice(value).ok()?).ok();
    let job = entry.value.as_deref().and_then(read);
    Ok(job.map(|job| (job, entry.revision)))
}

/// The alert that `run` was the last of too many that failed.
fn paused_by(run: &Run, reason: &str, at: DateTime<Utc>) -> AlertPart {
    AlertPart {
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
    }
}

/// The alert that `job` does not follow `run`.
fn in_circle(run: &Run, job: &JobId, why: &str, at: DateTime<Utc>) -> AlertPart {
    AlertPart {
        id: ids::circle(run.id, job),
        kind: "circle",
        job: Some(job.clone()),
        run: Some(run.id),
        state: None,
        code: None,
        message: format!(
            "{job} was not triggered after {}: {why}; take one of them out of the `then` of another",
            run.job
        ),
        attempts: 0,
        fire_time: run.fired.as_ref().map(|fired| fired.fire_time),
        at,
    }
}

/// Keeps an alert, to be published.
async fn tell(parts: &Parts, alert: AlertPart) -> Result<(), String> {
    let alert = Decision::Alert(alert);
    let kept = parts.store.write(move |mut tx| async move { tx.decide(&[alert]).await }.boxed());
    kept.await.map_err(|error| error.to_string())?;
    parts.decided.notify_one();
    Ok(())
}
