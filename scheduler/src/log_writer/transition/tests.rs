pub(in crate::log_writer) mod ask;
pub(in crate::log_writer) mod orders;
mod routed;

use super::*;
use chrono::DateTime;
use taskparty_common::backoff::Retry;
use taskparty_common::dispatch::Shard;
use taskparty_common::fire::{Plan, Skipped};
use taskparty_common::name::{Handler, Instance};
use taskparty_common::outcome::{Code, Outcome, SkipReason, Trigger, TriggerResult};

use crate::store::{Ending, Then};

const LEASE: Duration = Duration::from_secs(30);

fn at(ms: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(1_700_000_000_000 + ms).unwrap()
}

pub(in crate::log_writer) fn run_id() -> Uuid {
    Uuid::from_u128(7)
}

fn job() -> JobId {
    JobId::new("settle").unwrap()
}

pub(in crate::log_writer) fn app() -> App {
    App::new("orders").unwrap()
}

fn policy(retries: u32) -> Policy {
    Policy { retry: Retry { max: retries, ..Retry::default() }, ..Policy::default() }
}

pub(in crate::log_writer) fn fired(shards: u32, result: TriggerResult) -> Event {
    let fired = Fired {
        v: 1,
        lock: "settle.t.1700000000000".into(),
        run: run_id(),
        job: job(),
        app: app(),
        handler: Handler::new("daily").unwrap(),
        revision: 3,
        since: at(-1000),
        owner: Instance::new("s1").unwrap(),
        trigger: Trigger::Schedule,
        result,
        message: String::new(),
        fire_time: at(0),
        fired_at: at(1),
        start_by: Some(at(3_600_000)),
        plan: Plan::whole(shards),
        skipped: None,
        definition: serde_json::value::RawValue::from_string("{}".into()).unwrap(),
        params: None,
    };
    Event::Fired(Box::new(fired), Digest::default())
}

fn scheduled() -> Event {
    Event::Scheduled(Box::new(Scheduled {
        v: 1,
        lock: "settle.x.order-1".into(),
        run: run_id(),
        job: job(),
        app: app(),
        handler: Handler::new("daily").unwrap(),
        trigger: Trigger::Delayed,
        fire_time: at(0),
        by: String::new(),
        params: None,
        instance: None,
        overlap: None,
    }))
}

fn fired_retry(shards: u32, shard: u32, attempt: u32) -> Event {
    let Event::Fired(mut fired, digest) = fired(shards, TriggerResult::Dispatched) else {
        unreachable!()
    };
    fired.trigger = Trigger::Retry;
    fired.plan = Plan::again(shards, shard, attempt);
    Event::Fired(fired, digest)
}

fn refused(reason: SkipReason) -> Event {
    let Event::Fired(mut fired, digest) = fired(1, TriggerResult::Refused) else { unreachable!() };
    fired.skipped = Some(Skipped { reason, count: 1, first: at(0) });
    Event::Fired(fired, digest)
}

pub(in crate::log_writer) fn started(shard: u32, attempt: u32, delivery: u64) -> Event {
    Event::Started(Started {
        v: 1,
        run: run_id(),
        job: job(),
        shard,
        attempt,
        delivery,
        instance: Instance::new("e1").unwrap(),
        started_at: at(10),
    })
}

fn ended(shard: u32, attempt: u32, outcome: Outcome) -> Event {
    Event::Result(Box::new(ResultRecord {
        v: 1,
        run: run_id(),
        job: job(),
        shard: Shard { index: shard, total: 1, param: None },
        attempt,
        delivery: 1,
        instance: Instance::new("e1").unwrap(),
        outcome,
        code: (outcome == Outcome::Failed).then_some(Code::HandlerError),
        message: String::new(),
        output: None,
        truncated: false,
        retryable: true,
        fire_time: at(0),
        started_at: Some(at(10)),
        finished_at: at(20),
    }))
}

