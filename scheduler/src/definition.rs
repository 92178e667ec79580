//! A job as a run goes by it: frozen when the run is made.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde_json::value::{RawValue, to_raw_value};
use taskparty_common::job::{Invalid, Job, JobSpec, Overlap, Unknown};

/// A job at one revision, in the forms that firing needs.
#[derive(Debug)]
pub(crate) struct Definition {
    /// The job.
    pub(crate) job: Job,
    /// Its spec as JSON, as it stands in intents and records.
    pub(crate) json: Arc<RawValue>,
    /// Its params, as they go on the wire.
    pub(crate) params: Box<RawValue>,
    /// Its revision.
    pub(crate) revision: u64,
}

impl Definition {
    /// The definition of a stored job.
    pub(crate) fn of(job: Job, revision: u64) -> Result<Self, serde_json::Error> {
        let json = to_raw_value(&job.spec.to_json())?;
        Self::with_text(job, json.into(), revision)
    }

    /// The definition of a job whose spec is written in `json`.
    pub(crate) fn with_text(
        job: Job,
        json: Arc<RawValue>,
        revision: u64,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self { params: to_raw_value(&job.spec.params)?, json, job, revision })
    }

    /// A definition that was frozen with a run, the past of its job beginning at `since`.
    pub(crate) fn frozen(
        json: &RawValue,
        revision: u64,
        since: DateTime<Utc>,
    ) -> Result<Self, Invalid> {
        let unreadable = |error: serde_json::Error| Invalid::one("definition", error.to_string());
        let value = serde_json::from_str(json.get()).map_err(unreadable)?;
        let spec = JobSpec::from_json(&value, Unknown::Ignore)?;
        let job = Job::new(spec, since, "");
        Self::with_text(job, json.to_owned().into(), revision).map_err(unreadable)
    }

    /// This definition with another overlap policy, for one run.
    pub(crate) fn with_overlap(&self, overlap: Overlap) -> Result<Self, serde_json::Error> {
        let mut job = self.job.clone();
        job.spec.overlap = overlap;
        Self::of(job, self.revision)
    }

    /// What the user said of the job.
    pub(crate) fn spec(&self) -> &JobSpec {
        &self.job.spec
    }

    /// The start of the job's past.
    pub(crate) fn since(&self) -> DateTime<Utc> {
        self.job.meta.since
    }
}
