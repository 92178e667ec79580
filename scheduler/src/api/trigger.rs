//! `job.trigger`: run a job now, or once at a time to come.
//!
//! *Invariant: the same key triggers once, and every call with it answers the same run.* A run's
//! id holds the time of its trigger, so a second call cannot compute it: it is looked up where the
//! first has left it, in the lock, in the waiting message, or behind the stream's memory of ids.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};
use taskparty_common::duration;
use taskparty_common::fire::{FireId, Intent, Scheduled, TriggerRequest};
use taskparty_common::job::{Job, MAX_PARAMS, Overlap};
use taskparty_common::name::{Instance, JobId, Key};
use taskparty_common::outcome::Trigger;
use taskparty_nats::history;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Api;
use super::definitions::{job_id, refused, unreadable};
use super::live;
use super::problem::{Code, Problem};
use super::wire::{Nothing, TriggerJob, Triggered};
use crate::pending;

/// How far ahead a trigger may be.
const FURTHEST: TimeDelta = TimeDelta::days(3660);

/// How long an earlier trigger of the same key is looked for, once the stream says there is one.
const LOOK: Duration = Duration::from_secs(3);

/// How long it is tried to tell history of a trigger that waits.
const ANNOUNCE: Duration = Duration::from_secs(4);

/// Executors that an error names.
const SHOWN: usize = 10;

/// The header that says which call a trigger came from.
const CALL: &str = "Taskparty-Call";

/// Triggers a job, or finds that its key was triggered before.
pub(super) async fn trigger(api: &Api, request: TriggerJob) -> Result<Triggered, Problem> {
    let id = job_id(&request.id)?;
    let key = match &request.key {
        None => None,
        Some(key) => {
            Some(Key::new(key).map_err(|error| Problem::field("key", None, error.to_string()))?)
        }
    };
    let params = params(request.params.as_ref())?;
    let wanted = overlap(request.overlap.as_deref())?;
    let now = api.clock.now();
    let due = due(&request, now)?;
    let (job, _) = api.definitions.job(id.as_str()).await?;
    if let Some(key) = &key
        && let Some(found) = earlier(api, &id, key.as_str()).await?
    {
        return Ok(found);
    }
    fits(&job, wanted)?;
    let instance = match &request.instance {
        None => None,
        Some(instance) => Some(live_executor(api, &job, instance).await?),
    };
    let trigger_id = key.as_ref().map_or_else(|| Uuid::now_v7().to_string(), ToString::to_string);
    let message = message(api, &job, &trigger_id, (due, now), params, request.by);
    let overlap = wanted.map(|policy| policy.as_str().to_owned());
    let message = TriggerRequest { instance, overlap, ..message };
    let made = Triggered {
        run: message.run,
        job: id.to_string(),
        trigger_id: trigger_id.clone(),
        created: true,
        at: message.at,
    };
    let call = Uuid::new_v4().to_string();
    let draft = draft(api, &message, due)?.header(CALL, &call);
    has_room(api).await?;
    let stored = api.publisher.publish(draft).await.map_err(refused)?;
    if !stored.duplicate {
        announce(api, message).await;
        return Ok(made);
    }
    // A duplicate may be this very call, sent twice: then the stored message is ours.
    if let Some((first, by)) = stored_trigger(api, stored.seq, &trigger_id).await? {
        let before = made_before(&id, &first);
        announce(api, first).await;
        return Ok(Triggered { created: by.as_deref() == Some(&call), ..before });
    }
    let end = Instant::now() + LOOK;
    loop {
        if let Some(found) = earlier(api, &id, &trigger_id).await? {
            return Ok(found);
        }
        if Instant::now() >= end {
            let detail = format!(
                "job {id} was triggered with the key {trigger_id:?} a moment ago and its run is not known yet; ask again"
            );
            return Err(Problem::unavailable(detail));
        }
        sleep(Duration::from_millis(50)).await;
    }
}

