//! What people ask of a run: that it stops, or is tried again.
//!
//! *Invariant: a run that is to stop makes no new attempt*, and each attempt of it ends: by its own
//! result, or by the sweep, which takes its work back first. *Invariant: a run leaves its end only by
//! a retry that names its round, and counts it up*: the same request again, or one that comes too
//! late, finds another round and changes nothing.

use taskparty_common::ask::{Ask, Asked, Which};
use taskparty_common::outcome::{Code, Outcome, RunState, TriggerResult};

use super::settle::last_attempts;
use super::{Effect, RETRY_AGAIN_AFTER, Setting, record};
use crate::store::{Attempt, CancelPart, Decision, Ending, Run, Then};

/// Somebody asks for something.
pub(super) fn asked(run: &mut Run, asked: &Asked, setting: &Setting<'_>, effect: &mut Effect) {
    match asked.ask {
        Ask::Cancel { round: Some(round) } if round == run.round => cancel(run, asked, effect),
        // Whoever does not know the round means the one that was under way.
        Ask::Cancel { round: None } if !is_before_round(run, setting) => {
            cancel(run, asked, effect);
        }
        Ask::Cancel { .. } => {}
        Ask::Retry { shards, round } if round == run.round => retry(run, shards, setting, effect),
        Ask::Retry { .. } => {}
    }
}

/// Whether what is stored at `setting.now` was before the present round of `run`: it comes a second
/// time, and what it asked for has been done.
fn is_before_round(run: &Run, setting: &Setting<'_>) -> bool {
    let of_round = run.attempts.values().filter(|attempt| attempt.round == run.round);
    let began = of_round.filter_map(|attempt| attempt.due_at).min();
    run.round > 0 && began.is_some_and(|began| setting.now < began)
}

fn cancel(run: &mut Run, asked: &Asked, effect: &mut Effect) {
    if run.state.is_terminal() || run.cancel.is_some() {
        return;
    }
    run.cancel = Some(CancelPart { at: asked.at, by: asked.by.clone() });
    effect.run = true;
}

/// Tries shards of a run again that has ended.
fn retry(run: &mut Run, which: Which, setting: &Setting<'_>, effect: &mut Effect) {
    let Some(fired) = run.fired.as_ref().filter(|_| run.state.is_terminal()) else { return };
    let left_out = fired.result == TriggerResult::Skipped && run.state == RunState::Skipped;
    let lasts = last_attempts(&run.attempts, fired.shards);
    let last = |shard: u32| lasts.get(&shard).and_then(|last| run.attempts.get(&(shard, *last)));
    let again = |shard: &u32| {
        let succeeded = last(*shard).is_some_and(|last| last.outcome == Some(Outcome::Succeeded));
        which == Which::All || !succeeded
    };
    let shards: Vec<u32> = (0..fired.shards).filter(again).collect();
    if left_out || shards.is_empty() {
        return;
    }
    let made: Vec<((u32, u32), Attempt)> = shards
        .into_iter()
        .map(|shard| {
            let number = lasts.get(&shard).map_or(1, |last| last.saturating_add(1));
            let mut next = match last(shard) {
                Some(last) => last.next(RunState::Retrying),
                None => Attempt::new(RunState::Retrying),
            };
            next.round = run.round.saturating_add(1);
            next.due_at = Some(setting.now);
            next.check_at = setting.now.checked_add_signed(RETRY_AGAIN_AFTER);
            ((shard, number), next)
        })
        .collect();
    run.round = run.round.saturating_add(1);
    run.state = RunState::Retrying;
    (run.cancel, run.ended_at, run.code) = (None, None, None);
    for ((shard, attempt), next) in made {
        run.attempts.insert((shard, attempt), Box::new(next));
        effect.touch((shard, attempt));
        let (run, due) = (run.id, setting.now);
        effect.decisions.push(match setting.policy.holds_place {
            true => Decision::Turn { run, shard, attempt, due },
            false => Decision::Retry { run, shard, attempt, due },
        });
    }
}

/// Has the sweep take back what is dispatched of a run that is to stop, and end it when no result
/// comes. What waits for its time is not dispatched, and is seen to by whoever repeats the request.
pub(super) fn stop(run: &mut Run, setting: &Setting<'_>, effect: &mut Effect) {
    let Some(cancel) = &run.cancel else { return };
    for (key, attempt) in &mut run.attempts {
        let known = attempt.ending.as_ref().is_some_and(|e| e.outcome == Outcome::Cancelled);
        if attempt.outcome.is_some() || attempt.state == RunState::Retrying || known {
            continue;
        }
        attempt.check_at = Some(setting.now);
        attempt.ending = Some(Ending {
            outcome: Outcome::Cancelled,
            code: Some(Code::Cancelled),
            message: cancel.words(),
            removed: false,
            then: Then::Nothing,
        });
        effect.attempts.insert(*key);
    }
}

/// An attempt that is not made any more.
pub(super) fn not_made(mut next: Attempt, cancel: &CancelPart, setting: &Setting<'_>) -> Attempt {
    let message = format!("{} before it was tried again", cancel.words());
    record::end(&mut next, Outcome::Cancelled, Some(Code::Cancelled), &message, setting.now);
    next.due_at = None;
    next
}
