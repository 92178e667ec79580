//! Faults, one by one: each changes a correct history at one place and says where.

use chrono::TimeDelta;
use taskparty_common::fire::{FireId, Identity, Plan, retry_id};
use taskparty_common::name::Instance;
use taskparty_common::outcome::{Outcome, RunState, SkipReason, TriggerResult};
use uuid::Uuid;

use super::correct::Chance;
use super::model::{Went, World, at};
use crate::audit::*;

/// What must be found, what is done, and how; none where this history has no place for it.
type Fault = (Kind, &'static str, fn(&mut World, &mut Chance) -> Option<Place>);

pub(super) const FAULTS: &[Fault] = &[
    (Kind::InstantMissing, "a fire leaves no trace", |w, c| {
        let run =
            pick(w, c, |w, row| is_instant(row) && row.tries.len() == 1 && is_inside(w, row))?;
        forget(w, run.run);
        Some(Place { run: None, ..place(&run) })
    }),
    (Kind::InstantMissing, "a record of several claims too few", |w, c| recount(w, c, -1)),
    (Kind::InstantTwice, "a record of several claims too many", |w, c| recount(w, c, 1)),
    (Kind::InstantUnexpected, "a fire with an identity that is now", |w, c| {
        let run = pick(w, c, |w, row| is_instant(row) && is_inside(w, row))?;
        let fired = w.fired.iter().find(|fact| fact.run == run.run)?;
        let (when, job) = (fired.fire_time + TimeDelta::milliseconds(1), run.job.clone());
        w.run(&FireId::at(job, when), when, &[vec![Went::Succeeded]], 0);
        Some(Place { run: None, ..place(&run) })
    }),
    (Kind::InstantUnexpected, "a run where a gap was recorded as one", |w, c| {
        let run = pick(w, c, |_, row| row.state == RunState::Skipped && is_instant(row))?;
        let fact = w.fired.iter_mut().find(|fact| fact.run == run.run)?;
        let skipped = fact.skipped.as_mut().filter(|skipped| skipped.count == 1)?;
        skipped.reason = SkipReason::Gap;
        Some(Place { run: None, ..place(&run) })
    }),
    (Kind::LockUnrecorded, "a fired record is gone", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let lock = run.lock.clone()?;
        w.fired.retain(|fact| fact.lock != lock);
        Some(place(&run))
    }),
    (Kind::LockUnrecorded, "a retry's record is gone", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && row.tries.iter().any(|t| t.attempt > 1))?;
        w.fired.retain(|fact| fact.run != run.run || fact.plan.only.is_none());
        Some(place(&run))
    }),
    (Kind::LockMissing, "a lock is gone", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let lock = run.lock.clone()?;
        w.locks.retain(|fact| fact.key != lock);
        Some(place(&run))
    }),
    (Kind::RecordConflict, "two results of one fire", |w, c| {
        conflict(w, c, |fact| fact.result = TriggerResult::Expired)
    }),
    (Kind::RecordConflict, "two runs of one fire", |w, c| {
        conflict(w, c, |fact| fact.run = Uuid::from_u128(fact.run.as_u128() ^ 1))
    }),
    (Kind::RecordConflict, "another run than the lock's", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let lock = run.lock.clone()?;
        let fact = w.locks.iter_mut().find(|fact| fact.key == lock)?;
        fact.run = Uuid::from_u128(fact.run.as_u128() ^ 1);
        Some(Place { run: Some(fact.run), ..place(&run) })
    }),
    (Kind::RecordMissing, "lock and record are gone", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let lock = run.lock.clone()?;
        w.fired.retain(|fact| fact.lock != lock);
        w.locks.retain(|fact| fact.key != lock);
        Some(place(&run))
    }),
    (Kind::RecordMissing, "a retry's lock and record are gone", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && row.tries.iter().any(|t| t.attempt > 1))?;
        w.fired.retain(|fact| fact.run != run.run || fact.plan.only.is_none());
        let own = run.lock.clone();
        w.locks.retain(|fact| fact.run != run.run || Some(&fact.key) == own.as_ref());
        Some(place(&run))
    }),
    (Kind::RunMissing, "a row is gone", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        w.rows.retain(|row| row.run != run.run);
        Some(place(&run))
    }),
    (Kind::RunMissing, "a result of nobody's run", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let mut fact = w.results.iter().find(|fact| fact.run == run.run)?.clone();
        fact.run = Uuid::from_u128(fact.run.as_u128() ^ 1);
        w.results.push(fact.clone());
        Some(Place { run: Some(fact.run), ..place(&run) })
    }),
    (Kind::AttemptMissing, "an attempt's row is gone", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && row.tries.len() > 1)?;
        row(w, run.run)?.tries.pop();
        Some(place(&run))
    }),
    (Kind::AttemptMissing, "a second result is not noted", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let mut fact = w.results.iter().find(|fact| fact.run == run.run)?.clone();
        (fact.delivery, fact.outcome) = (fact.delivery + 7, Outcome::TimedOut);
        w.results.push(fact);
        Some(place(&run))
    }),
    (Kind::RunStuck, "a run that never started stays open", |w, c| {
        open(w, c, RunState::Dispatched)
    }),
    (Kind::RunStuck, "a run that never reported stays open", |w, c| open(w, c, RunState::Running)),
    (Kind::RunStuck, "a retry that never came stays open", |w, c| open(w, c, RunState::Retrying)),
    (Kind::StateDisagrees, "a state that its attempts do not say", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let state = match run.state {
            RunState::Cancelled => RunState::Failed,
            _ => RunState::Cancelled,
        };
        row(w, run.run)?.state = state;
        Some(place(&run))
    }),
    (Kind::StateDisagrees, "a trigger's result that its record does not say", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && !row.tries.is_empty())?;
        row(w, run.run)?.result = Some(TriggerResult::NoExecutor);
        Some(place(&run))
    }),
    (Kind::OutcomeDisagrees, "a failure that became a success", |w, c| {
        outcome(w, c, Outcome::Failed, Outcome::Succeeded)
    }),
    (Kind::OutcomeDisagrees, "a success that became a failure", |w, c| {
        outcome(w, c, Outcome::Succeeded, Outcome::Failed)
    }),
    (Kind::AttemptHole, "an attempt in the middle leaves no trace", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && row.tries.iter().any(|t| t.attempt == 3))?;
        let shard = run.tries.iter().find(|one| one.attempt == 3)?.shard;
        row(w, run.run)?.tries.retain(|one| (one.shard, one.attempt) != (shard, 2));
        let is_it = |plan: &Plan| (plan.only, plan.attempt) == (Some(shard), 2);
        w.fired.retain(|fact| fact.run != run.run || !is_it(&fact.plan));
        let key = FireId::trigger(run.job.clone(), retry_id(run.run, shard, 2)).lock_key();
        w.locks.retain(|fact| fact.key != key);
        w.results.retain(|f| (f.run, f.shard, f.attempt) != (run.run, shard, 2));
        w.starts.retain(|f| (f.run, f.shard, f.attempt) != (run.run, shard, 2));
        Some(place(&run))
    }),
    (Kind::AttemptAfterSuccess, "a retry of what succeeded", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && row.state == RunState::Succeeded)?;
        one_more(w, &run, Outcome::Succeeded)
    }),
    (Kind::AttemptBeyondRetries, "a retry too many", |w, c| {
        let run = pick(w, c, |w, row| {
            let fired = w.fired.iter().find(|fact| fact.run == row.run && fact.plan.only.is_none());
            let most = fired.and_then(|fact| fact.limits).map(|limits| limits.retries + 1);
            is_old(row) && row.tries.last().is_some_and(|t| Some(t.attempt) == most)
        })?;
        one_more(w, &run, run.tries.last()?.outcome?)
    }),
    (Kind::StartTwice, "a delivery was started twice", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let start = w.starts.iter().find(|fact| fact.run == run.run)?.clone();
        w.starts.push(start);
        Some(place(&run))
    }),
    (Kind::StartTwice, "two executors had one delivery", |w, c| {
        let run = pick(w, c, |_, row| is_old(row))?;
        let mut start = w.starts.iter().find(|fact| fact.run == run.run)?.clone();
        start.instance = Instance::new("another").ok()?;
        start.at += TimeDelta::milliseconds(5);
        w.starts.push(start);
        Some(place(&run))
    }),
    (Kind::StartUndispatched, "an attempt was started that nobody dispatched", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && row.state != RunState::Succeeded)?;
        let mut start = w.starts.iter().find(|fact| fact.run == run.run)?.clone();
        start.attempt = 99;
        w.starts.push(start);
        Some(place(&run))
    }),
    (Kind::StartUndispatched, "a run was started that nobody knows", |w, _| {
        let mut start = w.starts.iter().find(|fact| fact.at < at(60_000))?.clone();
        start.run = Uuid::from_u128(start.run.as_u128() ^ 1);
        w.starts.push(start.clone());
        Some(Place { job: Some("?".into()), run: Some(start.run), ..Place::default() })
    }),
    (Kind::SuccessWithoutStart, "nobody started what succeeded", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && row.state == RunState::Succeeded)?;
        w.starts.retain(|fact| fact.run != run.run);
        Some(place(&run))
    }),
    (Kind::StartAfterSuccess, "an old attempt began again", |w, c| {
        let run = pick(w, c, |_, row| {
            let second =
                |t: &HistoryAttempt| t.attempt == 2 && t.outcome == Some(Outcome::Succeeded);
            is_old(row) && row.tries.iter().any(second)
        })?;
        let second =
            run.tries.iter().find(|t| t.attempt == 2 && t.outcome == Some(Outcome::Succeeded))?;
        let mut start = w.starts.iter().find(|f| f.run == run.run)?.clone();
        (start.shard, start.attempt, start.delivery) = (second.shard, 1, 5);
        start.at = second.ended_at? + TimeDelta::milliseconds(500);
        w.starts.push(start);
        Some(place(&run))
    }),
    (Kind::DispatchLeft, "a dispatch stays after its end", |w, c| {
        let run = pick(w, c, |_, row| is_old(row) && !row.tries.is_empty())?;
        let last = run.tries.last()?;
        w.waiting.push(WaitingFact { run: run.run, shard: last.shard, attempt: last.attempt });
        Some(place(&run))
    }),
    (Kind::SetAside, "a message was set aside", |w, _| {
        w.leftovers.set_aside_total = 1;
        Some(Place::default())
    }),
    (Kind::OutboxStuck, "a decision stays in the outbox", |w, _| {
        w.leftovers.outbox.push("decision".into());
        Some(Place::default())
    }),
];