/// Refuses a policy that the job's other settings do not allow.
pub(super) fn fits(job: &Job, overlap: Option<Overlap>) -> Result<(), Problem> {
    let most = job.spec.max_running.unwrap_or(1);
    if overlap == Some(Overlap::Replace) && most > 1 {
        let problem = format!(
            "{most} runs of job {} may go on at once (max_running), so there is none to replace; write queue, skip or allow",
            job.spec.id
        );
        return Err(Problem::field("overlap", Some("replace".into()), problem));
    }
    Ok(())
}

/// Refuses when too many triggers wait already: their stream cannot refuse by itself.
pub(super) async fn has_room(api: &Api) -> Result<(), Problem> {
    let Err(full) = api.topology.triggers_room().check().await else { return Ok(()) };
    api.alarms.raise("triggers_full", crate::alarm::TRIGGERS_FULL).await;
    Err(Problem::unavailable(format!(
        "too many triggers wait: {full}; see that the schedulers run, and try again"
    )))
}

fn params(params: Option<&Value>) -> Result<Option<Box<RawValue>>, Problem> {
    let Some(params) = params else { return Ok(None) };
    let raw =
        to_raw_value(params).map_err(|error| Problem::field("params", None, error.to_string()))?;
    let size = raw.get().len();
    if size > MAX_PARAMS {
        let problem = format!("it has {size} bytes of JSON, the limit is {MAX_PARAMS}");
        return Err(Problem { code: Code::TooLarge, ..Problem::field("params", None, problem) });
    }
    Ok(Some(raw))
}

/// The live executor `instance`, if it takes work for the job: one that is not there now never
/// will be.
async fn live_executor(api: &Api, job: &Job, instance: &str) -> Result<Instance, Problem> {
    let wrong = |problem: String| Problem::field("instance", Some(instance.into()), problem);
    let wanted = Instance::new(instance).map_err(|error| wrong(error.to_string()))?;
    let (app, handler) = (&job.spec.app, &job.spec.handler);
    let live = live::executors(api, Nothing {}).await?.items.into_iter();
    let takers = live.filter(|entry| {
        entry.app == *app && !entry.draining && entry.handlers.contains_key(handler)
    });
    let takers: Vec<Instance> = takers.map(|entry| entry.instance).collect();
    if takers.contains(&wanted) {
        return Ok(wanted);
    }
    let known = takers.iter().take(SHOWN).map(Instance::as_str).collect::<Vec<_>>().join(", ");
    Err(wrong(match takers.len() {
        0 => format!("no executor of {app}/{handler} is live"),
        count if count > SHOWN => {
            format!("no live executor of {app}/{handler} has this id; of {count} some are {known}")
        }
        _ => format!("no live executor of {app}/{handler} has this id; those are {known}"),
    }))
}

/// The overlap policy that is asked for.
pub(super) fn overlap(word: Option<&str>) -> Result<Option<Overlap>, Problem> {
    let Some(word) = word else { return Ok(None) };
    let wrong = || {
        let value = Some(format!("{word:?}"));
        Problem::field("overlap", value, "it is one of queue, skip, replace, allow")
    };
    Overlap::from_word(word).map(Some).ok_or_else(wrong)
}

