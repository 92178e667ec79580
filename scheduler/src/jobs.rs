//! The jobs that this scheduler knows: what was last seen of the jobs bucket.
//!
//! The engine writes, whoever needs a definition reads. A definition that cannot be read is kept
//! as broken, with the reason, and harms no other job.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use taskparty_common::job::{Invalid, Job};
use taskparty_common::name::JobId;
use taskparty_common::schedule::Timing;

use crate::definition::Definition;
use crate::kept::Kept;
use crate::log_writer::Chain;

/// The jobs, shared. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Jobs(Arc<RwLock<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// A tree, which grows without leaving holes of half its size behind.
    sound: BTreeMap<JobId, Arc<Kept>>,
    /// Who saved the last one: mostly he saved the next one too.
    saved_by: Option<Arc<str>>,
    /// Those of `sound` with a fixed delay that are not paused: the log writer looks after their
    /// chains.
    fixed_delay: HashSet<JobId>,
    broken: BTreeMap<String, String>,
}

/// What a change of the jobs bucket means.
#[derive(Debug)]
pub(crate) enum Change {
    /// The job is so now.
    Saved(Arc<Kept>),
    /// The job is gone, or its definition cannot be read.
    Gone(JobId),
    /// Nothing that concerns a job.
    Nothing,
}

impl Jobs {
    /// Takes in an entry of the jobs bucket; no value means that the key is gone.
    pub(crate) fn take_in(&self, key: &str, revision: u64, value: Option<&Bytes>) -> Change {
        let Ok(id) = JobId::new(key) else {
            tracing::warn!(key, "A key of the jobs bucket is no job id; it is ignored.");
            return Change::Nothing;
        };
        let mut known = self.write();
        known.broken.remove(key);
        let Some(value) = value else {
            known.sound.remove(&id);
            known.fixed_delay.remove(&id);
            return Change::Gone(id);
        };
        match read(&id, revision, value) {
            Ok(definition) => {
                match chain_of(&definition) {
                    Some(_) => known.fixed_delay.insert(id.clone()),
                    None => known.fixed_delay.remove(&id),
                };
                let kept = Kept::new(id.clone(), definition, known.saved_by.as_ref());
                known.saved_by = kept.saved_by().cloned().or(known.saved_by.take());
                let kept = Arc::new(kept);
                known.sound.insert(id, kept.clone());
                Change::Saved(kept)
            }
            Err(error) => {
                tracing::error!(job = %id, %error, "A stored job cannot be read; it does not fire.");
                known.sound.remove(&id);
                known.fixed_delay.remove(&id);
                known.broken.insert(key.into(), error.to_string());
                Change::Gone(id)
            }
        }
    }

    /// A job, if it is known and sound.
    pub(crate) fn get(&self, id: &JobId) -> Option<Arc<Kept>> {
        self.read().sound.get(id).cloned()
    }

    /// Whether there is such a job, sound or broken.
    pub(crate) fn exists(&self, id: &JobId) -> bool {
        let known = self.read();
        known.sound.contains_key(id) || known.broken.contains_key(id.as_str())
    }

    /// All sound jobs.
    pub(crate) fn all(&self) -> Vec<Arc<Kept>> {
        self.read().sound.values().cloned().collect()
    }

    /// How many sound jobs there are.
    pub fn len(&self) -> usize {
        self.read().sound.len()
    }

    /// Whether there is no sound job.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The jobs whose definitions cannot be read, with the reason.
    pub fn broken(&self) -> Vec<(String, String)> {
        self.read().broken.iter().map(|(id, error)| (id.clone(), error.clone())).collect()
    }

    /// The chains of the jobs with a fixed delay that are not paused.
    pub(crate) fn chains(&self) -> Vec<Chain> {
        let known = self.read();
        let jobs = known.fixed_delay.iter().filter_map(|id| known.sound.get(id));
        jobs.filter_map(|job| chain_of(job.peek()?.as_ref())).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The chain of a job with a fixed delay; nothing while it is paused.
fn chain_of(definition: &Definition) -> Option<Chain> {
    let Timing::FixedDelay(delay) = definition.spec().schedule.as_ref()?.timing() else {
        return None;
    };
    let (job, since) = (definition.spec().id.clone(), definition.since());
    definition.job.meta.paused.is_none().then_some(Chain { job, since, delay: *delay })
}

/// Reads a stored job, which must be stored under its own id.
pub(crate) fn read(id: &JobId, revision: u64, value: &[u8]) -> Result<Definition, Invalid> {
    let unreadable = |error: serde_json::Error| Invalid::one("", format!("it is no JSON: {error}"));
    let value = serde_json::from_slice(value).map_err(unreadable)?;
    let job = Job::from_json(&value)?;
    if job.spec.id != *id {
        return Err(Invalid::one("id", format!("it is stored as {id} and says {}", job.spec.id)));
    }
    Definition::of(job, revision).map_err(unreadable)
}
