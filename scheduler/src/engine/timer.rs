//! Jobs, what is known of each, and when each is next due: one table and one order for all of them.
//!
//! No task, no timer and no scan per job: a million idle jobs cost their entries here and one
//! sleep. *Invariant: a job stands in one order at most, and there at the time that its entry says.*

use std::collections::BTreeMap;

use taskparty_common::name::JobId;

/// The due time of what is never due.
const NEVER: i64 = i64::MAX;

/// What is a smaller part of a tree than this is added one by one; else the tree is built anew.
const REBUILT_FROM: usize = 16;

/// Jobs in the order of their due times, in milliseconds since 1970.
type Queue = BTreeMap<(i64, JobId), ()>;

/// A job's `value`, and when the job is next due.
#[derive(Debug)]
pub(crate) struct Timed<T> {
    due_ms: i64,
    pub(crate) value: T,
}

impl<T> Timed<T> {
    /// `value`, of a job that is next due at `due_ms`, if it ever is.
    pub(crate) fn new(value: T, due_ms: Option<i64>) -> Self {
        Self { due_ms: due_ms.unwrap_or(NEVER), value }
    }

    /// When the job is next due.
    pub(crate) fn due_ms(&self) -> Option<i64> {
        Some(self.due_ms).filter(|due| *due != NEVER)
    }
}

/// The jobs with their values and due times.
#[derive(Debug)]
pub(crate) struct Timer<T> {
    jobs: BTreeMap<JobId, Timed<T>>,
    by_due: Queue,
    /// Jobs that do not come out yet, also those that are never due.
    held: Queue,
}

impl<T> Default for Timer<T> {
    fn default() -> Self {
        Self { jobs: BTreeMap::new(), by_due: Queue::new(), held: Queue::new() }
    }
}

impl<T> Timer<T> {
    /// What is known of `job`.
    pub(crate) fn get(&self, job: &JobId) -> Option<&T> {
        self.jobs.get(job).map(|timed| &timed.value)
    }

    /// As [`Timer::get`].
    pub(crate) fn get_mut(&mut self, job: &JobId) -> Option<&mut T> {
        self.jobs.get_mut(job).map(|timed| &mut timed.value)
    }

