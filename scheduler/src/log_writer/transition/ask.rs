//! What people ask of a run: that it stops.
//!
//! *Invariant: a run that is to stop makes no new attempt*, and each attempt of it ends: by its own
//! result, or by the sweep, which takes its work back first.

use taskparty_common::ask::{Ask, Asked};
use taskparty_common::outcome::{Code, Outcome, RunState};

use super::{Effect, Setting, record};
use crate::store::{Attempt, CancelPart, Ending, Run, Then};

/// Somebody asks for something.
pub(super) fn asked(run: &mut Run, asked: &Asked, effect: &mut Effect) {
    match asked.ask {
        Ask::Cancel { round } if round.is_none_or(|round| round == run.round) => {
            cancel(run, asked, effect);
        }
        Ask::Cancel { .. } => {}
        Ask::Retry { .. } => {}
    }
}

fn cancel(run: &mut Run, asked: &Asked, effect: &mut Effect) {
    if run.state.is_terminal() || run.cancel.is_some() {
        return;
    }
    run.cancel = Some(CancelPart { at: asked.at, by: asked.by.clone() });
    effect.run = true;
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
