//! A history in which everything is right: jobs with edits and pauses, runs with shards, retries,
//! redeliveries and late results, records of several instants, and what is still under way.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use taskparty_common::fire::{FireId, Plan, Skipped, retry_id};
use taskparty_common::job::{Job, JobSpec, Unknown};
use taskparty_common::name::{Instance, JobId, Prefix};
use taskparty_common::outcome::{Outcome, RunState, SkipReason, TriggerResult};
use uuid::Uuid;

use crate::audit::*;

/// The period, in seconds from its begin, and the audit's begin.
pub(super) const LENGTH: i64 = 400;
pub(super) const NOW: i64 = 500;

pub(super) fn at(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(1_800_000_000_000 + ms).unwrap()
}

/// Everything that is read.
#[derive(Debug, Clone)]
pub(super) struct World {
    pub(super) revisions: Vec<Revision>,
    pub(super) locks: Vec<LockFact>,
    pub(super) fired: Vec<FiredFact>,
    pub(super) results: Vec<ResultFact>,
    pub(super) starts: Vec<StartFact>,
    pub(super) rows: Vec<HistoryRun>,
    pub(super) waiting: Vec<WaitingFact>,
    pub(super) leftovers: Leftovers,
    pub(super) installation: Installation,
    pub(super) lagging: Vec<LaggingFact>,
    pub(super) bounds: Bounds,
}

/// How an attempt of the model went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Went {
    Succeeded,
    Failed,
    /// The sweep gave it up; then its result came after all.
    Lost,
    /// Its first executor died, the second succeeded.
    Redelivered,
}

impl World {
    pub(super) fn empty() -> Self {
        let bounds = Bounds {
            from: at(0),
            to: at(LENGTH * 1000),
            now: at(NOW * 1000),
            settle: Duration::from_secs(30),
            edit_margin: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            max_runs: 100_000,
            most: 1000,
            starts: Starts::Given,
            forgot: Vec::new(),
        };
        Self {
            revisions: Vec::new(),
            locks: Vec::new(),
            fired: Vec::new(),
            results: Vec::new(),
            starts: Vec::new(),
            rows: Vec::new(),
            waiting: Vec::new(),
            leftovers: Leftovers::default(),
            installation: Installation { began: Some(at(-100_000)), ..Installation::default() },
            lagging: Vec::new(),
            bounds,
        }
    }

    pub(super) fn judge(&self) -> Report {
        let world = self.clone();
        let mut ledger = Ledger::new(world.bounds);
        ledger.installation(world.installation);
        world.lagging.into_iter().for_each(|fact| ledger.lagging(fact));
        world.revisions.into_iter().for_each(|fact| ledger.revision(fact));
        world.rows.into_iter().for_each(|fact| ledger.history(fact));
        world.fired.into_iter().for_each(|fact| ledger.fired(fact));
        world.results.into_iter().for_each(|fact| ledger.result(fact));
        world.locks.into_iter().for_each(|fact| ledger.lock(fact));
        world.waiting.into_iter().for_each(|fact| ledger.waiting(fact));
        world.starts.into_iter().for_each(|fact| ledger.start(fact));
        ledger.leftovers(&world.leftovers);
        ledger.judge()
    }

    pub(super) fn save(&mut self, job: &Job, stored_at: DateTime<Utc>) {
        let what = RevisionKind::Saved(Box::new(job.clone()));
        self.revise(job.spec.id.as_str(), stored_at, what);
    }

    pub(super) fn revise(&mut self, job: &str, stored_at: DateTime<Utc>, what: RevisionKind) {
        let revision = self.revisions.len() as u64 + 1;
        self.revisions.push(Revision { job: job.into(), revision, stored_at, what });
    }

    /// A lock and its record.
    pub(super) fn fire(&mut self, fact: FiredFact) {
        self.locks.push(LockFact {
            key: fact.lock.clone(),
            run: fact.run,
            skipped: fact.skipped.clone(),
            stored_at: fact.stored_at - TimeDelta::milliseconds(3),
        });
        self.fired.push(fact);
    }