/// A run after `events`, each a second later than the one before, with all that was decided.
fn after_all(events: &[Event], policy: &Policy) -> (Run, Vec<Decision>) {
    let mut run = unknown(run_id(), job(), app());
    let mut decisions = Vec::new();
    for (n, event) in events.iter().enumerate() {
        let now = at(1000 * i64::try_from(n).unwrap());
        let effect = apply(&mut run, event, &Setting { now, policy, lease: LEASE });
        decisions.extend(effect.decisions);
    }
    (run, decisions)
}

/// What must be the same in whatever order things came: not the times of the sweep, and not when
/// an attempt was dispatched of which a result came first.
fn essence(run: &Run) -> Run {
    let mut run = without_dispatch(run);
    for attempt in run.attempts.values_mut() {
        attempt.check_at = None;
        attempt.due_at = None;
    }
    run
}

/// A late fired record may still say when an attempt was dispatched.
fn without_dispatch(run: &Run) -> Run {
    let mut run = run.clone();
    for attempt in run.attempts.values_mut() {
        attempt.dispatched_at = None;
        attempt.start_by = None;
    }
    run
}

fn retries(decisions: &[Decision]) -> Vec<(u32, u32)> {
    decisions
        .iter()
        .filter_map(|decision| match decision {
            Decision::Retry { shard, attempt, .. } => Some((*shard, *attempt)),
            _ => None,
        })
        .collect()
}

fn alerts(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| matches!(decision, Decision::Alert(_))).count()
}

fn nexts(decisions: &[Decision]) -> usize {
    decisions.iter().filter(|decision| matches!(decision, Decision::Next { .. })).count()
}

#[test]
fn four_attempts_that_fail_are_three_growing_waits_and_one_alert() {
    let policy = policy(3);
    let mut events = vec![fired(1, TriggerResult::Dispatched), ended(0, 1, Outcome::Failed)];
    for attempt in 2..=4 {
        events.push(fired_retry(1, 0, attempt));
        events.push(ended(0, attempt, Outcome::Failed));
    }
    let (run, decisions) = after_all(&events, &policy);
    assert_eq!(run.state, RunState::Failed);
    assert_eq!(retries(&decisions), [(0, 2), (0, 3), (0, 4)]);
    let waits: Vec<_> = run.attempts.values().filter_map(|attempt| attempt.due_at).collect();
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]));
    let Some(Decision::Alert(alert)) = decisions.last() else { panic!("{decisions:?}") };
    assert_eq!((alert.attempts, alert.code), (4, Some(Code::HandlerError)));
    assert_eq!(alert.message, "settle failed after 4 attempts (the last took 10ms): handler_error");
}

#[test]
fn nothing_is_decided_before_the_fired_record() {
    let (run, decisions) = after_all(&[ended(0, 1, Outcome::Failed)], &policy(0));
    assert!(!run.state.is_terminal());
    assert_eq!(decisions, []);
}

#[test]
fn a_later_result_of_an_attempt_is_a_note() {
    let mut other = ended(0, 1, Outcome::Succeeded);
    if let Event::Result(result) = &mut other {
        result.instance = Instance::new("e2").unwrap();
    }
    let events =
        [fired(1, TriggerResult::Dispatched), ended(0, 1, Outcome::TimedOut), other.clone(), other];
    let (run, decisions) = after_all(&events, &policy(0));
    assert_eq!(run.state, RunState::TimedOut);
    let attempt = &run.attempts[&(0, 1)];
    assert_eq!((attempt.outcome, attempt.notes.len()), (Some(Outcome::TimedOut), 1));
    assert_eq!(alerts(&decisions), 1);
}

#[test]
fn a_fatal_error_is_not_retried() {
    let mut fatal = ended(0, 1, Outcome::Failed);
    if let Event::Result(result) = &mut fatal {
        result.retryable = false;
    }
    let (run, decisions) = after_all(&[fired(1, TriggerResult::Dispatched), fatal], &policy(3));
    assert_eq!((run.state, retries(&decisions).len()), (RunState::Failed, 0));
}

#[test]
fn what_was_never_dispatched_is_retried_unless_the_job_is_gone() {
    let (run, decisions) = after_all(&[fired(1, TriggerResult::NoExecutor)], &policy(1));
    assert_eq!((run.state, retries(&decisions)), (RunState::Retrying, vec![(0, 2)]));
    let (run, decisions) = after_all(&[refused(SkipReason::Deleted)], &policy(1));
    assert_eq!((run.state, retries(&decisions)), (RunState::NotStarted, vec![]));
}

