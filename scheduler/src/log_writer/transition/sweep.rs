//! What the sweep found out about one attempt, applied.
//!
//! The sweep looks outside of any transaction; meanwhile the attempt may have moved on.
//! *Invariant: a verdict on an attempt that is no longer as it was seen changes nothing.*

use chrono::{DateTime, Utc};
use taskparty_common::outcome::{Outcome, RunState};
use uuid::Uuid;

use super::{Effect, RETRY_AGAIN_AFTER, Setting, record};
use crate::store::{Attempt, Decision, Ending, Run, Then};

/// What the sweep says of one attempt.
#[derive(Debug, Clone, PartialEq)]
pub struct Verdict {
    /// The run.
    pub run: Uuid,
    /// Which shard.
    pub shard: u32,
    /// Which attempt.
    pub attempt: u32,
    /// How the sweep saw it.
    pub seen: Watched,
    /// What is to be done.
    pub what: What,
}

/// As an attempt was when the sweep saw it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watched {
    /// Its state.
    pub state: RunState,
    /// Its delivery.
    pub delivery: Option<u64>,
    /// When it was to be looked at.
    pub check_at: Option<DateTime<Utc>>,
}

impl Watched {
    /// As `attempt` is now.
    pub fn of(attempt: &Attempt) -> Self {
        Self { state: attempt.state, delivery: attempt.delivery, check_at: attempt.check_at }
    }
}

/// What is to be done with an attempt.
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// Nothing yet: look again then.
    LookAgain(DateTime<Utc>),
    /// End it so at that time, when no result comes before.
    EndAt(DateTime<Utc>, Ending),
    /// End it.
    End(Ending),
    /// Its trigger never arrived: trigger it again.
    RetryAgain,
}

pub(super) fn apply(run: &mut Run, verdict: &Verdict, setting: &Setting<'_>, effect: &mut Effect) {
    let key = (verdict.shard, verdict.attempt);
    let lost_before = lost_before(run, key);
    let Some(attempt) = run.attempts.get_mut(&key) else { return };
    if attempt.outcome.is_some() || Watched::of(attempt) != verdict.seen {
        return;
    }
    match &verdict.what {
        What::LookAgain(at) => {
            attempt.check_at = Some(*at);
            attempt.ending = None;
            effect.attempts.insert(key);
        }
        What::EndAt(at, ending) => {
            attempt.check_at = Some(*at);
            attempt.ending = Some(ending.clone());
            effect.attempts.insert(key);
        }
        What::End(ending) => {
            record::end(attempt, ending.outcome, ending.code, &ending.message, setting.now);
            let untouched = ending.outcome == Outcome::NotStarted;
            attempt.moved = ending.then == Then::Move
                && (untouched || lost_before < setting.policy.redeliveries);
            attempt.retryable &= ending.then != Then::Nothing;
            effect.touch(key);
        }
        What::RetryAgain => {
            attempt.check_at = setting.now.checked_add_signed(RETRY_AGAIN_AFTER);
            effect.attempts.insert(key);
            effect.decisions.push(Decision::Retry {
                run: verdict.run,
                shard: verdict.shard,
                attempt: verdict.attempt,
                due: setting.now,
            });
        }
    }
}

/// How many executors had this shard before this attempt and went away, since its last retry.
fn lost_before(run: &Run, (shard, number): (u32, u32)) -> u32 {
    let before = run.attempts.range((shard, 0)..(shard, number)).rev();
    let moved = before.map(|(_, attempt)| attempt).take_while(|attempt| attempt.moved);
    let lost = moved.filter(|attempt| attempt.outcome == Some(Outcome::Lost)).count();
    u32::try_from(lost).unwrap_or(u32::MAX)
}
