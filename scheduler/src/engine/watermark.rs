//! Up to where everything is handled: of all jobs together, and of those that lag each for itself.
//!
//! *Invariant: neither passes an instant without a fired record.* Each is just before the first
//! thing that is under way or next due, so that a scheduler that starts from it misses nothing,
//! however the one before it died. A job that lags does not hold back the watermark of all others:
//! it is left out of it and has a cursor of its own. So whoever stores them stores the watermark
//! only when the cursors are stored ([`Own`](crate::cursor::Own)).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use taskparty_common::name::JobId;

use super::timer::Timer;

/// A job lags when its first instant without a record was due longer ago. Shorter than the margin
/// of a take-over: a job that lags no more is covered by any watermark that was just read.
const LAG_MS: i64 = 20_000;

/// Jobs that have cursors of their own at a time. Further ones hold the watermark back: when many lag,
/// as after an outage, a write for each each second would only make it longer.
pub(super) const MOST: usize = 50;

/// The due times of instants that are decided and not yet recorded.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    of_job: HashMap<JobId, BTreeMap<i64, usize>>,
    /// The first of each job.
    firsts: BTreeSet<(i64, JobId)>,
}

impl UnderWay {
    /// An instant of `job` that is due at `due_ms` is decided.
    pub(super) fn begin(&mut self, job: &JobId, due_ms: i64) {
        self.change(job, |due| *due.entry(due_ms).or_default() += 1);
    }

    /// Its fired record is stored.
    pub(super) fn end(&mut self, job: &JobId, due_ms: i64) {
        self.change(job, |due| {
            if let Some(count) = due.get_mut(&due_ms) {
                *count -= 1;
                if *count == 0 {
                    due.remove(&due_ms);
                }
            }
        });
    }

    fn change(&mut self, job: &JobId, change: impl FnOnce(&mut BTreeMap<i64, usize>)) {
        let due = self.of_job.entry(job.clone()).or_default();
        let first = |due: &BTreeMap<i64, usize>| due.first_key_value().map(|(due, _)| *due);
        let before = first(due);
        change(due);
        let now = first(due);
        if now.is_none() {
            self.of_job.remove(job);
        }
        if now != before {
            before.map(|due| self.firsts.remove(&(due, job.clone())));
            now.map(|due| self.firsts.insert((due, job.clone())));
        }
    }

    fn first(&self, job: &JobId) -> Option<i64> {
        Some(*self.of_job.get(job)?.first_key_value()?.0)
    }
}

/// All that is not handled: what is under way, and what is next due.
#[derive(Debug)]
pub(super) struct Unhandled<'a, T> {
    pub(super) under_way: &'a UnderWay,
    pub(super) timer: &'a Timer<T>,
}

impl<'a, T> Unhandled<'a, T> {
    /// When the first instant of `job` that is not handled is or was due.
    fn first(&self, job: &JobId) -> Option<i64> {
        [self.under_way.first(job), self.timer.due_of(job)].into_iter().flatten().min()
    }

    /// Whether `job` lags.
    pub(super) fn lags(&self, job: &JobId, now_ms: i64) -> bool {
        self.first(job).is_some_and(|first| first < now_ms - LAG_MS)
    }

    /// The jobs that lag and have cursors of their own, and where those are: the ones that had one
    /// `before` keep it, then it is those that lag most. None that `may` not.
    ///
    /// That nobody is displaced matters: the watermark would go far back, and who has just read it
    /// would find the cursor gone.
    pub(super) fn lagging(
        &self,
        before: impl Iterator<Item = &'a JobId>,
        now_ms: i64,
        may: impl Fn(&JobId) -> bool,
    ) -> BTreeMap<JobId, i64> {
        let may = |job: &&JobId| may(job) && self.lags(job, now_ms);
        let mut chosen: BTreeSet<&JobId> = before.filter(may).take(MOST).collect();
        let late = |(due, _): &(i64, &JobId)| *due < now_ms - LAG_MS;
        let room = 2 * MOST;
        let mut more: Vec<(i64, &JobId)> = self
            .under_way
            .firsts
            .iter()
            .map(|(due, job)| (*due, job))
            .take_while(late)
            .take(room)
            .collect();
        more.extend(self.timer.in_order().take_while(late).take(room));
        more.sort_unstable();
        for (_, job) in more {
            if chosen.len() >= MOST {
                break;
            }
            if may(&job) {
                chosen.insert(job);
            }
        }
        let cursor = |job: &JobId| Some((job.clone(), self.first(job)?.saturating_sub(1)));
        chosen.into_iter().filter_map(cursor).collect()
    }

