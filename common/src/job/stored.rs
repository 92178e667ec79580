//! What is stored of a job: `{format: 1, spec, meta}`.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::read::{Invalid, Unknown};
use super::{JobSpec, MisfirePolicy};

/// What the system knows of a job; never part of a spec.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// When the job was first saved.
    pub created_at: DateTime<Utc>,
    /// When it was last changed.
    pub updated_at: DateTime<Utc>,
    /// By whom.
    pub updated_by: String,
    /// The start of the job's past: when its schedule or its pause last changed. Nothing before
    /// it is a misfire.
    pub since: DateTime<Utc>,
    /// What a fixed rate without `from` counts from: the job's creation.
    pub anchor: DateTime<Utc>,
    /// Present while the job is paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<Paused>,
}

/// A pause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Paused {
    /// When it began.
    pub at: DateTime<Utc>,
    /// Who paused the job.
    pub by: String,
    /// Why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When it ends by itself; nothing: when somebody resumes the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<DateTime<Utc>>,
}

/// A job as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// What the user said.
    pub spec: JobSpec,
    /// What the system knows.
    pub meta: Meta,
}

impl Job {
    /// A new job, created at `now` by `by`.
    pub fn new(spec: JobSpec, now: DateTime<Utc>, by: &str) -> Self {
        let meta = Meta {
            created_at: now,
            updated_at: now,
            updated_by: by.into(),
            since: now,
            anchor: now,
            paused: None,
        };
        Self { spec, meta }
    }

    /// This job with another spec: its past begins anew when that changes when it is due.
    pub fn with_spec(&self, spec: JobSpec, now: DateTime<Utc>, by: &str) -> Self {
        let same = self.spec.schedule == spec.schedule;
        let meta = Meta {
            updated_at: now,
            updated_by: by.into(),
            since: if same { self.meta.since } else { now },
            ..self.meta.clone()
        };
        Self { spec, meta }
    }

    /// This job paused, or going on again.
    pub fn with_pause(&self, paused: Option<Paused>, now: DateTime<Utc>, by: &str) -> Self {
        let meta = Meta {
            updated_at: now,
            updated_by: by.into(),
            since: now,
            paused,
            ..self.meta.clone()
        };
        Self { spec: self.spec.clone(), meta }
    }

    /// Whether the job has no scheduled fires at `at`.
    pub fn is_paused(&self, at: DateTime<Utc>) -> bool {
        self.meta.paused.as_ref().is_some_and(|p| p.until.is_none_or(|until| at < until))
    }

    /// Whether missed instants of this job are run at all.
    pub fn runs_misfires(&self) -> bool {
        self.spec.misfire.policy != MisfirePolicy::Skip
    }

    /// The stored form.
    pub fn to_json(&self) -> Value {
        json!({ "format": 1, "spec": self.spec.to_json(), "meta": self.meta })
    }

    /// Reads the stored form: lenient about unknown fields, so that an older process beside a
    /// newer one keeps firing; strict about what it needs.
    pub fn from_json(value: &Value) -> Result<Self, Invalid> {
        let format = value.get("format").and_then(Value::as_u64);
        if format != Some(1) {
            let found = value.get("format").map_or("none".into(), Value::to_string);
            return Err(Invalid::one(
                "format",
                format!(
                    "this version reads format 1 and found {found}: upgrade, or save the job again"
                ),
            ));
        }
        let missing = |field: &str| Invalid::one(field, "it is missing from the stored job");
        let spec = JobSpec::from_json(value.get("spec").ok_or(missing("spec"))?, Unknown::Ignore)?;
        let meta = Meta::deserialize(value.get("meta").ok_or(missing("meta"))?)
            .map_err(|e| Invalid::one("meta", e.to_string()))?;
        Ok(Self { spec, meta })
    }
}
