//! The runs that hold places, as a watch of the overlap bucket tells.
//!
//! Entries of jobs whose runs take turns stay for ever, so to read them all takes long where there
//! are many jobs. What is kept here is only of those in which a run goes on. It may lag; who goes by
//! it must bear that.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use taskparty_common::name::JobId;
use taskparty_nats::bucket::{Change, Entry, Watch};
use taskparty_nats::subject::Bucket;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::log_writer::Parts;
use crate::overlap;

/// Runs that go on, by job.
#[derive(Debug, Default)]
pub(super) struct Going(Mutex<HashMap<JobId, Vec<Uuid>>>);

impl Going {
    /// Keeps up until `stop`.
    pub(super) async fn follow(&self, parts: &Parts, stop: &CancellationToken) {
        let mut watch = Watch::start(&parts.buckets, Bucket::Overlap, "*", stop);
        while let Some(Some(change)) = stop.run_until_cancelled(watch.next()).await {
            if let Change::Entry(entry) = change {
                self.take_in(&entry);
            }
        }
    }

    fn take_in(&self, entry: &Entry) {
        let Ok(job) = JobId::new(&entry.key) else { return };
        let places = entry.value.as_ref().map(|value| overlap::read(&job, value));
        // What waited and is to be dispatched does not go on yet.
        let going_on = places.into_iter().flat_map(|places| places.active);
        let runs: Vec<Uuid> =
            going_on.filter(|active| !active.due).map(|active| active.run).collect();
        if runs.is_empty() {
            self.known().remove(&job);
        } else {
            self.known().insert(job, runs);
        }
    }

    /// Each run that goes on, with its job.
    pub(super) fn all(&self) -> HashMap<Uuid, JobId> {
        let known = self.known();
        let of = |(job, runs): (&JobId, &Vec<Uuid>)| {
            runs.iter().map(|run| (*run, job.clone())).collect::<Vec<_>>()
        };
        known.iter().flat_map(of).collect()
    }

    fn known(&self) -> MutexGuard<'_, HashMap<JobId, Vec<Uuid>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use taskparty_common::overlap::{Places, WhenFull};

    #[test]
    fn only_runs_that_go_on_are_kept() {
        let (going, mut places) = (Going::default(), Places::default());
        let tell = |places: Option<&Places>| {
            let value = places.map(|places| serde_json::to_vec(places).unwrap().into());
            let created = DateTime::UNIX_EPOCH;
            going.take_in(&Entry { key: "a".into(), revision: 1, value, created });
            going.all().into_keys().collect::<Vec<_>>()
        };
        let run = Uuid::from_u128;
        for n in 1..=3 {
            places.admit(run(n), 1, WhenFull::Wait { limit: None });
        }
        assert_eq!(tell(Some(&places)), [run(1)]);
        places.release(run(1));
        places.promote(1);
        assert!(tell(Some(&places)).is_empty() && going.known().is_empty(), "it is due");
        places.dispatched(run(2));
        assert_eq!(tell(Some(&places)), [run(2)]);
        assert!(tell(None).is_empty(), "the entry is gone");
    }
}
