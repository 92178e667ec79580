//! Taking in what was reported. Nothing in here decides what follows.

use chrono::{DateTime, Utc};
use taskparty_common::dispatch::{Progress, ResultRecord, Started};
use taskparty_common::fire::{Fired, Scheduled, Skipped};
use taskparty_common::outcome::{Code, Outcome, RunState, SkipReason, TriggerResult};

use super::{Effect, START_SLACK, Setting, after};
use crate::store::{
    Attempt, Digest, Ending, FiredPart, Note, PlannedPart, ProgressPart, Run, Said, SkippedPart,
    Then,
};

/// The most late results that are kept of one attempt.
const MAX_NOTES: usize = 16;

/// A delayed trigger waits; nothing to say once it has fired.
pub(super) fn scheduled(run: &mut Run, scheduled: &Scheduled, effect: &mut Effect) {
    if run.fired.is_some() || run.planned.is_some() || run.state.is_terminal() {
        return;
    }
    run.planned = Some(PlannedPart {
        handler: scheduled.handler.clone(),
        lock: scheduled.lock.clone(),
        trigger: scheduled.trigger,
        fire_time: scheduled.fire_time,
        params: scheduled.params.as_ref().map(|params| params.get().to_owned()),
        said: Said {
            by: scheduled.by.clone(),
            instance: scheduled.instance.clone(),
            overlap: scheduled.overlap.clone(),
        },
    });
    effect.run = true;
}

/// The trigger's result: of the run itself, or of one retry.
pub(super) fn fired(
    run: &mut Run,
    fired: &Fired,
    digest: Digest,
    setting: &Setting<'_>,
    effect: &mut Effect,
) {
    if let Some(shard) = fired.plan.only {
        // A fast result may have ended the run before its own fired record came.
        let key = (shard, fired.plan.attempt);
        if !run.state.is_terminal() || run.attempts.contains_key(&key) {
            dispatched(run, key, fired, setting, effect);
        }
        return;
    }
    // A run that waited for its turn has a second record, whichever comes first.
    let waits = run.fired.as_ref().is_some_and(FiredPart::awaits_place);
    let known = run.fired.is_some() && (!waits || fired.awaits_place());
    if known || run.state.is_terminal() {
        return;
    }
    if run.app != fired.app || run.job != fired.job {
        // Somebody else reported on this run before it was known whose it is.
        run.app = fired.app.clone();
        run.job = fired.job.clone();
        run.attempts.clear();
        effect.reset = true;
    }
    run.planned = None;
    run.fired = Some(part(fired, digest));
    effect.run = true;
    if fired.awaits_place() {
        return;
    }
    let left_out = fired.result == TriggerResult::Skipped;
    if left_out && run.attempts.is_empty() {
        return;
    }
    for shard in 0..fired.plan.total {
        dispatched(run, (shard, fired.plan.attempt), fired, setting, effect);
    }
    // What was reported before can now be watched.
    let watch: Vec<_> = run.attempts.keys().copied().collect();
    for key in watch {
        if let Some(attempt) = run.attempts.get_mut(&key)
            && attempt.state == RunState::Running
        {
            attempt.check_at = Some(running_check(setting));
            effect.touch(key);
        }
    }
}

fn part(fired: &Fired, digest: Digest) -> FiredPart {
    FiredPart {
        handler: fired.handler.clone(),
        lock: fired.lock.clone(),
        revision: fired.revision,
        since: fired.since,
        definition: digest,
        owner: fired.owner.clone(),
        trigger: fired.trigger,
        result: fired.result,
        message: fired.message.clone(),
        skipped: fired.skipped.as_ref().map(|skipped| SkippedPart {
            reason: skipped.reason,
            count: skipped.count,
            first: skipped.first,
        }),
        fire_time: fired.fire_time,
        fired_at: fired.fired_at,
        start_by: fired.start_by,
        shards: fired.plan.total,
        params: fired.params.as_ref().map(|params| params.get().to_owned()),
    }
}

/// What a fired record says of one attempt.
fn dispatched(
    run: &mut Run,
    key: (u32, u32),
    fired: &Fired,
    setting: &Setting<'_>,
    effect: &mut Effect,
) {
    let attempt = run.attempts.entry(key).or_insert_with(Attempt::dispatched);
    if attempt.dispatched_at.is_some() {
        return;
    }
    if fired.skipped.as_ref().is_some_and(|skipped| skipped.reason == SkipReason::Cancelled) {
        if attempt.outcome.is_none() && attempt.state != RunState::Running {
            let code = Some(Code::Cancelled);
            end(attempt, Outcome::Cancelled, code, &fired.message, fired.fired_at);
            attempt.due_at = None;
            effect.touch(key);
        }
        return;
    }
    attempt.dispatched_at = Some(fired.fired_at);
    attempt.start_by = fired.start_by;
    attempt.target = fired.plan.target(key.0).cloned();
    attempt.pinned = fired.plan.pinned;
    effect.touch(key);
    if attempt.outcome.is_some() || attempt.state == RunState::Running {
        return;
    }
    attempt.state = RunState::Dispatched;
    match fired.result {
        TriggerResult::Dispatched | TriggerResult::Skipped => {}
        TriggerResult::Queued => attempt.state = RunState::Waiting,
        // Half done and found late: the dispatch may be there, and may even be at work. The sweep
        // removes it and ends the attempt when nobody has it.
        TriggerResult::Expired => ending(attempt, Some(Code::StartDeadline), fired),
        TriggerResult::NoExecutor => {
            let code = Some(Code::NoExecutor);
            end(attempt, Outcome::NotStarted, code, &fired.message, fired.fired_at);
        }
        // Of several shards some may have been stored before one was refused.
        TriggerResult::Refused if fired.plan.shards().nth(1).is_some() => {
            ending(attempt, None, fired)
        }
        TriggerResult::Refused => {
            end(attempt, Outcome::NotStarted, None, &fired.message, fired.fired_at);
        }
    }
    let deleted = |skipped: &Skipped| skipped.reason == SkipReason::Deleted;
    attempt.retryable = !fired.skipped.as_ref().is_some_and(deleted);
    if attempt.outcome.is_none() && attempt.ending.is_none() {
        attempt.check_at = Some(start_check(attempt, setting));
    }
}

