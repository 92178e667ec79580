//! A job as a scheduler keeps it: folded to its text while nothing is due, whole while it is at work.
//!
//! Most jobs of an installation wait for hours: a million of them must fit. *Invariant: folding
//! changes nothing that anyone can see*; unfolding reads the text that was written of the definition.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, Utc};
use serde_json::value::{RawValue, to_raw_value};
use taskparty_common::job::{Job, JobSpec, Meta, Unknown};
use taskparty_common::name::JobId;

use crate::definition::Definition;

/// One job at one revision.
#[derive(Debug)]
pub(crate) struct Kept {
    id: JobId,
    revision: u64,
    /// Its spec, as it stands in intents and records.
    spec: Arc<RawValue>,
    origin: Arc<Origin>,
    /// Of a job that was saved once: when, in nanoseconds since 1970.
    saved_ns: i64,
    whole: Mutex<Option<Arc<Definition>>>,
}

/// What the system knows of a job.
#[derive(Debug)]
pub(crate) enum Origin {
    /// It was saved once and never changed: all its times are the same. Shared by all that the same one
    /// saved.
    SavedOnce { by: String },
    /// Anything else.
    More(Meta),
}

impl Kept {
    /// Keeps `job`, folded. Its id is `id`, and what is known of it may be what is known of `other`.
    pub(crate) fn new(
        id: JobId,
        job: Job,
        revision: u64,
        other: Option<&Arc<Origin>>,
    ) -> Result<Self, serde_json::Error> {
        let Job { spec, meta } = job;
        let text = to_raw_value(&spec.to_json())?;
        // What stays lies close together, in memory of its own size: it is allocated when the rest is
        // gone, and copied from what had to grow.
        drop(spec);
        let once = [meta.anchor, meta.created_at, meta.updated_at] == [meta.since; 3];
        let saved_ns = meta.since.timestamp_nanos_opt();
        let (origin, saved_ns) = match saved_ns.filter(|_| once && meta.paused.is_none()) {
            Some(saved_ns) => {
                let same = |known: &&Arc<Origin>| matches!(&***known, Origin::SavedOnce { by } if *by == meta.updated_by);
                let known = other.filter(same).cloned();
                let by = meta.updated_by;
                (known.unwrap_or_else(|| Arc::new(Origin::SavedOnce { by })), saved_ns)
            }
            None => (Arc::new(Origin::More(meta)), 0),
        };
        Ok(Self { id, revision, spec: text.into(), origin, saved_ns, whole: Mutex::default() })
    }

    /// The job's id.
    pub(crate) fn id(&self) -> &JobId {
        &self.id
    }

    /// The start of the job's past.
    pub(crate) fn since(&self) -> DateTime<Utc> {
        match &*self.origin {
            Origin::More(meta) => meta.since,
            Origin::SavedOnce { .. } => DateTime::from_timestamp_nanos(self.saved_ns),
        }
    }

    /// The definition, which is kept whole from now on; nothing, and said so, when its own text
    /// cannot be read, which is a defect.
    pub(crate) fn whole(&self) -> Option<Arc<Definition>> {
        let mut whole = self.lock();
        if whole.is_none() {
            *whole = self.unfold();
        }
        whole.clone()
    }

    /// The definition; a folded one stays folded.
    pub(crate) fn peek(&self) -> Option<Arc<Definition>> {
        self.lock().clone().or_else(|| self.unfold())
    }

    /// Folds it: nothing will be done with it for long.
    pub(crate) fn fold(&self) {
        *self.lock() = None;
    }

    /// What is known of it, which may be the same for others.
    pub(crate) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    fn meta(&self) -> Meta {
        let since = self.since();
        match &*self.origin {
            Origin::More(meta) => meta.clone(),
            Origin::SavedOnce { by } => Meta {
                created_at: since,
                updated_at: since,
                updated_by: by.clone(),
                since,
                anchor: since,
                paused: None,
            },
        }
    }

    fn unfold(&self) -> Option<Arc<Definition>> {
        let meta = self.meta();
        let value = serde_json::from_str(self.spec.get());
        let spec = value.map_err(|error| error.to_string()).and_then(|value| {
            JobSpec::from_json(&value, Unknown::Ignore).map_err(|error| error.to_string())
        });
        let whole = spec.and_then(|spec| {
            let job = Job { spec, meta };
            Definition::with_text(job, self.spec.clone(), self.revision)
                .map_err(|error| error.to_string())
        });
        whole
            .inspect_err(|error| {
                tracing::error!(job = %self.id, %error, "A job that was read cannot be read again; it does not fire.");
            })
            .ok()
            .map(Arc::new)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Arc<Definition>>> {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use taskparty_common::job::Paused;

    #[test]
    fn what_was_folded_unfolds_to_the_same() {
        let spec = json!({
            "id": "nightly", "title": "每日对账", "app": "shop", "handler": "settle",
            "schedule": { "cron": ["0 0 2 * * ?", "0 30 3 L * ?"], "timezone": "Asia/Shanghai",
                "gap": "skip", "fold": "both", "spread": "3m", "from": "2027-01-01T00:00:00" },
            "params": { "b": 1, "a": [null, 1.5, "x"] }, "shards": 3, "shard_params": [1, 2, 3],
            "misfire": { "policy": "all", "grace": "3s", "window": "5h" }, "timeout": "none",
            "retry": { "max": 3, "jitter": 0.5 }, "labels": { "team": "billing" },
        });
        let now = DateTime::from_timestamp(1_800_000_000, 123_456_789).unwrap();
        let paused = Paused { at: now, by: "ada".into(), reason: "r".into(), until: Some(now) };
        let job = Job::new(JobSpec::from_json(&spec, Unknown::Refuse).unwrap(), now, "ada");
        let changed = job.with_pause(Some(paused), now, "grace");
        let kept = |job: &Job| Kept::new(job.spec.id.clone(), job.clone(), 1, None).unwrap();
        let (first, second) = (kept(&job), kept(&changed));
        for job in [job, changed] {
            for other in [None, Some(first.origin()), Some(second.origin())] {
                folds(job.clone(), other);
            }
        }
    }

    fn folds(job: Job, other: Option<&Arc<Origin>>) {
        let id = job.spec.id.clone();
        let before = Definition::of(job.clone(), 7).unwrap();
        let kept = Kept::new(id, job, 7, other).unwrap();
        assert_eq!(kept.since(), before.since());
        kept.whole().unwrap();
        kept.fold();
        let peeked = kept.peek().unwrap();
        assert!(!Arc::ptr_eq(&peeked, &kept.peek().unwrap()), "it stays folded");
        let after = kept.whole().unwrap();
        assert!(Arc::ptr_eq(&after, &kept.whole().unwrap()), "it stays whole");
        for found in [peeked, after] {
            assert_eq!(found.job, before.job);
            assert_eq!(found.json.get(), before.json.get());
            assert_eq!(found.params.get(), before.params.get());
            assert_eq!(found.revision, 7);
        }
    }
}
