//! What follows from what is known: the state of the run, and the decisions.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use taskparty_common::duration;
use taskparty_common::outcome::{Code, RunState, SkipReason, Trigger, TriggerResult};

use super::ask;
use super::{Effect, RETRY_AGAIN_AFTER, Setting, after};
use crate::log_writer::ids;
use crate::store::{AlertPart, Attempt, Attempts, Decision, FiredPart, Run, SkippedPart};

pub(super) fn settle(run: &mut Run, setting: &Setting<'_>, effect: &mut Effect) {
    run.started_at = run.attempts.values().filter_map(|attempt| attempt.started_at).min();
    let Some(fired) = &run.fired else {
        let at_work = run.attempts.values().any(|a| a.state == RunState::Running);
        let waits = run.planned.is_some() && run.attempts.is_empty();
        run.state = match (at_work, waits) {
            (true, _) => RunState::Running,
            (false, true) => RunState::Scheduled,
            (false, false) => RunState::Dispatched,
        };
        return;
    };
    if fired.awaits_place() {
        let at_work = run.attempts.values().any(|a| a.state == RunState::Running);
        run.state = if at_work { RunState::Running } else { RunState::Waiting };
        return;
    }
    if fired.result == TriggerResult::Skipped && run.attempts.is_empty() {
        let cancelled = fired.skipped.as_ref().is_some_and(SkippedPart::is_cancelled);
        run.state = if cancelled { RunState::Cancelled } else { RunState::Skipped };
        finish(run, setting, effect);
        return;
    }
    let shards = fired.shards;
    for (shard, last) in last_attempts(&run.attempts, shards) {
        let Some(next) = retry(run, shard, last, setting) else { continue };
        if let Some(cancel) = &run.cancel {
            run.attempts.insert((shard, last + 1), Box::new(ask::not_made(next, cancel, setting)));
            effect.touch((shard, last + 1));
        } else {
            let due = next.due_at.unwrap_or(setting.now);
            run.attempts.insert((shard, last + 1), Box::new(next));
            effect.touch((shard, last + 1));
            effect.decisions.push(Decision::Retry { run: run.id, shard, attempt: last + 1, due });
        }
    }
    ask::stop(run, setting, effect);
    let lasts = last_attempts(&run.attempts, shards);
    let state = |shard: u32| match lasts.get(&shard) {
        Some(last) => run.attempts.get(&(shard, *last)).map(|attempt| attempt.state),
        None => None,
    };
    run.state =
        RunState::of_shards((0..shards).map(|shard| state(shard).unwrap_or(RunState::Dispatched)));
    if run.state.is_terminal() {
        finish(run, setting, effect);
    }
}

/// The last attempt of each shard that has any.
pub(super) fn last_attempts(attempts: &Attempts, shards: u32) -> BTreeMap<u32, u32> {
    // Keys are in order, so the last of a shard stays.
    attempts.keys().copied().filter(|(shard, _)| *shard < shards).collect()
}

/// The attempt that follows attempt `last` of `shard`, when one does.
fn retry(run: &Run, shard: u32, last: u32, setting: &Setting<'_>) -> Option<Attempt> {
    let attempt = run.attempts.get(&(shard, last))?;
    let policy = &setting.policy.retry;
    let tries = tries(run, shard, last);
    let may = attempt.outcome?.may_retry() && attempt.retryable && tries <= policy.max;
    let due = match attempt.moved {
        true => setting.now,
        false if may => after(setting.now, policy.delay(tries, ids::chance(run.id, shard, last))),
        false => return None,
    };
    let mut next = attempt.next(RunState::Retrying);
    next.due_at = Some(due);
    next.check_at = due.checked_add_signed(RETRY_AGAIN_AFTER);
    Some(next)
}

/// Which try attempt `last` of `shard` is, in its round: those that went to another executor do not
/// count. (One that is not known yet does: only what the sweep itself has ended has moved.)
fn tries(run: &Run, shard: u32, last: u32) -> u32 {
    let all = run.attempts.range((shard, 0)..=(shard, last));
    let round = run.attempts.get(&(shard, last)).map_or(0, |attempt| attempt.round);
    // A retry by hand is known from its beginning, with all that was before.
    let before =
        all.clone().filter(|(_, attempt)| attempt.round < round).map(|((_, n), _)| *n).max();
    let moved = all.filter(|(_, attempt)| attempt.round == round && attempt.moved).count();
    last.saturating_sub(before.unwrap_or(0))
        .saturating_sub(u32::try_from(moved).unwrap_or(u32::MAX))
}