fn place(run: &HistoryRun) -> Place {
    Place { job: Some(run.job.to_string()), run: Some(run.run), ..Place::default() }
}

/// A run that `wanted` takes.
fn pick(
    world: &World,
    chance: &mut Chance,
    wanted: impl Fn(&World, &HistoryRun) -> bool,
) -> Option<HistoryRun> {
    let rows: Vec<&HistoryRun> = world.rows.iter().filter(|row| wanted(world, row)).collect();
    chance.pick(&rows).map(|row| (*row).clone())
}

fn row(world: &mut World, run: Uuid) -> Option<&mut HistoryRun> {
    world.rows.iter_mut().find(|row| row.run == run)
}

/// Old enough to be judged.
fn is_old(row: &HistoryRun) -> bool {
    row.job.as_str() != "young"
}

fn is_instant(row: &HistoryRun) -> bool {
    let lock = row.lock.as_deref().and_then(FireId::from_lock_key);
    is_old(row) && lock.is_some_and(|id| matches!(id.identity, Identity::Instant(_)))
}

/// Far from every edit of its job, and with instants of its job after it, before the first edit: what
/// is missing up to an edit is open.
fn is_inside(world: &World, row: &HistoryRun) -> bool {
    let Some(when) = row.fired_at else { return false };
    let later = |other: &HistoryRun| {
        let between = other.fired_at > row.fired_at && other.fired_at < Some(at(100_000));
        other.job == row.job && is_instant(other) && between
    };
    world.rows.iter().any(later) && when < at(90_000)
}