#[test]
fn an_expired_run_that_has_a_result_keeps_it() {
    for events in [
        [fired(1, TriggerResult::Expired), ended(0, 1, Outcome::Succeeded)],
        [ended(0, 1, Outcome::Succeeded), fired(1, TriggerResult::Expired)],
    ] {
        let (run, decisions) = after_all(&events, &policy(1));
        assert_eq!((run.state, decisions), (RunState::Succeeded, vec![]));
    }
}

#[test]
fn a_skipped_run_is_at_its_end_at_once_and_alerts_nobody() {
    let (run, decisions) = after_all(&[fired(1, TriggerResult::Skipped)], &policy(1));
    assert_eq!((run.state, run.ended_at, decisions), (RunState::Skipped, Some(at(1)), vec![]));
}

#[test]
fn a_chain_goes_on_from_runs_of_its_schedule_alone() {
    let chain = Policy { fixed_delay: Some(Duration::from_secs(5)), ..policy(0) };
    let (_, decisions) =
        after_all(&[fired(1, TriggerResult::Dispatched), ended(0, 1, Outcome::Succeeded)], &chain);
    assert_eq!(decisions, [Decision::Next { run: run_id(), due: at(6000) }]);
    let Event::Fired(mut manual, digest) = fired(1, TriggerResult::Dispatched) else {
        unreachable!()
    };
    manual.trigger = Trigger::Manual;
    let manual = Event::Fired(manual, digest);
    let (_, decisions) = after_all(&[manual, ended(0, 1, Outcome::Succeeded)], &chain);
    assert_eq!(decisions, []);
}

#[test]
fn a_verdict_of_the_sweep_on_what_has_moved_on_changes_nothing() {
    let policy = policy(0);
    let (mut run, _) = after_all(&[fired(1, TriggerResult::Dispatched)], &policy);
    let seen = Watched::of(&run.attempts[&(0, 1)]);
    let ending = Ending {
        outcome: Outcome::NotStarted,
        code: Some(Code::StartDeadline),
        message: "It had not started in time.".into(),
        removed: true,
        then: Then::Retry,
    };
    let verdict = Event::Sweep(Verdict {
        run: run_id(),
        shard: 0,
        attempt: 1,
        seen,
        what: What::End(ending),
    });
    let setting = Setting { now: at(9_000), policy: &policy, lease: LEASE };
    apply(&mut run, &started(0, 1, 1), &setting);
    assert_eq!(apply(&mut run, &verdict, &setting), Effect::default());
    assert_eq!(run.state, RunState::Running);
}

#[test]
fn a_retry_that_never_fired_is_triggered_again_with_the_same_id() {
    let policy = policy(1);
    let events = [fired(1, TriggerResult::Dispatched), ended(0, 1, Outcome::Failed)];
    let (mut run, _) = after_all(&events, &policy);
    let retry = &run.attempts[&(0, 2)];
    assert_eq!(retry.check_at, retry.due_at.map(|due| due + RETRY_AGAIN_AFTER));
    let verdict = Verdict {
        run: run_id(),
        shard: 0,
        attempt: 2,
        seen: Watched::of(retry),
        what: What::RetryAgain,
    };
    let now = at(90_000);
    let setting = Setting { now, policy: &policy, lease: LEASE };
    let effect = apply(&mut run, &Event::Sweep(verdict), &setting);
    let again = Decision::Retry { run: run_id(), shard: 0, attempt: 2, due: now };
    assert_eq!(effect.decisions, [again]);
    assert_eq!(run.attempts[&(0, 2)].check_at, Some(now + RETRY_AGAIN_AFTER));
}

