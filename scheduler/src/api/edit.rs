//! `job.pause`, `job.resume`, `job.delete`: what operators do to a job.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use taskparty_common::job::{Job, Paused};

use super::Api;
use super::confirm::confirm;
use super::definitions::{Written, broken, job_id};
use super::problem::Problem;
use super::wire::{Confirmation, Edited, OneJob, PauseJob};

/// How often an edit is decided anew because somebody else changed the job meanwhile.
const TRIES: usize = 10;

/// Pauses a job; a pause that is there is replaced.
pub(super) async fn pause(api: &Api, request: PauseJob) -> Result<Edited, Problem> {
    if request.reason.chars().count() > 500 {
        return Err(Problem::field("reason", None, "it has more than 500 characters"));
    }
    if request.until.is_some_and(|until| until <= api.clock.now()) {
        let until = request.until.map(|until| until.to_rfc3339());
        return Err(Problem::field("until", until, "it is past: give a time to come"));
    }
    edit(api, &request.id, |job, now| {
        let by = who(&request.by);
        let same = job.is_paused(now)
            && job
                .meta
                .paused
                .as_ref()
                .is_some_and(|p| p.reason == request.reason && p.until == request.until);
        let paused =
            Paused { at: now, by: by.into(), reason: request.reason.clone(), until: request.until };
        (!same).then(|| job.with_pause(Some(paused), now, by))
    })
    .await
}

/// Lets a paused job go on.
pub(super) async fn resume(api: &Api, request: OneJob) -> Result<Edited, Problem> {
    edit(api, &request.id, |job, now| {
        job.meta.paused.is_some().then(|| job.with_pause(None, now, who(&request.by)))
    })
    .await
}

fn who(by: &str) -> &str {
    if by.is_empty() { "unknown" } else { by }
}

/// Changes a job on whatever revision it has; `change` gives none when it is as it should be.
async fn edit(
    api: &Api,
    id: &str,
    change: impl Fn(&Job, DateTime<Utc>) -> Option<Job>,
) -> Result<Edited, Problem> {
    let id = job_id(id)?;
    let mut stored = api.definitions.read(&id).await?;
    for _ in 0..TRIES {
        let job = match stored.job() {
            None => return Err(Problem::no_job(id.as_str())),
            Some(Err(why)) => return Err(broken(id.as_str(), &why)),
            Some(Ok(job)) => job,
        };
        let Some(after) = change(&job, api.clock.now()) else {
            return Ok(unchanged(id.as_str(), stored.revision));
        };
        let body = Bytes::from(after.to_json().to_string());
        match api.definitions.write(&id, body, stored.revision).await? {
            Written::Stored(revision) => return Ok(changed(api, id.as_str(), revision).await),
            Written::Conflict(found) => stored = found,
        }
    }
    Err(Problem::conflict(id.as_str(), stored.visible_revision()))
}

/// Deletes a job, a broken one too. What runs goes on; nothing new is fired.
pub(super) async fn delete(api: &Api, request: OneJob) -> Result<Edited, Problem> {
    let id = job_id(&request.id)?;
    let mut stored = api.definitions.read(&id).await?;
    if stored.body.is_none() {
        return Err(Problem::no_job(id.as_str()));
    }
    for _ in 0..TRIES {
        if stored.body.is_none() {
            return Ok(unchanged(id.as_str(), stored.revision));
        }
        match api.definitions.delete(&id, stored.revision).await? {
            Written::Stored(revision) => {
                tracing::info!(job = %id, by = who(&request.by), "A job was deleted.");
                return Ok(changed(api, id.as_str(), revision).await);
            }
            Written::Conflict(found) => stored = found,
        }
    }
    Err(Problem::conflict(id.as_str(), stored.visible_revision()))
}

fn unchanged(id: &str, revision: u64) -> Edited {
    let confirmation = Confirmation { confirmed: true, waiting_for: Vec::new() };
    Edited { id: id.into(), changed: false, revision, confirmation }
}

async fn changed(api: &Api, id: &str, revision: u64) -> Edited {
    Edited { id: id.into(), changed: true, revision, confirmation: confirm(api, revision).await }
}