/// The sweep is to end this attempt, as soon as it has made sure that nobody can have it.
fn ending(attempt: &mut Attempt, code: Option<Code>, fired: &Fired) {
    attempt.check_at = Some(fired.fired_at);
    attempt.ending = Some(Ending {
        outcome: Outcome::NotStarted,
        code,
        message: fired.message.clone(),
        removed: false,
        then: Then::Retry,
    });
}

/// When to look at an attempt that has not started.
pub(super) fn start_check(attempt: &Attempt, setting: &Setting<'_>) -> DateTime<Utc> {
    let dispatched_at = attempt.dispatched_at.unwrap_or(setting.now);
    let nobody = after(dispatched_at, setting.policy.no_executor_wait);
    let deadline = attempt.start_by.map_or(nobody, |at| {
        at.checked_add_signed(START_SLACK).unwrap_or(DateTime::<Utc>::MAX_UTC)
    });
    deadline.min(nobody)
}

/// When to look at an attempt that is at work.
fn running_check(setting: &Setting<'_>) -> DateTime<Utc> {
    // From now on, by the server's clock: an executor's own may be wrong by any amount.
    let grace = setting.lease.saturating_mul(2);
    after(setting.now, setting.policy.timeout.map_or(grace, |time| time.saturating_add(grace)))
}

pub(super) fn started(
    run: &mut Run,
    started: &Started,
    setting: &Setting<'_>,
    effect: &mut Effect,
) {
    let key = (started.shard, started.attempt);
    if run.state.is_terminal() && !run.attempts.contains_key(&key) {
        return;
    }
    let known = run.fired.is_some();
    let attempt = run.attempts.entry(key).or_insert_with(Attempt::dispatched);
    if attempt.outcome.is_some() {
        return;
    }
    let seen = attempt.state == RunState::Running;
    if seen && attempt.delivery.is_some_and(|delivery| delivery >= started.delivery) {
        return;
    }
    attempt.state = RunState::Running;
    attempt.instance = Some(started.instance.clone());
    attempt.delivery = Some(started.delivery);
    attempt.started_at = Some(started.started_at);
    attempt.ending = None;
    attempt.check_at = known.then(|| running_check(setting));
    effect.touch(key);
}

pub(super) fn progress(run: &mut Run, progress: &Progress, effect: &mut Effect) {
    let key = (progress.shard, progress.attempt);
    let Some(attempt) = run.attempts.get_mut(&key) else { return };
    let part =
        ProgressPart { done: progress.done, total: progress.total, note: progress.note.clone() };
    if attempt.outcome.is_none() && attempt.progress.as_ref() != Some(&part) {
        attempt.progress = Some(part);
        effect.attempts.insert(key);
    }
}

pub(super) fn result(run: &mut Run, result: &ResultRecord, effect: &mut Effect) {
    let key = (result.shard.index, result.attempt);
    let attempt = run.attempts.entry(key).or_insert_with(Attempt::dispatched);
    if attempt.outcome.is_some() {
        if note(attempt, result) {
            effect.attempts.insert(key);
        }
        return;
    }
    end(attempt, result.outcome, result.code, &result.message, result.finished_at);
    attempt.output = result.output.as_ref().map(|output| output.get().to_owned());
    attempt.truncated = result.truncated;
    attempt.retryable = result.retryable;
    attempt.instance = Some(result.instance.clone());
    attempt.delivery = Some(result.delivery);
    attempt.started_at = result.started_at.or(attempt.started_at);
    effect.touch(key);
}

/// Keeps a result that came too late; false when it is one that is known.
fn note(attempt: &mut Attempt, result: &ResultRecord) -> bool {
    let repeated = attempt.outcome == Some(result.outcome)
        && attempt.instance.as_ref() == Some(&result.instance)
        && attempt.delivery == Some(result.delivery);
    let note = Note {
        instance: result.instance.clone(),
        delivery: result.delivery,
        outcome: result.outcome,
        code: result.code,
        finished_at: result.finished_at,
    };
    if repeated || attempt.notes.len() >= MAX_NOTES || attempt.notes.contains(&note) {
        return false;
    }
    attempt.notes.push(note);
    true
}

/// Brings an attempt to its end.
pub(super) fn end(
    attempt: &mut Attempt,
    outcome: Outcome,
    code: Option<Code>,
    message: &str,
    at: DateTime<Utc>,
) {
    attempt.state = outcome.state();
    attempt.outcome = Some(outcome);
    attempt.code = code;
    attempt.message = message.to_owned();
    attempt.ended_at = Some(at);
    attempt.check_at = None;
    attempt.ending = None;
}
