//! The stored job definitions: read from the leader, written by compare-and-set.
//!
//! *Invariant: every write names the revision that it was decided on.* Two people who save the
//! same job cannot overwrite each other, and an answer that got lost does not make a second
//! revision: what is there then is compared with what was meant.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use taskparty_common::job::Job;
use taskparty_common::name::JobId;
use taskparty_nats::bucket::{BucketError, Buckets, Entry, Swap};
use taskparty_nats::history::ReadError;
use taskparty_nats::publish::{Draft, PublishError};
use taskparty_nats::subject::Bucket;

use super::problem::{Code, Problem};

/// How long one deletion is tried.
const DELETE: Duration = Duration::from_secs(8);

/// What the leader has for a job.
#[derive(Debug, Clone, Default)]
pub(super) struct Stored {
    /// The revision; 0 when there never was one. A deleted job has one, too.
    pub(super) revision: u64,
    /// The definition; none when there is no job.
    pub(super) body: Option<Bytes>,
}

impl Stored {
    fn of(entry: Option<Entry>) -> Self {
        entry.map(|entry| Self { revision: entry.revision, body: entry.value }).unwrap_or_default()
    }

    /// The job, or why its definition cannot be read; none when there is no job.
    pub(super) fn job(&self) -> Option<Result<Job, String>> {
        self.body.as_ref().map(|body| {
            let value: Value =
                serde_json::from_slice(body).map_err(|error| format!("it is no JSON: {error}"))?;
            Job::from_json(&value).map_err(|invalid| invalid.to_string())
        })
    }

    /// The revision that a user sees: 0 when there is no job.
    pub(super) fn visible_revision(&self) -> u64 {
        if self.body.is_some() { self.revision } else { 0 }
    }
}

/// What became of a write.
#[derive(Debug)]
pub(super) enum Written {
    /// It is stored, with this revision.
    Stored(u64),
    /// Somebody else was faster; this is what is there.
    Conflict(Stored),
}

/// The bucket of jobs.
#[derive(Debug, Clone)]
pub(super) struct Definitions(Buckets);

impl Definitions {
    pub(super) fn new(buckets: Buckets) -> Self {
        Self(buckets)
    }

    /// What the leader has for `id`.
    pub(super) async fn read(&self, id: &JobId) -> Result<Stored, Problem> {
        Ok(Stored::of(self.0.get_leader(Bucket::Jobs, id.as_str()).await.map_err(unreadable)?))
    }

    /// The job `id`, with its revision; a problem when there is none or it is broken.
    pub(super) async fn job(&self, id: &str) -> Result<(Job, u64), Problem> {
        let id = job_id(id)?;
        let stored = self.read(&id).await?;
        match stored.job() {
            None => Err(Problem::no_job(id.as_str())),
            Some(Ok(job)) => Ok((job, stored.revision)),
            Some(Err(why)) => Err(broken(id.as_str(), &why)),
        }
    }

    /// Every job that there is, by id.
    pub(super) async fn all(&self) -> Result<BTreeMap<String, Stored>, Problem> {
        let entries = self.0.entries(Bucket::Jobs, ">").await.map_err(unreadable)?;
        let named = |entry: Entry| (entry.key.to_string(), Stored::of(Some(entry)));
        Ok(entries.into_iter().map(named).collect())
    }

    /// Saves `body` where the job still has `revision`.
    pub(super) async fn write(
        &self,
        id: &JobId,
        body: Bytes,
        revision: u64,
    ) -> Result<Written, Problem> {
        match self.0.put_if(Bucket::Jobs, id.as_str(), revision, body, None).await {
            Ok(Swap::Done { revision }) => Ok(Written::Stored(revision)),
            Ok(Swap::Lost { current }) => Ok(Written::Conflict(Stored::of(current))),
            Err(BucketError::Read(error)) => Err(unreadable(error)),
            Err(BucketError::Write(error)) => Err(refused(error)),
        }
    }

    /// Deletes the job where it still has `revision`.
    pub(super) async fn delete(&self, id: &JobId, revision: u64) -> Result<Written, Problem> {
        let key = self.0.nats().names().key(Bucket::Jobs, id.as_str());
        let draft =
            Draft::new(key, Bytes::new()).expect_last(revision).header("KV-Operation", "DEL");
        match self.0.publisher().publish_within(draft, DELETE).await {
            Ok(stored) => Ok(Written::Stored(stored.seq)),
            Err(PublishError::WrongLastSequence { .. } | PublishError::Unconfirmed(_)) => {
                let found = self.read(id).await?;
                // Deleted is deleted, by whomever: a lost answer looks the same.
                if found.body.is_none() && found.revision > revision {
                    return Ok(Written::Stored(found.revision));
                }
                Ok(Written::Conflict(found))
            }
            Err(error) => Err(refused(error)),
        }
    }
}

/// `id` as the id of a job.
pub(super) fn job_id(id: &str) -> Result<JobId, Problem> {
    JobId::new(id).map_err(|error| Problem::field("id", None, error.to_string()))
}

/// The stored definition of `id` cannot be used.
pub(super) fn broken(id: &str, why: &str) -> Problem {
    Problem::new(
        Code::Conflict,
        format!(
            "the stored definition of job {id:?} is broken: {why}; apply the job again, or delete it"
        ),
    )
}

/// A read that did not work.
pub(super) fn unreadable(error: ReadError) -> Problem {
    let todo = match error {
        ReadError::NoStream(_) => "; `taskparty topology apply` makes what is missing",
        ReadError::Refused(_) => "; `taskparty doctor` looks closer",
        ReadError::Unanswered(_) => "; try again, `nats server report jetstream` shows the servers",
    };
    Problem::unavailable(format!("NATS cannot be read: {error}{todo}"))
}

/// A publish that was not confirmed.
pub(super) fn refused(error: PublishError) -> Problem {
    match error {
        PublishError::TooLarge(_) => Problem::new(Code::TooLarge, error.to_string()),
        PublishError::Full(_) => Problem::unavailable(format!(
            "{error}; `taskparty doctor` shows how full the streams are"
        )),
        PublishError::NoStream => Problem::unavailable(format!(
            "{error}; `taskparty topology apply` makes what is missing"
        )),
        _ => Problem::unavailable(format!("{error}; nothing more is known, try again")),
    }
}