#[test]
fn a_redelivered_attempt_is_watched_anew() {
    let policy = policy(0);
    let events = [fired(1, TriggerResult::Dispatched), started(0, 1, 1)];
    let (mut run, _) = after_all(&events, &policy);
    let before = run.attempts[&(0, 1)].check_at;
    let setting = Setting { now: at(60_000), policy: &policy, lease: LEASE };
    apply(&mut run, &started(0, 1, 2), &setting);
    assert!(run.attempts[&(0, 1)].check_at > before);
}

#[test]
fn reports_of_another_app_are_void_once_it_is_known_whose_run_it_is() {
    let mut run = unknown(run_id(), job(), App::new("intruder").unwrap());
    let policy = policy(0);
    let setting = Setting { now: at(0), policy: &policy, lease: LEASE };
    apply(&mut run, &ended(0, 1, Outcome::Succeeded), &setting);
    let effect = apply(&mut run, &fired(1, TriggerResult::Dispatched), &setting);
    assert!(effect.reset);
    assert_eq!((run.app, run.state), (app(), RunState::Dispatched));
}

#[test]
fn a_delayed_trigger_is_scheduled_until_it_fires() {
    let policy = policy(0);
    let (mut run, decisions) = after_all(&[scheduled()], &policy);
    assert_eq!((run.state, run.attempts.len(), decisions), (RunState::Scheduled, 0, vec![]));
    let setting = Setting { now: at(1), policy: &policy, lease: LEASE };
    apply(&mut run, &fired(2, TriggerResult::Dispatched), &setting);
    assert_eq!((run.state, run.attempts.len()), (RunState::Dispatched, 2));
    let effect = apply(&mut run, &scheduled(), &setting);
    assert_eq!((run.state, effect), (RunState::Dispatched, Effect::default()));
}

#[test]
fn a_delayed_trigger_whose_job_is_deleted_ends_when_it_is_refused() {
    let (run, _) = after_all(&[scheduled(), refused(SkipReason::Deleted)], &policy(0));
    assert_eq!(run.state, RunState::NotStarted);
}

#[test]
fn a_run_that_waited_its_turn_gives_its_place_back_once_in_whatever_order_it_was_told() {
    let Event::Fired(mut waits, digest) = fired(1, TriggerResult::Queued) else { unreachable!() };
    waits.start_by = None;
    let policy = Policy { holds_place: true, ..policy(0) };
    let waits = Event::Fired(waits, digest);
    let (run, decisions) = after_all(std::slice::from_ref(&waits), &policy);
    assert_eq!((run.state, run.attempts.len(), decisions.len()), (RunState::Waiting, 0, 0));
    let events = [waits, fired(1, TriggerResult::Dispatched), ended(0, 1, Outcome::Succeeded)];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let told: Vec<Event> = order.iter().map(|n| events[*n].clone()).collect();
        let (run, decisions) = after_all(&told, &policy);
        assert_eq!(run.state, RunState::Succeeded, "{order:?}");
        assert_eq!(decisions, [Decision::Release { run: run_id(), round: 0 }], "{order:?}");
    }
}

#[test]
fn jobs_follow_when_all_shards_have_succeeded_and_only_then() {
    let then = vec![JobId::new("report").unwrap(), JobId::new("mail").unwrap()];
    let policy = Policy { then: then.clone(), counts_failures: true, ..policy(0) };
    let succeeded = |shard| ended(shard, 1, Outcome::Succeeded);
    let events = [fired(2, TriggerResult::Dispatched), succeeded(0)];
    assert_eq!(after_all(&events, &policy).1, []);
    let (_, decisions) = after_all(&[events.as_slice(), &[succeeded(1)]].concat(), &policy);
    let follow = |job: &JobId| matches!(decisions.iter().find(|d| matches!(d, Decision::Then { job: to, .. } if to == job)), Some(Decision::Then { run, .. }) if *run == run_id());
    assert!(decisions.len() == 2 && then.iter().all(follow), "{decisions:?}");
    let failed = [events.as_slice(), &[ended(1, 1, Outcome::Failed)]].concat();
    let (_, decisions) = after_all(&failed, &policy);
    assert!(decisions.contains(&Decision::Strike { run: run_id() }), "{decisions:?}");
    assert!(!decisions.iter().any(|d| matches!(d, Decision::Then { .. })), "{decisions:?}");
}