fn forget(world: &mut World, run: Uuid) {
    world.rows.retain(|fact| fact.run != run);
    world.fired.retain(|fact| fact.run != run);
    world.locks.retain(|fact| fact.run != run);
    world.results.retain(|fact| fact.run != run);
    world.starts.retain(|fact| fact.run != run);
}

/// A record of several instants claims one more, or one less.
fn recount(world: &mut World, chance: &mut Chance, by: i64) -> Option<Place> {
    let many = |fact: &FiredFact| fact.skipped.as_ref().is_some_and(|skipped| skipped.count > 1);
    let run = pick(world, chance, |w, row| w.fired.iter().any(|f| f.run == row.run && many(f)))?;
    let fact = world.fired.iter_mut().find(|fact| fact.run == run.run)?;
    let skipped = fact.skipped.as_mut()?;
    skipped.count = skipped.count.saturating_add_signed(by);
    Some(Place { run: None, ..place(&run) })
}

fn conflict(world: &mut World, chance: &mut Chance, change: fn(&mut FiredFact)) -> Option<Place> {
    let run = pick(world, chance, |_, row| is_old(row) && !row.tries.is_empty())?;
    let mut fact = world.fired.iter().find(|fact| fact.run == run.run)?.clone();
    change(&mut fact);
    world.fired.push(fact);
    Some(place(&run))
}