    /// The instant up to which everything is handled, but of the jobs that are `left_out`; not
    /// after `now_ms`.
    pub(super) fn watermark(&self, left_out: impl Fn(&JobId) -> bool, now_ms: i64) -> i64 {
        let under_way = self.under_way.firsts.iter().find(|(_, job)| !left_out(job));
        let next = self.timer.in_order().find(|(_, job)| !left_out(job));
        let first = [under_way.map(|(due, _)| *due), next.map(|(due, _)| due)];
        let first = first.into_iter().flatten().min();
        first.map_or(now_ms, |first| now_ms.min(first.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    use chrono::DateTime;
    use proptest::prelude::*;

    use crate::cursor::{Cursor, Marks, Own, Wanted, Written};

    fn job(n: usize) -> JobId {
        JobId::new(&format!("job-{n}")).unwrap()
    }

    #[test]
    fn the_watermark_waits_for_whatever_is_oldest_of_those_that_are_not_left_out() {
        let (mut under_way, mut timer) = (UnderWay::default(), Timer::default());
        let at = |under_way: &UnderWay, timer: &Timer<()>, left_out: &[usize]| {
            let left_out: HashSet<JobId> = left_out.iter().map(|n| job(*n)).collect();
            Unhandled { under_way, timer }.watermark(|job| left_out.contains(job), 1_000)
        };
        assert_eq!(at(&under_way, &timer, &[]), 1_000);
        timer.insert(job(1), ());
        timer.set(&job(1), Some(900));
        assert_eq!(at(&under_way, &timer, &[]), 899);
        under_way.begin(&job(2), 500);
        under_way.begin(&job(2), 500);
        under_way.begin(&job(1), 700);
        under_way.end(&job(2), 500);
        assert_eq!(at(&under_way, &timer, &[]), 499);
        assert_eq!(at(&under_way, &timer, &[2]), 699);
        assert_eq!(at(&under_way, &timer, &[1, 2]), 1_000);
        under_way.end(&job(2), 500);
        under_way.end(&job(1), 700);
        assert_eq!(at(&under_way, &timer, &[]), 899);
    }

    #[test]
    fn who_has_a_cursor_keeps_it_while_it_lags() {
        let (mut under_way, timer) = (UnderWay::default(), Timer::<()>::default());
        let lagging = |under_way: &UnderWay, before: &BTreeMap<JobId, i64>, may: &JobId| {
            let all = Unhandled { under_way, timer: &timer };
            all.lagging(before.keys(), 100_000, |job| job != may)
        };
        (0..MOST + 5).for_each(|n| under_way.begin(&job(n), 50_000 + n as i64));
        let first = lagging(&under_way, &BTreeMap::new(), &job(0));
        assert_eq!(first.len(), MOST);
        assert!(!first.contains_key(&job(0)) && !first.contains_key(&job(MOST + 1)));
        assert_eq!(first[&job(1)], 50_000);
        (0..20).for_each(|n| under_way.begin(&job(10_000 + n), 10));
        assert_eq!(lagging(&under_way, &first, &job(0)), first);
        under_way.end(&job(1), 50_001);
        let later = lagging(&under_way, &first, &job(0));
        assert_eq!(later.len(), MOST);
        assert!(!later.contains_key(&job(1)) && later.values().any(|cursor| *cursor == 9));
    }

    /// What happens to a few jobs, to those who keep their cursors, and to what is stored.
    #[derive(Debug, Clone)]
    enum Event {
        Begin(usize),
        End(usize),
        Later(i64),
        /// A look at who lags, and a write of which these fail.
        Write {
            fails: Vec<usize>,
            watermark_fails: bool,
        },
    }

    fn event() -> impl Strategy<Value = Event> {
        let fails = prop::collection::vec(0_usize..5, 0..3);
        prop_oneof![
            4 => (0_usize..5).prop_map(Event::Begin),
            4 => (0_usize..5).prop_map(Event::End),
            2 => (0_i64..30_000).prop_map(Event::Later),
            3 => (fails, any::<bool>())
                .prop_map(|(fails, watermark_fails)| Event::Write { fails, watermark_fails }),
        ]
    }

    proptest! {
        /// However fires, failures and writes fall: what is stored covers each job's first open
        /// instant, by its cursor where it has one, else by the watermark.
        #[test]
        fn nothing_that_is_stored_passes_an_instant_without_a_record(
            events in prop::collection::vec(event(), 1..120),
        ) {
            let (mut under_way, mut timer, mut now) = (UnderWay::default(), Timer::default(), 0);
            let (since, mut own) = (DateTime::UNIX_EPOCH, Own::default());
            // What is stored, and the instants of each job that are under way.
            let (mut watermark, mut stored) = (-1, BTreeMap::<JobId, (u64, i64)>::new());
            let mut open = vec![Vec::<i64>::new(); 5];
            let (mut marks, mut revision) = (Marks::new(), 0);
            for n in 0..5 {
                timer.insert(job(n), ());
                timer.set(&job(n), Some(0));
            }
            for event in events {
                match event {
                    Event::Later(ms) => now += ms,
                    Event::Begin(n) => if let Some(due) = timer.due_of(&job(n)).filter(|due| *due <= now) {
                        under_way.begin(&job(n), due);
                        open[n].push(due);
                        timer.set(&job(n), Some(due + 3_000));
                    },
                    Event::End(n) => if !open[n].is_empty() {
                        let middle = open[n].len() / 2;
                        let due = open[n].remove(middle);
                        under_way.end(&job(n), due);
                    },
                    Event::Write { fails, watermark_fails } => {
                        let all = Unhandled { under_way: &under_way, timer: &timer };
                        let before = marks.iter().filter(|(_, wanted)| matches!(wanted, Wanted::At(_)));
                        let lagging = all.lagging(before.map(|(job, _)| job), now, |_| true);
                        let covered: Vec<JobId> = own.jobs().filter(|job| !lagging.contains_key(*job)).cloned().collect();
                        let at = |(job, handled_ms)| (job, Wanted::At(Cursor { since, handled_ms }));
                        let others = all.watermark(|job| lagging.contains_key(job), now);
                        marks = lagging.into_iter().map(at).collect();
                        marks.extend(covered.into_iter().map(|job| (job, Wanted::Covered)));
                        for put in own.begin_puts(&marks) {
                            let fail = fails.iter().any(|n| job(*n) == put.job);
                            if !fail {
                                revision += 1;
                                stored.insert(put.job.clone(), (revision, put.cursor.handled_ms));
                            }
                            let written = if fail { Written::Unknown } else { Written::At(revision) };
                            own.was_put(put, written);
                        }
                        if !watermark_fails {
                            watermark = own.watermark(others, &marks);
                            for (job, known) in own.deletes(&marks) {
                                if stored.get(&job).is_some_and(|(at, _)| *at <= known) {
                                    stored.remove(&job);
                                }
                                own.was_deleted(&job);
                            }
                        }
                    }
                }
                let all = Unhandled { under_way: &under_way, timer: &timer };
                for n in 0..5 {
                    let handled = stored.get(&job(n)).map_or(watermark, |(_, handled)| *handled);
                    prop_assert!(all.first(&job(n)).is_some_and(|first| handled < first), "job-{n}: {handled}, {watermark}");
                }
            }
        }
    }
}