/// When it is due; none: now.
fn due(request: &TriggerJob, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, Problem> {
    let (field, at) = match (&request.delay, request.at) {
        (Some(_), Some(_)) => {
            return Err(Problem::field("at", None, "give `in` or `at`, not both"));
        }
        (None, None) => return Ok(None),
        (None, Some(at)) => ("at", Some(at)),
        (Some(delay), None) => {
            let value = Some(delay.clone());
            let delay = duration::parse(delay)
                .map_err(|error| Problem::field("in", value, error.to_string()))?;
            if delay.is_zero() {
                return Ok(None);
            }
            ("in", TimeDelta::from_std(delay).ok().and_then(|delay| now.checked_add_signed(delay)))
        }
    };
    match at {
        Some(at) if at <= now => Err(Problem::field(
            field,
            Some(at.to_rfc3339()),
            "it is past; leave it away to run now",
        )),
        Some(at) if at - now <= FURTHEST => Ok(Some(at)),
        _ => Err(Problem::field(
            field,
            at.map(|at| at.to_rfc3339()),
            "it is more than ten years ahead",
        )),
    }
}

fn message(
    api: &Api,
    job: &Job,
    trigger_id: &str,
    (due, now): (Option<DateTime<Utc>>, DateTime<Utc>),
    params: Option<Box<RawValue>>,
    by: String,
) -> TriggerRequest {
    let fire = FireId::trigger(job.spec.id.clone(), trigger_id);
    let since = job.meta.since;
    let at = due.unwrap_or(now);
    let at = DateTime::from_timestamp_millis(at.timestamp_millis()).unwrap_or(at);
    let kind = if due.is_some() { Trigger::Delayed } else { Trigger::Manual };
    let run = fire.run(api.nats.names().prefix(), since.timestamp_millis(), at);
    let whose = (job.spec.app.clone(), job.spec.handler.clone());
    // Without `since`: it stands for itself, an edit or a pause of the job does not end it.
    TriggerRequest { by, params, ..TriggerRequest::new(trigger_id, fire.job, whose, kind, run, at) }
}

fn draft(
    api: &Api,
    message: &TriggerRequest,
    due: Option<DateTime<Utc>>,
) -> Result<Draft, Problem> {
    let names = api.nats.names();
    let body = serde_json::to_vec(message)
        .map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    let target = names.trigger(&message.job);
    let draft = match due {
        None => Draft::new(target, body),
        Some(at) => Draft::new(names.delay_at(&message.job, &message.id), body).at(at, target),
    };
    Ok(draft.id(format!("{}.{}", message.job, message.id)))
}

/// Tells history of a trigger that waits, so that its run is listed before its time.
///
/// After the trigger itself, which is what counts: history must never show what will not happen.
/// Where it does not work, the run happens all the same and is listed from its time on.
async fn announce(api: &Api, trigger: TriggerRequest) {
    if trigger.trigger != Trigger::Delayed {
        return;
    }
    let scheduled = Scheduled::from(trigger);
    let subject = api.nats.names().scheduled(&scheduled.app);
    let Ok(body) = serde_json::to_vec(&scheduled) else { return };
    let draft = Draft::new(subject, body).id(format!("{}.scheduled", scheduled.run));
    if let Err(error) = api.publisher.publish_within(draft, ANNOUNCE).await {
        tracing::warn!(run = %scheduled.run, job = %scheduled.job, %error, "A delayed trigger is stored, and its run is not listed before its time.");
    }
}

/// The run that an earlier call with this key has made, wherever it is by now.
async fn earlier(api: &Api, job: &JobId, key: &str) -> Result<Option<Triggered>, Problem> {
    let names = api.nats.names();
    let js = api.nats.js();
    let lock = names.key(Bucket::Fires, &FireId::trigger(job.clone(), key).lock_key());
    let fires = names.bucket_stream(Bucket::Fires);
    let found = history::last_by_subject(js, &fires, &lock).await.map_err(unreadable)?;
    if let Some(record) = found.filter(|record| !record.is_marker())
        && let Ok(intent) = serde_json::from_slice::<Intent>(&record.payload)
    {
        return Ok(Some(Triggered {
            run: intent.run,
            job: job.to_string(),
            trigger_id: key.into(),
            created: false,
            at: intent.fire_time,
        }));
    }
    let Some(first) = pending::trigger(&api.nats, job, key).await.map_err(unreadable)? else {
        return Ok(None);
    };
    let before = made_before(job, &first);
    // Whoever stored it may have died before it was announced.
    announce(api, first).await;
    Ok(Some(before))
}

fn made_before(job: &JobId, first: &TriggerRequest) -> Triggered {
    Triggered {
        run: first.run,
        job: job.to_string(),
        trigger_id: first.id.clone(),
        created: false,
        at: first.at,
    }
}

/// The trigger that is stored at `seq`, when it is still there, with the call that made it.
async fn stored_trigger(
    api: &Api,
    seq: u64,
    id: &str,
) -> Result<Option<(TriggerRequest, Option<String>)>, Problem> {
    let stream = api.nats.names().triggers_stream();
    let record = history::message(api.nats.js(), &stream, seq).await.map_err(unreadable)?;
    Ok(record.and_then(|record| {
        let call = record.headers.get(CALL).map(|call| call.as_str().to_owned());
        Some((pending::read(&record.payload, id)?, call))
    }))
}
