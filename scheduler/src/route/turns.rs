//! Who got the last runs of each job, for all schedulers: an entry a job in the bucket of routes.
//!
//! *Invariants.* A turn is taken by compare-and-set, so that schedulers that fire one job at once do
//! not take the same. What is remembered here only saves the read. Turns are about fairness: without
//! NATS's answer a fire goes on by what is known.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use taskparty_common::name::JobId;
use taskparty_nats::bucket::{BucketError, Buckets, Entry, Swap};
use taskparty_nats::subject::Bucket;

use super::choose::Turns;

/// Jobs whose entry is remembered.
const REMEMBERED: usize = 10_000;

/// The entries. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Book {
    buckets: Buckets,
    pages: Arc<Mutex<HashMap<JobId, Page>>>,
}

/// What is remembered of a job's entry: held while it is changed, so that fires of one job in one
/// scheduler wait for each other instead of failing.
type Page = Arc<tokio::sync::Mutex<Option<Known>>>;

#[derive(Debug, Clone, Default)]
struct Known {
    revision: u64,
    turns: Turns,
}

/// Whether a step is to be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// It is a turn that is taken.
    Taken,
    /// It only looks whose turn it would be.
    Looked,
}

impl Book {
    pub(super) fn new(buckets: Buckets) -> Self {
        Self { buckets, pages: Arc::default() }
    }

    /// Makes `step` on the entry of `job`, again and again until nobody came between.
    pub(super) async fn turn<T>(
        &self,
        job: &JobId,
        keep: Keep,
        step: impl Fn(&mut Turns) -> T,
    ) -> T {
        let page = self.page(job);
        let mut page = page.lock().await;
        loop {
            let known = match page.take() {
                Some(known) => known,
                None => match self.read(job).await {
                    Ok(known) => known,
                    Err(error) => {
                        tracing::warn!(%job, %error, "Whose turn it is cannot be read; one is chosen all the same.");
                        return step(&mut Turns::default());
                    }
                },
            };
            let mut turns = known.turns.clone();
            let result = step(&mut turns);
            if keep == Keep::Looked || turns == known.turns {
                *page = Some(known);
                return result;
            }
            turns.v = 1;
            match self.write(job, known.revision, &turns).await {
                Ok(Swap::Done { revision }) => {
                    *page = Some(Known { revision, turns });
                    return result;
                }
                Ok(Swap::Lost { current }) => *page = Some(known_of(job, current)),
                Err(error) => {
                    tracing::warn!(%job, %error, "A turn is not stored; the next may be the same executor's.");
                    return result;
                }
            }
        }
    }

    async fn read(&self, job: &JobId) -> Result<Known, BucketError> {
        let entry = self.buckets.get_leader(Bucket::Routes, job.as_str()).await?;
        Ok(known_of(job, entry))
    }

    async fn write(&self, job: &JobId, revision: u64, turns: &Turns) -> Result<Swap, BucketError> {
        let Ok(value) = serde_json::to_vec(turns) else { return Ok(Swap::Done { revision }) };
        self.buckets.put_if(Bucket::Routes, job.as_str(), revision, value, None).await
    }

    fn page(&self, job: &JobId) -> Page {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if pages.len() >= REMEMBERED && !pages.contains_key(job) {
            // Those in use stay: two pages of one job would only cost a second try.
            pages.retain(|_, page| Arc::strong_count(page) > 1);
        }
        pages.entry(job.clone()).or_default().clone()
    }
}

fn known_of(job: &JobId, entry: Option<Entry>) -> Known {
    let Some(Entry { revision, value, .. }) = entry else { return Known::default() };
    let turns = value.map(|value| serde_json::from_slice(&value)).transpose();
    let turns = turns.unwrap_or_else(|error| {
        tracing::error!(%job, %error, "Who got the last runs of a job cannot be read; it begins anew.");
        None
    });
    Known { revision, turns: turns.unwrap_or_default() }
}