/// The run has reached its end: what people and other runs are told.
fn finish(run: &mut Run, setting: &Setting<'_>, effect: &mut Effect) {
    let ended = run.attempts.values().filter_map(|attempt| attempt.ended_at).max();
    run.ended_at = ended.or(run.fired.as_ref().map(|fired| fired.fired_at)).or(Some(setting.now));
    if run.state.is_failure() {
        // A run without a shard has no attempt to say it.
        let nobody =
            |fired: &FiredPart| fired.shards == 0 && fired.result == TriggerResult::NoExecutor;
        let nobody = run.fired.as_ref().is_some_and(nobody).then_some(Code::NoExecutor);
        run.code = decisive(run).map_or(nobody, |(_, attempt)| attempt.code);
    }
    if run.state.is_failure() && setting.policy.alert_failed {
        effect.decisions.push(Decision::Alert(alert(run, setting.now)));
    }
    if run.state.is_failure() && setting.policy.counts_failures {
        effect.decisions.push(Decision::Strike { run: run.id });
    }
    if run.state == RunState::Succeeded {
        let then = setting.policy.then.iter().cloned();
        effect.decisions.extend(then.map(|job| Decision::Then { run: run.id, job }));
    }
    // What was left out had no place, unless it had waited for one.
    if setting.policy.holds_place {
        effect.decisions.push(Decision::Release { run: run.id, round: run.round });
    }
    if let Some(due) = next_of_chain(run, setting) {
        effect.decisions.push(Decision::Next { run: run.id, due });
    }
}

/// When the next run of a fixed delay is due; only a run of the schedule, late or
/// not, has one, and only once: one that is retried by hand has had it.
fn next_of_chain(run: &Run, setting: &Setting<'_>) -> Option<DateTime<Utc>> {
    let delay = setting.policy.fixed_delay.filter(|_| run.round == 0)?;
    let fired = run.fired.as_ref()?;
    let over = fired
        .skipped
        .as_ref()
        .is_some_and(|s| matches!(s.reason, SkipReason::Deleted | SkipReason::Paused));
    (matches!(fired.trigger, Trigger::Schedule | Trigger::Misfire) && !over)
        .then(|| after(setting.now, delay))
}

/// The shard whose end is the run's, and its last attempt.
fn decisive(run: &Run) -> Option<(u32, &Attempt)> {
    let shards = run.fired.as_ref().map_or(0, |fired| fired.shards);
    last_attempts(&run.attempts, shards)
        .into_iter()
        .filter_map(|(shard, last)| Some((shard, run.attempts.get(&(shard, last))?.as_ref())))
        .find(|(_, attempt)| attempt.state == run.state)
}

fn alert(run: &Run, now: DateTime<Utc>) -> AlertPart {
    let attempts = u32::try_from(run.attempts.len()).unwrap_or(u32::MAX);
    AlertPart {
        id: ids::alert(run.id, run.round),
        kind: "failed",
        job: Some(run.job.clone()),
        run: Some(run.id),
        state: Some(run.state),
        code: run.code,
        message: sentence(run),
        attempts,
        fire_time: run.fired.as_ref().map(|fired| fired.fire_time),
        at: now,
    }
}

/// The alert in a sentence.
fn sentence(run: &Run) -> String {
    let how = match run.state {
        RunState::TimedOut => "took too long",
        RunState::Lost => "was lost with its executor",
        RunState::NotStarted => "was not started",
        _ => "failed",
    };
    let mut text = format!("{} {how}", run.job);
    let shards = run.fired.as_ref().map_or(0, |fired| fired.shards);
    let Some((shard, attempt)) = decisive(run) else {
        if let Some(fired) = run.fired.as_ref().filter(|fired| !fired.message.is_empty()) {
            text.push_str(&format!(": {}", fired.message));
        }
        return text;
    };
    if shards > 1 {
        text.push_str(&format!(" in shard {shard} of {shards}"));
    }
    let of_shard = run.attempts.iter().filter(|((of, _), attempt)| *of == shard && !attempt.moved);
    let tries = of_shard.count();
    if tries > 1 {
        text.push_str(&format!(" after {tries} attempts"));
    }
    if let (Some(began), Some(ended)) = (attempt.started_at, attempt.ended_at)
        && let Ok(took) = (ended - began).to_std()
    {
        text.push_str(&format!(" (the last took {})", duration::format(took)));
    }
    match (attempt.message.is_empty(), attempt.code) {
        (false, _) => text.push_str(&format!(": {}", attempt.message)),
        (true, Some(code)) => text.push_str(&format!(": {code}")),
        (true, None) => {}
    }
    text
}