/// The last attempt of a run never came to its end.
fn open(world: &mut World, chance: &mut Chance, state: RunState) -> Option<Place> {
    let early = |w: &World, row: &HistoryRun| {
        is_old(row) && w.fired.iter().any(|f| f.run == row.run && f.fire_time < at(200_000))
    };
    let run = pick(world, chance, |w, row| early(w, row) && !row.tries.is_empty())?;
    let last = run.tries.last()?.clone();
    let is_it =
        |run_: Uuid, shard, attempt| (run_, shard, attempt) == (run.run, last.shard, last.attempt);
    world.results.retain(|fact| !is_it(fact.run, fact.shard, fact.attempt));
    let found = row(world, run.run)?;
    let open = found.tries.last_mut()?;
    open.due_at = last.dispatched_at;
    (open.outcome, open.state, open.ended_at, open.late) = (None, state, None, Vec::new());
    // Of several shards the liveliest says the state; all others have ended.
    found.state = state;
    Some(place(&run))
}

fn outcome(world: &mut World, chance: &mut Chance, from: Outcome, to: Outcome) -> Option<Place> {
    let run = pick(world, chance, |_, row| {
        is_old(row) && row.tries.last().is_some_and(|t| t.outcome == Some(from))
    })?;
    let found = row(world, run.run)?;
    let last = found.tries.last_mut()?;
    (last.outcome, last.state) = (Some(to), to.state());
    Some(place(&run))
}

/// One more attempt after the last of a run.
fn one_more(world: &mut World, run: &HistoryRun, outcome: Outcome) -> Option<Place> {
    let last = run.tries.last()?.clone();
    let attempt = last.attempt + 1;
    let mut fired = world.fired.iter().find(|fact| fact.run == run.run)?.clone();
    fired.lock =
        FireId::trigger(run.job.clone(), retry_id(run.run, last.shard, attempt)).lock_key();
    fired.plan = Plan { only: Some(last.shard), attempt, ..fired.plan };
    world.fire(fired);
    let mut more = HistoryAttempt { attempt, late: Vec::new(), ..last };
    (more.outcome, more.state) = (Some(outcome), outcome.state());
    if let Some(result) = world.results.iter().find(|fact| fact.run == run.run).cloned() {
        let (delivery, instance) = (more.delivery?, more.instance.clone()?);
        world.results.push(ResultFact {
            shard: more.shard,
            attempt,
            outcome,
            delivery,
            instance,
            ..result
        });
    }
    row(world, run.run)?.tries.push(more);
    Some(place(run))
}
