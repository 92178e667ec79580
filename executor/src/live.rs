//! The runs that this process has in its hands: who may cancel them, and what the registry says.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use taskparty_common::dispatch::{Cancel, Dispatch, ResultRecord};
use taskparty_common::name::{Handler, JobId};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// Attempts of which it is remembered that their result is stored.
const REMEMBERED: usize = 10_000;

/// All runs in this process. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Live(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    next: u64,
    runs: HashMap<u64, Entry>,
    /// The latest delivery of each attempt of a shard, and its place in `runs`.
    latest: HashMap<Attempt, (u64, u64)>,
    /// The last attempts whose results are stored, the oldest first.
    reported: VecDeque<Attempt>,
    is_reported: HashSet<Attempt>,
}

/// Run, shard and attempt.
type Attempt = (Uuid, u32, u32);

/// What becomes of a delivery.
#[derive(Debug)]
pub(crate) enum Entered {
    /// It is begun.
    Begun(Place),
    /// This process has that very delivery, or a later one, in its hands already: the server has
    /// forgotten that it sent it, because it was killed or its consumer was made anew.
    InHand,
    /// Its result is stored, and the server has forgotten the ack, or never got it.
    Reported,
}

#[derive(Debug)]
struct Entry {
    attempt: Attempt,
    job: JobId,
    handler: Handler,
    cancel: Arc<CancelRequest>,
}

/// Whether somebody asked for a run to stop, and who.
#[derive(Debug, Default)]
pub(crate) struct CancelRequest {
    asked: CancellationToken,
    by: OnceLock<String>,
}

impl CancelRequest {
    fn ask(&self, by: &str) {
        self.by.get_or_init(|| by.to_owned());
        self.asked.cancel();
    }

    /// Waits until somebody asks, and says who.
    pub(crate) async fn asked(&self) -> &str {
        self.asked.cancelled().await;
        self.by.get().map_or("", String::as_str)
    }
}

/// A run's place in the table, and its slot. Both are given back when this is dropped.
///
/// *Invariant: it lives as long as the handler's future does*, so that a handler which cannot be
/// stopped still counts.
#[derive(Debug)]
pub(crate) struct Place {
    live: Live,
    id: u64,
    pub(crate) cancel: Arc<CancelRequest>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut table = self.live.table();
        let Some(entry) = table.runs.remove(&self.id) else { return };
        if table.latest.get(&entry.attempt).is_some_and(|(_, id)| *id == self.id) {
            table.latest.remove(&entry.attempt);
        }
    }
}

impl Live {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `dispatch`, delivered for the `delivery`th time, in, in `slot`.
    pub(crate) fn enter(
        &self,
        dispatch: &Dispatch,
        delivery: u64,
        slot: OwnedSemaphorePermit,
    ) -> Entered {
        let cancel = Arc::<CancelRequest>::default();
        let attempt = (dispatch.run, dispatch.shard.index, dispatch.attempt);
        let mut table = self.table();
        if table.latest.get(&attempt).is_some_and(|(latest, _)| *latest >= delivery) {
            return Entered::InHand;
        }
        if table.is_reported.contains(&attempt) {
            return Entered::Reported;
        }
        table.next += 1;
        let id = table.next;
        let entry = Entry {
            attempt,
            job: dispatch.job.clone(),
            handler: dispatch.handler.clone(),
            cancel: cancel.clone(),
        };
        table.runs.insert(id, entry);
        table.latest.insert(attempt, (delivery, id));
        drop(table);
        Entered::Begun(Place { live: self.clone(), id, cancel, _slot: slot })
    }

    /// The result of an attempt is stored: whatever is delivered of it again is done.
    pub(crate) fn reported(&self, record: &ResultRecord) {
        let attempt = (record.run, record.shard.index, record.attempt);
        let mut table = self.table();
        if table.is_reported.insert(attempt) {
            table.reported.push_back(attempt);
        }
        if table.reported.len() > REMEMBERED
            && let Some(oldest) = table.reported.pop_front()
        {
            table.is_reported.remove(&oldest);
        }
    }

    /// Asks every run that `cancel` names to stop. Asking again changes nothing.
    pub(crate) fn cancel(&self, cancel: &Cancel) {
        let table = self.table();
        let named = |entry: &&Entry| {
            let (run, shard, _) = entry.attempt;
            run == cancel.run && cancel.shard.is_none_or(|named| named == shard)
        };
        for entry in table.runs.values().filter(named) {
            entry.cancel.ask(&cancel.by);
        }
    }

    /// The jobs that `handler` runs now, once for each run.
    pub(crate) fn jobs_of(&self, handler: &Handler) -> Vec<JobId> {
        let table = self.table();
        let mut jobs: Vec<_> = table
            .runs
            .values()
            .filter(|entry| entry.handler == *handler)
            .map(|entry| entry.job.clone())
            .collect();
        jobs.sort_unstable();
        jobs
    }

    /// Whether `job` runs here now.
    pub(crate) fn has_job(&self, job: &JobId) -> bool {
        self.table().runs.values().any(|entry| entry.job == *job)
    }
}
