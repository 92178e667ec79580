//! What people ask of runs.

use taskparty_common::ask::{Ask, Which};

use super::*;

fn asked(ask: Ask) -> Event {
    let (run, job, app) = (run_id(), job(), app());
    Event::Asked(Asked { v: 1, run, job, app, ask, by: "ada".into(), at: at(500) })
}

pub(in crate::log_writer) fn cancel() -> Event {
    asked(Ask::Cancel { round: None })
}

fn awaits_place() -> Event {
    let Event::Fired(mut fired, digest) = fired(1, TriggerResult::Queued) else { unreachable!() };
    fired.start_by = None;
    Event::Fired(fired, digest)
}

/// The record of what was kept from being dispatched: of the run, or of one retry.
fn not_dispatched(only: Option<(u32, u32)>) -> Event {
    let Event::Fired(mut fired, digest) = fired(2, TriggerResult::Skipped) else { unreachable!() };
    fired.skipped = Some(Skipped { reason: SkipReason::Cancelled, count: 1, first: at(0) });
    fired.start_by = None;
    if let Some((shard, attempt)) = only {
        fired.plan.only = Some(shard);
        fired.plan.attempt = attempt;
    }
    Event::Fired(fired, digest)
}

#[test]
fn a_run_that_is_to_stop_goes_on_until_its_work_is_taken_back_or_its_handler_says_so() {
    let policy = policy(3);
    for events in [
        vec![fired(1, TriggerResult::Dispatched), cancel()],
        vec![cancel(), fired(1, TriggerResult::Dispatched)],
        vec![fired(1, TriggerResult::Dispatched), started(0, 1, 1), cancel()],
        vec![fired(1, TriggerResult::Dispatched), cancel(), started(0, 1, 1)],
        vec![started(0, 1, 1), cancel(), fired(1, TriggerResult::Dispatched), cancel()],
    ] {
        let (mut run, decisions) = after_all(&events, &policy);
        assert!(!run.state.is_terminal() && run.cancel.is_some(), "{run:#?}");
        assert_eq!(decisions, [], "a cancelled run is not retried");
        let attempt = &run.attempts[&(0, 1)];
        let ending = attempt.ending.as_ref().expect("the sweep is to take it back");
        assert_eq!((ending.outcome, ending.removed), (Outcome::Cancelled, false));
        let setting = Setting { now: at(9_000), policy: &policy, lease: LEASE };
        apply(&mut run, &ended(0, 1, Outcome::Cancelled), &setting);
        assert_eq!(run.state, RunState::Cancelled);
    }
}

#[test]
fn a_run_that_ends_by_itself_first_stays_as_it_ended() {
    let policy = policy(0);
    let events = [fired(1, TriggerResult::Dispatched), ended(0, 1, Outcome::Succeeded)];
    let (mut run, _) = after_all(&events, &policy);
    let before = run.clone();
    let setting = Setting { now: at(9_000), policy: &policy, lease: LEASE };
    assert_eq!(apply(&mut run, &cancel(), &setting), Effect::default());
    assert_eq!(run, before);
    // Asked before, and the handler was quicker.
    let events = [fired(1, TriggerResult::Dispatched), cancel(), ended(0, 1, Outcome::Succeeded)];
    assert_eq!(after_all(&events, &policy).0.state, RunState::Succeeded);
}

#[test]
fn what_fails_after_the_request_is_not_tried_again() {
    let events = [fired(1, TriggerResult::Dispatched), cancel(), ended(0, 1, Outcome::Failed)];
    let (run, decisions) = after_all(&events, &policy(3));
    assert_eq!((run.state, decisions), (RunState::Cancelled, vec![]));
    assert_eq!(run.attempts[&(0, 2)].outcome, Some(Outcome::Cancelled));
    assert_eq!(alerts(&after_all(&events, &policy(3)).1), 0);
}

#[test]
fn a_retry_that_waits_is_cancelled_by_the_record_that_it_will_not_be() {
    let events = [
        fired(2, TriggerResult::Dispatched),
        ended(0, 1, Outcome::Succeeded),
        ended(1, 1, Outcome::Failed),
        cancel(),
    ];
    let (run, _) = after_all(&events, &policy(3));
    assert_eq!((run.state, run.attempts.len()), (RunState::Retrying, 3));
    let events = [&events[..], &[not_dispatched(Some((1, 2)))]].concat();
    let (run, decisions) = after_all(&events, &policy(3));
    assert_eq!((run.state, run.code), (RunState::Cancelled, None));
    assert_eq!((run.attempts[&(1, 2)].code, alerts(&decisions)), (Some(Code::Cancelled), 0));
}

#[test]
fn what_waits_for_its_time_or_its_turn_is_cancelled_by_the_record_that_it_will_not_be() {
    let policy = Policy { holds_place: true, ..policy(0) };
    for (first, state) in [(scheduled(), RunState::Scheduled), (awaits_place(), RunState::Waiting)]
    {
        let (run, decisions) = after_all(&[first.clone(), cancel()], &policy);
        assert_eq!((run.state, decisions), (state, vec![]));
        let events = [first.clone(), cancel(), not_dispatched(None)];
        let (run, decisions) = after_all(&events, &policy);
        assert_eq!((run.state, run.attempts.len()), (RunState::Cancelled, 0));
        assert_eq!(decisions, [Decision::Release { run: run_id(), round: 0 }]);
        // It had got its turn, and even ended, before that was told.
        let events = [
            first,
            cancel(),
            ended(0, 1, Outcome::Succeeded),
            ended(1, 1, Outcome::Succeeded),
            not_dispatched(None),
        ];
        assert_eq!(after_all(&events, &policy).0.state, RunState::Succeeded);
    }
}