    /// The jobs with what is known of them, in the order of their ids.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&JobId, &T)> {
        self.jobs.iter().map(|(job, timed)| (job, &timed.value))
    }

    /// How many jobs there are.
    pub(crate) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Takes in what is known of `job` now; when it is due stays as it is: never, for a new one.
    pub(crate) fn insert(&mut self, job: JobId, value: T) {
        match self.jobs.get_mut(&job) {
            Some(timed) => timed.value = value,
            None => {
                self.jobs.insert(job, Timed::new(value, None));
            }
        }
    }

    /// Takes in many jobs that are not there yet, and that do not come out before [`Timer::release`].
    pub(crate) fn hold(&mut self, jobs: Vec<(JobId, Timed<T>)>) {
        // One by one, as they come by and by: to sort them takes a large copy.
        self.held.extend(jobs.iter().map(|(job, timed)| ((timed.due_ms, job.clone()), ())));
        join(&mut self.jobs, jobs.into_iter().collect());
    }

    /// Lets out what is held, and says how many jobs that are.
    pub(crate) fn release(&mut self) -> usize {
        let count = self.held.len();
        let mut held = std::mem::take(&mut self.held);
        while held.last_key_value().is_some_and(|((due, _), ())| *due == NEVER) {
            held.pop_last();
        }
        join(&mut self.by_due, held);
        count
    }

    /// Sets when `job` is next due, if it ever is. One that is held stays so, and one that is not
    /// here does not come here.
    pub(crate) fn set(&mut self, job: &JobId, due_ms: Option<i64>) {
        let Some(timed) = self.jobs.get_mut(job) else { return };
        let due_ms = due_ms.unwrap_or(NEVER);
        let (before, now) = ((timed.due_ms, job.clone()), (due_ms, job.clone()));
        timed.due_ms = due_ms;
        if self.held.remove(&before).is_some() {
            self.held.insert(now, ());
            return;
        }
        self.by_due.remove(&before);
        if due_ms != NEVER {
            self.by_due.insert(now, ());
        }
    }

    /// Forgets `job`.
    pub(crate) fn remove(&mut self, job: &JobId) -> Option<T> {
        let Timed { due_ms, value } = self.jobs.remove(job)?;
        let place = (due_ms, job.clone());
        if self.by_due.remove(&place).is_none() {
            self.held.remove(&place);
        }
        Some(value)
    }

    /// The next time at which anything is due.
    pub(crate) fn next_due(&self) -> Option<i64> {
        self.by_due.first_key_value().map(|((due, _), ())| *due)
    }

    /// When `job` is next due, unless it is held.
    pub(crate) fn due_of(&self, job: &JobId) -> Option<i64> {
        let due_ms = self.jobs.get(job)?.due_ms()?;
        let held = !self.held.is_empty() && self.held.contains_key(&(due_ms, job.clone()));
        (!held).then_some(due_ms)
    }

    /// All jobs that come out, in the order in which they are due.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = (i64, &JobId)> {
        self.by_due.keys().map(|(due, job)| (*due, job))
    }

    /// The job that is due first, if it is due at `now_ms`: it is due no more.
    pub(crate) fn pop_due(&mut self, now_ms: i64) -> Option<JobId> {
        if self.next_due()? > now_ms {
            return None;
        }
        let ((_, job), ()) = self.by_due.pop_first()?;
        if let Some(timed) = self.jobs.get_mut(&job) {
            timed.due_ms = NEVER;
        }
        Some(job)
    }
}