    /// A run with its attempts as they `went`, shard by shard.
    pub(super) fn run(
        &mut self,
        id: &FireId,
        fire_time: DateTime<Utc>,
        went: &[Vec<Went>],
        max: u32,
    ) -> Uuid {
        let run = id.run(&Prefix::default(), 0, fire_time);
        let shards = went.len() as u32;
        let fired = FiredFact {
            lock: id.lock_key(),
            run,
            job: id.job.clone(),
            result: TriggerResult::Dispatched,
            fire_time,
            plan: Plan::whole(shards),
            skipped: None,
            awaits_place: false,
            limits: Some(Limits { retries: max, timeout: Some(Duration::from_secs(60)) }),
            stored_at: fire_time + TimeDelta::milliseconds(10),
        };
        let mut tries = Vec::new();
        let mut states = Vec::new();
        for (shard, went) in (0..).zip(went) {
            for (attempt, went) in (1..).zip(went) {
                let begin = fire_time + TimeDelta::seconds(2 * (i64::from(attempt) - 1));
                if attempt > 1 {
                    let id = FireId::trigger(id.job.clone(), retry_id(run, shard, attempt));
                    let plan = Plan::again(shards, shard, attempt);
                    let stored_at = begin + TimeDelta::milliseconds(10);
                    self.fire(FiredFact { lock: id.lock_key(), plan, stored_at, ..fired.clone() });
                }
                tries.push(self.attempt((run, &id.job), (shard, attempt), begin, *went));
            }
            states.push(tries.last().unwrap().state);
        }
        self.rows.push(HistoryRun {
            run,
            job: id.job.clone(),
            state: RunState::of_shards(states),
            lock: Some(fired.lock.clone()),
            result: Some(fired.result),
            shards: Some(shards),
            fired_at: Some(fired.stored_at),
            tries,
        });
        self.fire(fired);
        run
    }

    /// An attempt's starts and results, and its row.
    fn attempt(
        &mut self,
        (run, job): (Uuid, &JobId),
        (shard, attempt): (u32, u32),
        begin: DateTime<Utc>,
        went: Went,
    ) -> HistoryAttempt {
        let after = |ms| begin + TimeDelta::milliseconds(ms);
        let start = |delivery, instance: &str, at| StartFact {
            run,
            shard,
            attempt,
            delivery,
            instance: Instance::new(instance).unwrap(),
            at,
        };
        let result = |delivery, instance: &str, outcome, ms| ResultFact {
            run,
            job: job.clone(),
            shard,
            attempt,
            delivery,
            instance: Instance::new(instance).unwrap(),
            outcome,
            finished_at: after(ms),
            stored_at: after(ms + 1),
        };
        self.starts.push(start(1, "one", after(20)));
        let (outcome, delivery, mut late) = match went {
            Went::Succeeded => (Outcome::Succeeded, 1, Vec::new()),
            Went::Failed => (Outcome::Failed, 1, Vec::new()),
            Went::Redelivered => {
                self.starts.push(start(2, "two", after(900)));
                (Outcome::Succeeded, 2, Vec::new())
            }
            Went::Lost => {
                let late = result(1, "one", Outcome::Failed, 40_000);
                self.results.push(late.clone());
                (Outcome::Lost, 1, vec![late])
            }
        };
        let instance = if delivery == 1 { "one" } else { "two" };
        if went != Went::Lost {
            self.results.push(result(delivery, instance, outcome, 1000));
        }
        let late = late.drain(..).map(|late| LateResult {
            instance: late.instance,
            delivery: late.delivery,
            outcome: late.outcome,
        });
        HistoryAttempt {
            shard,
            attempt,
            state: outcome.state(),
            outcome: Some(outcome),
            delivery: Some(delivery),
            instance: Some(Instance::new(instance).unwrap()),
            due_at: None,
            dispatched_at: Some(after(10)),
            start_by: Some(after(60_000)),
            started_at: Some(after(20)),
            ended_at: Some(after(1000)),
            moved: false,
            late: late.collect(),
            round: 0,
        }
    }

    /// A record that instants were left out.
    pub(super) fn skip(&mut self, job: &JobId, first: i64, last: i64, count: u64) -> Uuid {
        let id = FireId::at(job.clone(), at(last));
        let run = id.run(&Prefix::default(), 0, at(last));
        let stored_at = at(last + 10);
        let fired = FiredFact {
            lock: id.lock_key(),
            run,
            job: job.clone(),
            result: TriggerResult::Skipped,
            fire_time: at(last),
            plan: Plan::whole(1),
            skipped: Some(Skipped { reason: SkipReason::Misfire, count, first: at(first) }),
            awaits_place: false,
            limits: None,
            stored_at,
        };
        self.rows.push(HistoryRun {
            run,
            job: job.clone(),
            state: RunState::Skipped,
            lock: Some(fired.lock.clone()),
            result: Some(TriggerResult::Skipped),
            shards: Some(1),
            fired_at: Some(stored_at),
            tries: Vec::new(),
        });
        self.fire(fired);
        run
    }
}

/// A job that is due each `period` seconds from `from` ms on.
pub(super) fn spec(id: &str, period: i64, from: i64) -> JobSpec {
    let from = at(from).to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    let spec: Value = json!({ "id": id, "app": "shop", "handler": "settle", "overlap": "allow",
        "schedule": { "fixed_rate": format!("{period}s"), "from": from } });
    JobSpec::from_json(&spec, Unknown::Refuse).unwrap()
}

pub(super) fn job_id(id: &str) -> JobId {
    JobId::new(id).unwrap()
}
