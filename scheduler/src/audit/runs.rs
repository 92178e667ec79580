//! Checks 3 and 6: each run is in history, goes on or has ended as its records say, and leaves
//! nothing in the streams.

use taskparty_common::outcome::{RunState, TriggerResult};
use uuid::Uuid;

use super::facts::instant_of;
use super::held::{Head, Row, RunFacts, Try, TryRow, length, ms, shown};
use super::ledger::Ledger;
use super::report::{Kind, Place};

/// How much older than the oldest record something must be to count as gone with age.
const AGE_MS: i64 = 60_000;

/// How long after its time a retry is triggered again when nothing was heard of it.
const RETRY_AGAIN_MS: i64 = 60_000;

impl Ledger {
    pub(super) fn judge_runs(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        let mut ids: Vec<Uuid> = runs.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(mut run) = runs.remove(&id) else { continue };
            run.tries.sort_unstable_by_key(|one| (one.shard, one.attempt));
            self.judge_run(id, &run);
            self.judge_attempts(id, &run);
            self.judge_starts(id, &run);
        }
    }

    /// Where a run is.
    pub(super) fn of_run(&self, id: Uuid, run: &RunFacts) -> Place {
        let job = run.row.as_ref().map_or(run.job, |row| row.job);
        let lock = run.head.as_ref().map(|head| head.lock.to_string());
        Place { job: Some(self.jobs.name(job).into()), run: Some(id), lock, ..Place::default() }
    }

    /// Where an attempt is.
    pub(super) fn of_try(&self, id: Uuid, run: &RunFacts, one: &Try) -> Place {
        Place { shard: Some(one.shard), attempt: Some(one.attempt), ..self.of_run(id, run) }
    }

    fn judge_run(&mut self, id: Uuid, run: &RunFacts) {
        let settled = self.bounds.settled_ms();
        match (&run.head, &run.row) {
            (None, None) => {
                let said = run.tries.iter().filter_map(|one| {
                    one.fired.into_iter().chain(one.results.iter().map(|r| r.stored)).min()
                });
                if said.min().is_some_and(|stored| stored < settled) {
                    let found = "results or retries of it, no fired record, and no row";
                    let place = self.of_run(id, run);
                    self.findings.wrong(Kind::RunMissing, place, "a run in history", found);
                }
            }
            (Some(head), None) => {
                if head.stored < settled {
                    let place = self.of_run(id, run);
                    let found = format!("none, {} after its fired record", self.age(head.stored));
                    self.findings.wrong(Kind::RunMissing, place, "a run in history", found);
                }
            }
            (None, Some(row)) => {
                let at = row.fired.unwrap_or_else(|| instant_of(id));
                if at < settled && self.is_kept(at) {
                    let expected = "a fired record";
                    let found = format!("none, and a run in history: {}", row.state);
                    let place = self.of_run(id, run);
                    self.findings.wrong(Kind::RecordMissing, place, expected, found);
                }
                self.judge_state(id, run, row);
            }
            (Some(head), Some(row)) => {
                self.compare(id, run, head, row);
                self.judge_state(id, run, row);
            }
        }
    }

    /// Whether what was recorded at `at` is still in the stream.
    pub(super) fn is_kept(&self, at: i64) -> bool {
        let from = self.installation.records_from.map_or(i64::MIN, |from| from.timestamp_millis());
        at > from.saturating_add(AGE_MS)
    }

    pub(super) fn age(&self, at: i64) -> String {
        length(self.bounds.now.timestamp_millis() - at)
    }

    /// What the fired record says against what history says of it.
    fn compare(&mut self, id: Uuid, run: &RunFacts, head: &Head, row: &Row) {
        let Some(result) = row.result else {
            if head.stored < self.bounds.settled_ms() {
                let expected = format!("its fired record in history: {}", head.result);
                let place = self.of_run(id, run);
                let found = format!("a run without it, {}", row.state);
                self.findings.wrong(Kind::StateDisagrees, place, expected, found);
            }
            return;
        };
        let sent = |result| matches!(result, TriggerResult::Dispatched | TriggerResult::Queued);
        let same = result == head.result || (sent(result) && sent(head.result));
        let lock = row.lock.as_deref() == Some(&*head.lock);
        if !same || !lock || row.shards != Some(head.total) || run.job != row.job {
            let text = |job: u32, result: TriggerResult, shards: u32, lock: &str| {
                format!("{result} with {shards} shards, lock {lock}, of {}", self.jobs.name(job))
            };
            let expected = text(run.job, head.result, head.total, &head.lock);
            let lock = row.lock.as_deref().unwrap_or("none");
            let found = text(row.job, result, row.shards.unwrap_or(0), lock);
            let place = self.of_run(id, run);
            self.findings.wrong(Kind::StateDisagrees, place, expected, found);
        }
    }

    /// A run's state against its attempts', and an open one against its deadlines.
    fn judge_state(&mut self, id: Uuid, run: &RunFacts, row: &Row) {
        if let Some(expected) = derived(run, row)
            && expected != row.state
        {
            let place = self.of_run(id, run);
            let expected = format!("{expected}, by its attempts");
            self.findings.wrong(Kind::StateDisagrees, place, expected, row.state.as_str());
        }
        for one in &run.tries {
            let Some(attempt) = &one.row else { continue };
            if attempt.outcome.is_none() && !row.state.is_terminal() {
                self.judge_open(id, run, one, attempt);
            }
            self.judge_waiting(id, run, one, attempt);
        }
    }

    fn judge_open(&mut self, id: Uuid, run: &RunFacts, one: &Try, attempt: &TryRow) {
        let two_leases = ms(self.bounds.lease).saturating_mul(2);
        let timeout = run.head.as_ref().and_then(|head| head.limits).map(|limits| limits.timeout);
        let deadline = match attempt.state {
            RunState::Retrying => attempt.due.map(|due| due.saturating_add(RETRY_AGAIN_MS)),
            // Without a timeout it may run for ever, as long as somebody holds its dispatch.
            RunState::Running if timeout == Some(None) && one.waiting => None,
            RunState::Running => attempt.started.zip(timeout).map(|(started, timeout)| {
                started.saturating_add(timeout.map_or(0, ms)).saturating_add(two_leases)
            }),
            _ => attempt.start_by.or(attempt.dispatched).map(|by| by.saturating_add(two_leases)),
        };
        let Some(deadline) = deadline else { return };
        if deadline < self.bounds.settled_ms() {
            let expected = format!("its end before {}", shown(deadline));
            let found = format!("{}, {} later", attempt.state, self.age(deadline));
            let place = self.of_try(id, run, one);
            self.findings.wrong(Kind::RunStuck, place, expected, found);
        }
    }

    fn judge_waiting(&mut self, id: Uuid, run: &RunFacts, one: &Try, attempt: &TryRow) {
        let lease = ms(self.bounds.lease);
        let (true, Some(outcome), Some(ended)) = (one.waiting, attempt.outcome, attempt.ended)
        else {
            return;
        };
        if ended.saturating_add(lease) < self.bounds.settled_ms() {
            let found =
                format!("it is there, {} after the attempt ended: {outcome}", self.age(ended));
            let place = self.of_try(id, run, one);
            self.findings.wrong(Kind::DispatchLeft, place, "no dispatch in the stream", found);
        }
    }
}

/// The state that a run is in by its attempts; none where that cannot be said.
fn derived(run: &RunFacts, row: &Row) -> Option<RunState> {
    let result = row.result?;
    let states: Vec<(u32, RunState)> =
        run.tries.iter().filter_map(|one| Some((one.shard, one.row.as_ref()?.state))).collect();
    if result == TriggerResult::Skipped && states.is_empty() {
        // Left out, or cancelled before it was dispatched: its record says which.
        let cancelled = match &run.head {
            Some(head) => head.cancelled,
            None => row.state == RunState::Cancelled,
        };
        return Some(if cancelled { RunState::Cancelled } else { RunState::Skipped });
    }
    if result == TriggerResult::Queued && states.is_empty() {
        return Some(RunState::Waiting);
    }
    let last = |shard: u32| {
        let of_shard = states.iter().rev().find(|(of, _)| *of == shard);
        of_shard.map_or(RunState::Dispatched, |(_, state)| *state)
    };
    Some(RunState::of_shards((0..row.shards?).map(last)))
}
