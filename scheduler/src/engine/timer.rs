//! When each job is next due: one ordered set for all of them.
//!
//! No task, no timer and no scan per job: a million idle jobs cost their entries here and one
//! sleep. *Invariant: a job stands in the set at most once.*

use std::collections::{BTreeMap, BTreeSet};

use taskparty_common::name::JobId;

/// The due times of jobs, in milliseconds since 1970.
#[derive(Debug, Default)]
pub(crate) struct Timer {
    by_due: BTreeSet<(i64, JobId)>,
    due_of: BTreeMap<JobId, i64>,
}

impl Timer {
    /// Sets or moves the time at which `job` is next due.
    pub(crate) fn set(&mut self, job: &JobId, due_ms: i64) {
        self.remove(job);
        self.by_due.insert((due_ms, job.clone()));
        self.due_of.insert(job.clone(), due_ms);
    }

    /// Sets the times of many jobs, each once. The nodes of a tree that is built of all of them are
    /// full; one after the other, in order, would leave them half empty.
    pub(crate) fn set_all(&mut self, jobs: impl IntoIterator<Item = (JobId, i64)>) {
        let jobs: Vec<(JobId, i64)> = jobs.into_iter().collect();
        jobs.iter().for_each(|(job, _)| self.remove(job));
        self.by_due.append(&mut jobs.iter().map(|(job, due)| (*due, job.clone())).collect());
        self.due_of.append(&mut jobs.into_iter().collect());
    }

    /// Forgets `job`.
    pub(crate) fn remove(&mut self, job: &JobId) {
        if let Some(due) = self.due_of.remove(job) {
            self.by_due.remove(&(due, job.clone()));
        }
    }

    /// The next time at which anything is due.
    pub(crate) fn next_due(&self) -> Option<i64> {
        self.by_due.first().map(|(due, _)| *due)
    }

    /// When `job` is next due.
    pub(crate) fn due_of(&self, job: &JobId) -> Option<i64> {
        self.due_of.get(job).copied()
    }

    /// All jobs, in the order in which they are due.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (i64, &JobId)> {
        self.by_due.iter().map(|(due, job)| (*due, job))
    }

    /// Takes out the job that is due first, if it is due at `now_ms`.
    pub(crate) fn pop_due(&mut self, now_ms: i64) -> Option<JobId> {
        if self.next_due()? > now_ms {
            return None;
        }
        let (_, job) = self.by_due.pop_first()?;
        self.due_of.remove(&job);
        Some(job)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str) -> JobId {
        JobId::new(id).unwrap()
    }

    #[test]
    fn jobs_come_out_when_they_are_due_and_once() {
        let mut timer = Timer::default();
        timer.set(&job("late"), 300);
        timer.set(&job("early"), 100);
        timer.set(&job("moved"), 50);
        timer.set(&job("moved"), 200);
        timer.set(&job("gone"), 10);
        timer.remove(&job("gone"));
        assert_eq!(timer.next_due(), Some(100));
        assert_eq!(timer.pop_due(99), None);
        assert_eq!(timer.pop_due(250), Some(job("early")));
        assert_eq!(timer.pop_due(250), Some(job("moved")));
        assert_eq!(timer.pop_due(250), None);
        assert_eq!(timer.next_due(), Some(300));
    }
}