fn retry(shards: Which, round: u32) -> Event {
    asked(Ask::Retry { shards, round })
}

#[test]
fn a_retry_by_hand_makes_new_attempts_of_what_did_not_succeed_with_all_retries_again() {
    let policy = policy(1);
    let mut events = vec![
        fired(2, TriggerResult::Dispatched),
        ended(0, 1, Outcome::Succeeded),
        ended(1, 1, Outcome::Failed),
        fired_retry(2, 1, 2),
        ended(1, 2, Outcome::Failed),
    ];
    assert_eq!(after_all(&events, &policy).0.state, RunState::Failed);
    // Of another round, or asked again: it changes nothing.
    events.extend([retry(Which::Failed, 1), retry(Which::Failed, 0), retry(Which::Failed, 0)]);
    let (run, decisions) = after_all(&events, &policy);
    assert_eq!((run.state, run.round, run.ended_at), (RunState::Retrying, 1, None));
    assert_eq!(retries(&decisions), [(1, 2), (1, 3)]);
    // It fails, and has its retry again; then there is one more alert.
    events.extend([fired_retry(2, 1, 3), ended(1, 3, Outcome::Failed)]);
    let (run, decisions) = after_all(&events, &policy);
    assert_eq!((run.state, retries(&decisions).len()), (RunState::Retrying, 3));
    events.extend([fired_retry(2, 1, 4), ended(1, 4, Outcome::Failed), retry(Which::Failed, 0)]);
    let (run, decisions) = after_all(&events, &policy);
    assert_eq!((run.state, alerts(&decisions)), (RunState::Failed, 2));
    let ids: std::collections::BTreeSet<String> = decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Alert(alert) => Some(alert.id.clone()),
            _ => None,
        })
        .collect();
    assert_eq!(ids.len(), 2, "each alert is told");
    // All of it, and all succeed.
    events.push(retry(Which::All, 1));
    let (run, _) = after_all(&events, &policy);
    assert_eq!((run.state, run.round, run.attempts.len()), (RunState::Retrying, 2, 7));
    events.extend([ended(0, 2, Outcome::Succeeded), ended(1, 5, Outcome::Succeeded)]);
    assert_eq!(after_all(&events, &policy).0.state, RunState::Succeeded);
}

#[test]
fn a_run_that_was_cancelled_is_retried_in_its_turn_and_gives_that_place_back() {
    let policy =
        Policy { holds_place: true, fixed_delay: Some(Duration::from_secs(5)), ..policy(0) };
    let mut events = vec![awaits_place(), cancel(), not_dispatched(None), retry(Which::Failed, 0)];
    let (run, decisions) = after_all(&events, &policy);
    assert_eq!((run.state, run.cancel.clone()), (RunState::Retrying, None));
    let turns = decisions.iter().filter(|decision| matches!(decision, Decision::Turn { .. }));
    assert_eq!((turns.count(), retries(&decisions).len()), (2, 0));
    events.extend([fired_retry(2, 0, 1), fired_retry(2, 1, 1)]);
    events.extend([ended(0, 1, Outcome::Succeeded), ended(1, 1, Outcome::Succeeded)]);
    let (run, decisions) = after_all(&events, &policy);
    assert_eq!((run.state, nexts(&decisions)), (RunState::Succeeded, 1), "a chain goes on once");
    assert!(decisions.contains(&Decision::Release { run: run_id(), round: 1 }));
}

#[test]
fn what_goes_on_or_was_left_out_is_not_retried() {
    let policy = policy(0);
    for events in [
        vec![fired(1, TriggerResult::Dispatched)],
        vec![fired(1, TriggerResult::Skipped)],
        vec![scheduled()],
        vec![fired(1, TriggerResult::Dispatched), ended(0, 1, Outcome::Succeeded)],
    ] {
        let (before, decisions) = after_all(&events, &policy);
        let (run, after) = after_all(&[&events[..], &[retry(Which::Failed, 0)]].concat(), &policy);
        assert_eq!((run, after), (before, decisions));
    }
}

#[test]
fn a_cancel_that_comes_a_second_time_does_not_stop_what_was_retried_since() {
    let policy = policy(0);
    let mut run = unknown(run_id(), job(), app());
    let mut at_second = |second: i64, event: Event| {
        let setting = Setting { now: at(1000 * second), policy: &policy, lease: LEASE };
        apply(&mut run, &event, &setting);
        (run.round, run.cancel.is_some())
    };
    at_second(0, fired(1, TriggerResult::Dispatched));
    assert_eq!(at_second(1, cancel()), (0, true));
    at_second(2, ended(0, 1, Outcome::Cancelled));
    assert_eq!(at_second(3, retry(Which::Failed, 0)), (1, false));
    assert_eq!(at_second(1, cancel()), (1, false), "it was stored before the retry");
    assert_eq!(at_second(4, cancel()), (1, true), "this one was not");
}