/// Adds `more` to `all`. A tree that is built of many at once has full nodes, but all of it is built
/// anew.
fn join<K: Ord, V>(all: &mut BTreeMap<K, V>, mut more: BTreeMap<K, V>) {
    if more.len() < all.len() / REBUILT_FROM {
        all.extend(more);
    } else {
        all.append(&mut more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn job(id: &str) -> JobId {
        JobId::new(id).unwrap()
    }

    fn timer(jobs: &[(&str, Option<i64>)]) -> Timer<()> {
        let mut timer = Timer::default();
        for (id, due) in jobs {
            timer.insert(job(id), ());
            timer.set(&job(id), *due);
        }
        timer
    }

    #[test]
    fn jobs_come_out_when_they_are_due_and_once() {
        let mut timer = timer(&[("late", Some(300)), ("early", Some(100)), ("never", None)]);
        for (id, due) in [("moved", 50), ("moved", 200), ("gone", 10)] {
            timer.insert(job(id), ());
            timer.set(&job(id), Some(due));
        }
        timer.remove(&job("gone"));
        timer.set(&job("unknown"), Some(1));
        assert_eq!(timer.next_due(), Some(100));
        assert_eq!(timer.pop_due(99), None);
        assert_eq!(timer.pop_due(250), Some(job("early")));
        assert_eq!((timer.due_of(&job("early")), timer.get(&job("early"))), (None, Some(&())));
        assert_eq!(timer.pop_due(250), Some(job("moved")));
        assert_eq!(timer.pop_due(250), None);
        assert_eq!(timer.next_due(), Some(300));
        assert_eq!(timer.len(), 4);
    }

    #[test]
    fn what_is_held_comes_out_when_it_is_released_whatever_became_of_it_meanwhile() {
        for others in [0, 100] {
            let mut timer = timer(&[("before", Some(5))]);
            (0..others).for_each(|n| timer.insert(job(&format!("other-{n}")), ()));
            let held = [("a", Some(1)), ("b", None), ("c", Some(3)), ("d", Some(4)), ("e", None)];
            let held = held.map(|(id, due)| (job(id), Timed::new((), due)));
            timer.hold(held.into());
            timer.set(&job("b"), Some(2));
            timer.set(&job("c"), None);
            timer.remove(&job("d"));
            assert_eq!((timer.due_of(&job("a")), timer.next_due()), (None, Some(5)));
            assert_eq!(timer.release(), 4);
            let order: Vec<_> = timer.in_order().map(|(due, job)| (due, job.as_str())).collect();
            assert_eq!(order, [(1, "a"), (2, "b"), (5, "before")]);
            assert_eq!(timer.due_of(&job("a")), Some(1));
        }
    }

    /// What happens to one of a few jobs, or to all.
    #[derive(Debug, Clone)]
    enum Event {
        Insert(usize),
        Set(usize, Option<i64>),
        Remove(usize),
        Hold(Vec<(usize, Option<i64>)>),
        Release,
        Pop(i64),
    }

    fn event() -> impl Strategy<Value = Event> {
        let due = || prop::option::weighted(0.8, 0_i64..50);
        prop_oneof![
            2 => (0_usize..40).prop_map(Event::Insert),
            6 => (0_usize..40, due()).prop_map(|(n, due)| Event::Set(n, due)),
            2 => (0_usize..40).prop_map(Event::Remove),
            1 => prop::collection::vec((0_usize..40, due()), 0..30).prop_map(Event::Hold),
            1 => Just(Event::Release),
            4 => (0_i64..50).prop_map(Event::Pop),
        ]
    }

    proptest! {
        /// However jobs come, change, are held and go: each has its due time, and comes out by it
        /// unless it is held.
        #[test]
        fn it_does_what_a_plain_list_does(events in prop::collection::vec(event(), 1..200)) {
            let mut timer = Timer::default();
            // Of each job when it is due, and whether it is held.
            let mut plain = BTreeMap::<JobId, (Option<i64>, bool)>::new();
            let job = |n: usize| job(&format!("job-{n:02}"));
            for event in events {
                match event {
                    Event::Insert(n) => {
                        timer.insert(job(n), ());
                        plain.entry(job(n)).or_default();
                    }
                    Event::Set(n, due) => {
                        timer.set(&job(n), due);
                        plain.entry(job(n)).and_modify(|known| known.0 = due);
                    }
                    Event::Remove(n) => {
                        prop_assert_eq!(timer.remove(&job(n)), plain.remove(&job(n)).map(|_| ()));
                    }
                    Event::Hold(jobs) => {
                        let new: BTreeMap<_, _> = jobs.into_iter().collect();
                        let new = new.into_iter().filter(|(n, _)| !plain.contains_key(&job(*n)));
                        let new: Vec<_> = new.collect();
                        timer.hold(new.iter().map(|(n, due)| (job(*n), Timed::new((), *due))).collect());
                        plain.extend(new.into_iter().map(|(n, due)| (job(n), (due, true))));
                    }
                    Event::Release => {
                        let was_held = |known: &mut (_, bool)| std::mem::take(&mut known.1);
                        let held = plain.values_mut().map(was_held).filter(|held| *held).count();
                        prop_assert_eq!(timer.release(), held);
                    }
                    Event::Pop(now) => {
                        let out = plain.iter().filter(|(_, (_, held))| !held);
                        let out = out.filter_map(|(job, (due, _))| Some(((*due)?, job.clone())));
                        let first = out.min().filter(|(due, _)| *due <= now).map(|(_, job)| job);
                        if let Some(known) = first.as_ref().and_then(|job| plain.get_mut(job)) {
                            known.0 = None;
                        }
                        prop_assert_eq!(timer.pop_due(now), first);
                    }
                }
                for (job, (due, held)) in &plain {
                    prop_assert_eq!(timer.due_of(job), due.filter(|_| !held));
                }
                prop_assert_eq!(timer.len(), plain.len());
                let out = plain.values().filter(|(due, held)| due.is_some() && !held);
                prop_assert_eq!(timer.in_order().count(), out.count());
            }
        }
    }
}
