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
    since: DateTime<Utc>,
    /// What else is known; of a job that was saved once and never changed only by whom.
    meta: Known,
    whole: Mutex<Option<Arc<Definition>>>,
}

/// What the system knows of a job, beside the start of its past.
#[derive(Debug)]
enum Known {
    /// All its times are the start of its past.
    SavedOnce { by: Arc<str> },
    /// Anything else.
    More(Box<Meta>),
}

impl Kept {
    /// Keeps `job`, folded. Its id is `id`, and who saved it may be `by`, which others hold too.
    pub(crate) fn new(
        id: JobId,
        job: Job,
        revision: u64,
        by: Option<&Arc<str>>,
    ) -> Result<Self, serde_json::Error> {
        let Job { spec, meta } = job;
        let since = meta.since;
        let text = to_raw_value(&spec.to_json())?;
        // What stays lies close together, in memory of its own size: it is allocated when the rest is
        // gone, and copied from what had to grow.
        drop(spec);
        let once = [meta.anchor, meta.created_at, meta.updated_at] == [meta.since; 3];
        let known = if once && meta.paused.is_none() {
            let by = by.filter(|by| ***by == *meta.updated_by).cloned();
            Known::SavedOnce { by: by.unwrap_or_else(|| meta.updated_by.as_str().into()) }
        } else {
            Known::More(Box::new(meta))
        };
        Ok(Self { id, revision, spec: text.into(), since, meta: known, whole: Mutex::default() })
    }

    /// The job's id.
    pub(crate) fn id(&self) -> &JobId {
        &self.id
    }

    /// The start of the job's past.
    pub(crate) fn since(&self) -> DateTime<Utc> {
        self.since
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

    /// Who saved it, to be shared with others that he saved; nothing when there is more to know.
    pub(crate) fn saved_by(&self) -> Option<&Arc<str>> {
        match &self.meta {
            Known::SavedOnce { by } => Some(by),
            Known::More(_) => None,
        }
    }

    fn meta(&self) -> Meta {
        match &self.meta {
            Known::More(meta) => meta.as_ref().clone(),
            Known::SavedOnce { by } => Meta {
                created_at: self.since,
                updated_at: self.since,
                updated_by: by.as_ref().into(),
                since: self.since,
                anchor: self.since,
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
        let by: [Arc<str>; 2] = ["ada".into(), "grace".into()];
        for job in [job, changed] {
            for by in [None, Some(&by[0]), Some(&by[1])] {
                folds(job.clone(), by);
            }
        }
    }

    fn folds(job: Job, by: Option<&Arc<str>>) {
        let id = job.spec.id.clone();
        let before = Definition::of(job.clone(), 7).unwrap();
        let kept = Kept::new(id, job, 7, by).unwrap();
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
