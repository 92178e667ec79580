//! Attempts that are for one executor: what follows when it goes.

use super::*;

fn instance(name: &str) -> Instance {
    Instance::new(name).unwrap()
}

/// A fired record of one shard for each of `targets`.
fn routed(targets: &[&str], pinned: bool) -> Event {
    let shards = u32::try_from(targets.len()).unwrap();
    let Event::Fired(mut fired, digest) = fired(shards, TriggerResult::Dispatched) else {
        unreachable!()
    };
    fired.plan.targets = targets.iter().map(|name| instance(name)).collect();
    fired.plan.pinned = pinned;
    Event::Fired(fired, digest)
}

/// The sweep ends the last attempt of `shard`, whose executor has gone.
fn gone(run: &mut Run, shard: u32, outcome: Outcome, then: Then, policy: &Policy) -> Effect {
    let ((_, number), attempt) = run.attempts.range((shard, 0)..=(shard, 999)).next_back().unwrap();
    let ending = Ending {
        outcome,
        code: Some(Code::ExecutorLost),
        message: "it has gone".into(),
        removed: true,
        then,
    };
    let verdict = Verdict {
        run: run_id(),
        shard,
        attempt: *number,
        seen: Watched::of(attempt),
        what: What::End(ending),
    };
    apply(run, &Event::Sweep(verdict), &Setting { now: at(60_000), policy, lease: LEASE })
}

#[test]
fn work_of_an_executor_that_has_gone_is_anothers_at_once_and_that_is_no_retry() {
    let policy = Policy { redeliveries: 1, ..policy(1) };
    let (mut run, _) = after_all(&[routed(&["a"], false)], &policy);
    assert_eq!(run.attempts[&(0, 1)].target, Some(instance("a")));
    let moves = |effect: &Effect| match effect.decisions[..] {
        [Decision::Retry { attempt, due, .. }] => (attempt, due),
        _ => panic!("{effect:?}"),
    };
    // Nobody had begun: it moves as often as that happens.
    for next in 2..5 {
        let effect = gone(&mut run, 0, Outcome::NotStarted, Then::Move, &policy);
        assert_eq!(moves(&effect), (next, at(60_000)));
        assert_eq!(
            (run.state, run.attempts[&(0, next)].target.as_ref()),
            (RunState::Retrying, None)
        );
    }
    // It may have run: so often goes what `redeliveries` say.
    let effect = gone(&mut run, 0, Outcome::Lost, Then::Move, &policy);
    assert_eq!(moves(&effect), (5, at(60_000)));
    let effect = gone(&mut run, 0, Outcome::Lost, Then::Move, &policy);
    let (next, due) = moves(&effect);
    assert!(next == 6 && due > at(60_000), "the policy's only retry, with its delay: {effect:?}");
    let effect = gone(&mut run, 0, Outcome::Lost, Then::Move, &policy);
    assert_eq!(moves(&effect), (7, at(60_000)), "a new try may move again");
    gone(&mut run, 0, Outcome::Lost, Then::Move, &policy);
    assert_eq!((run.state, run.code), (RunState::Lost, Some(Code::ExecutorLost)));
    let moved = run.attempts.values().filter(|attempt| attempt.moved).count();
    assert_eq!((run.attempts.len(), moved), (7, 5));
}

#[test]
fn a_pinned_shard_ends_with_its_executor_and_a_retry_of_it_stays_there() {
    let policy = policy(3);
    let (mut run, _) = after_all(&[routed(&["a", "b", "c"], true)], &policy);
    let effect = gone(&mut run, 1, Outcome::Lost, Then::Nothing, &policy);
    assert_eq!((effect.decisions.len(), run.state), (0, RunState::Dispatched));
    let setting = Setting { now: at(61_000), policy: &policy, lease: LEASE };
    let effect = apply(&mut run, &ended(0, 1, Outcome::Failed), &setting);
    assert_eq!(effect.decisions.len(), 1);
    let again = &run.attempts[&(0, 2)];
    assert_eq!((again.target.as_ref(), again.pinned), (Some(&instance("a")), true));
    apply(&mut run, &ended(2, 1, Outcome::Succeeded), &setting);
    apply(&mut run, &ended(0, 2, Outcome::Succeeded), &setting);
    assert_eq!((run.state, run.code), (RunState::Lost, Some(Code::ExecutorLost)));
}

#[test]
fn a_result_that_came_before_the_lease_ended_counts() {
    let policy = policy(0);
    let (mut run, _) = after_all(&[routed(&["a"], false)], &policy);
    let seen = Watched::of(&run.attempts[&(0, 1)]);
    let ending = Ending {
        outcome: Outcome::Lost,
        code: Some(Code::ExecutorLost),
        message: "it has gone".into(),
        removed: true,
        then: Then::Move,
    };
    let what = What::EndAt(at(90_000), ending);
    let verdict = Event::Sweep(Verdict { run: run_id(), shard: 0, attempt: 1, seen, what });
    let setting = Setting { now: at(60_000), policy: &policy, lease: LEASE };
    apply(&mut run, &verdict, &setting);
    apply(&mut run, &ended(0, 1, Outcome::Succeeded), &setting);
    assert_eq!((run.state, run.attempts.len()), (RunState::Succeeded, 1));
}

#[test]
fn a_run_that_nobody_could_have_a_shard_of_says_so() {
    let (run, decisions) = after_all(&[fired(0, TriggerResult::NoExecutor)], &policy(3));
    assert_eq!((run.state, run.code), (RunState::NotStarted, Some(Code::NoExecutor)));
    assert!(matches!(decisions[..], [Decision::Alert(_)]), "{decisions:?}");
}
