//! The jobs that this scheduler knows: what was last seen of the jobs bucket.
//!
//! The engine writes, whoever needs a definition reads. A definition that cannot be read is kept
//! as broken, with the reason, and harms no other job.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use taskparty_common::job::{Invalid, Job};
use taskparty_common::name::JobId;
use taskparty_common::schedule::Timing;

use crate::definition::Definition;
use crate::kept::{self, Kept};
use crate::log_writer::Chain;

/// The jobs, shared. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Jobs(Arc<RwLock<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// A tree, which grows without leaving holes of half its size behind.
    sound: BTreeSet<ById>,
    /// What is known of the last one: mostly the same holds for the next one.
    last: Option<Arc<kept::Origin>>,
    /// Those of `sound` with a fixed delay that are not paused: the log writer looks after their
    /// chains.
    fixed_delay: HashSet<JobId>,
    broken: BTreeMap<String, String>,
}

/// A job in the order of the ids. It holds its own: an id beside it would be in memory twice.
#[derive(Debug)]
struct ById(Arc<Kept>);

impl Borrow<JobId> for ById {
    fn borrow(&self) -> &JobId {
        self.0.id()
    }
}

impl Ord for ById {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.id().cmp(other.0.id())
    }
}

impl PartialOrd for ById {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

impl Eq for ById {}

/// What a change of the jobs bucket means.
#[derive(Debug)]
pub(crate) enum Change<L> {
    /// The job is so now, and this was seen of it.
    Saved(Arc<Kept>, L),
    /// The job is gone, or its definition cannot be read.
    Gone(JobId),
    /// Nothing that concerns a job.
    Nothing,
}

impl Jobs {
    /// Takes in an entry of the jobs bucket; no value means that the key is gone. `look` sees the
    /// job while it is whole: it is kept folded.
    pub(crate) fn take_in<L>(
        &self,
        key: &Arc<str>,
        revision: u64,
        value: Option<&Bytes>,
        look: impl FnOnce(&Job) -> L,
    ) -> Change<L> {
        let Ok(id) = JobId::try_from(key.clone()) else {
            tracing::warn!(%key, "A key of the jobs bucket is no job id; it is ignored.");
            return Change::Nothing;
        };
        let mut known = self.write();
        known.broken.remove(&**key);
        let Some(value) = value else {
            known.sound.remove(&id);
            known.fixed_delay.remove(&id);
            return Change::Gone(id);
        };
        let read = read_job(&id, value).and_then(|job| {
            let (chained, seen) = (chain_of(&job).is_some(), look(&job));
            let kept = Kept::new(id.clone(), job, revision, known.last.as_ref());
            Ok((kept.map_err(unreadable)?, chained, seen))
        });
        match read {
            Ok((kept, chained, seen)) => {
                match chained {
                    true => known.fixed_delay.insert(id),
                    false => known.fixed_delay.remove(&id),
                };
                known.last = Some(kept.origin().clone());
                let kept = Arc::new(kept);
                known.sound.replace(ById(kept.clone()));
                Change::Saved(kept, seen)
            }
            Err(error) => {
                tracing::error!(job = %id, %error, "A stored job cannot be read; it does not fire.");
                known.sound.remove(&id);
                known.fixed_delay.remove(&id);
                known.broken.insert(key.as_ref().into(), error.to_string());
                Change::Gone(id)
            }
        }
    }

    /// A job, if it is known and sound.
    pub(crate) fn get(&self, id: &JobId) -> Option<Arc<Kept>> {
        self.read().sound.get(id).map(|job| job.0.clone())
    }

    /// Whether there is such a job, sound or broken.
    pub(crate) fn exists(&self, id: &JobId) -> bool {
        let known = self.read();
        known.sound.contains(id) || known.broken.contains_key(id.as_str())
    }

    /// All sound jobs.
    pub(crate) fn all(&self) -> Vec<Arc<Kept>> {
        self.select(|_| true)
    }

    /// The sound jobs that `choose` chooses, in the order of their ids.
    pub(crate) fn select(&self, mut choose: impl FnMut(&Kept) -> bool) -> Vec<Arc<Kept>> {
        let known = self.read();
        known.sound.iter().filter(|job| choose(&job.0)).map(|job| job.0.clone()).collect()
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
        jobs.filter_map(|job| chain_of(&job.0.peek()?.job)).collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Known> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Known> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The chain of a job with a fixed delay; nothing while it is paused.
fn chain_of(job: &Job) -> Option<Chain> {
    let Timing::FixedDelay(delay) = job.spec.schedule.as_ref()?.timing() else {
        return None;
    };
    let (id, since) = (job.spec.id.clone(), job.meta.since);
    job.meta.paused.is_none().then_some(Chain { job: id, since, delay: *delay })
}

/// Reads a stored job, which must be stored under its own id.
pub(crate) fn read(id: &JobId, revision: u64, value: &[u8]) -> Result<Definition, Invalid> {
    Definition::of(read_job(id, value)?, revision).map_err(unreadable)
}

fn read_job(id: &JobId, value: &[u8]) -> Result<Job, Invalid> {
    let value = serde_json::from_slice(value).map_err(unreadable)?;
    let job = Job::from_json(&value)?;
    if job.spec.id != *id {
        return Err(Invalid::one("id", format!("it is stored as {id} and says {}", job.spec.id)));
    }
    Ok(job)
}

fn unreadable(error: serde_json::Error) -> Invalid {
    Invalid::one("", format!("it is no JSON: {error}"))
}
