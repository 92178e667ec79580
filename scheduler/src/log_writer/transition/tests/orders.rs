//! Any order, any number of times.

use proptest::prelude::*;

use super::*;

/// What becomes of each shard: the outcomes of its attempts, of which only the last may succeed.
fn histories() -> impl Strategy<Value = Vec<Vec<Outcome>>> {
    let failure = prop_oneof![
        Just(Outcome::Failed),
        Just(Outcome::TimedOut),
        Just(Outcome::Lost),
        Just(Outcome::NotStarted)
    ];
    let shard =
        (prop::collection::vec(failure, 0..4), any::<bool>()).prop_map(|(mut all, good)| {
            if good || all.is_empty() {
                all.push(Outcome::Succeeded);
            }
            all
        });
    prop::collection::vec(shard, 1..4)
}

/// All events of such a run, some twice, shuffled.
pub(in crate::log_writer) fn shuffled() -> impl Strategy<Value = (Vec<Vec<Outcome>>, Vec<Event>)> {
    histories().prop_flat_map(|shards| {
        let total = u32::try_from(shards.len()).unwrap();
        let mut events = vec![scheduled(), fired(total, TriggerResult::Dispatched)];
        for (shard, outcomes) in (0..).zip(&shards) {
            for (attempt, outcome) in (1..).zip(outcomes) {
                if attempt > 1 {
                    events.push(fired_retry(total, shard, attempt));
                }
                if *outcome != Outcome::NotStarted {
                    events.push(started(shard, attempt, 1));
                }
                events.push(ended(shard, attempt, *outcome));
            }
        }
        let count = events.len();
        (Just(shards), Just(events), prop::collection::vec(0..count, 0..count))
            .prop_map(|(shards, mut events, again)| {
                let more: Vec<Event> = again.iter().map(|n| events[*n].clone()).collect();
                events.extend(more);
                (shards, events)
            })
            .prop_flat_map(|(shards, events)| (Just(shards), Just(events).prop_shuffle()))
    })
}

proptest! {
    #[test]
    fn in_whatever_order_events_come_the_run_ends_the_same_and_each_decision_is_made_once(
        (shards, events) in shuffled()
    ) {
        // As many retries as the longest history has: shards that fail earlier end with a retry
        // that is still to come, so the policy allows exactly what happened to each.
        let most = shards.iter().map(Vec::len).max().unwrap_or(1);
        let same = shards.iter().all(|outcomes| {
            outcomes.len() == most || outcomes.last() == Some(&Outcome::Succeeded)
        });
        prop_assume!(same);
        let policy = Policy {
            fixed_delay: Some(Duration::from_secs(5)),
            ..policy(u32::try_from(most - 1).unwrap())
        };
        let (run, decisions) = after_all(&events, &policy);
        let total = u32::try_from(shards.len()).unwrap();
        let mut in_order = vec![fired(total, TriggerResult::Dispatched)];
        for (shard, outcomes) in (0..).zip(&shards) {
            for (attempt, outcome) in (1..).zip(outcomes) {
                if attempt > 1 {
                    in_order.push(fired_retry(total, shard, attempt));
                }
                in_order.push(ended(shard, attempt, *outcome));
            }
        }
        let (straight, _) = after_all(&in_order, &policy);
        prop_assert!(straight.state.is_terminal());
        prop_assert_eq!(essence(&run), essence(&straight));

        let failed = run.state.is_failure();
        prop_assert_eq!(alerts(&decisions), usize::from(failed));
        prop_assert_eq!(nexts(&decisions), 1);
        let mut decided = retries(&decisions);
        let count = decided.len();
        decided.sort_unstable();
        decided.dedup();
        prop_assert_eq!(decided.len(), count, "a retry was decided twice");
        for (shard, attempt) in decided {
            prop_assert!(shards[shard as usize].len() >= attempt as usize);
        }
    }

    #[test]
    fn a_run_at_its_end_never_changes((shards, events) in shuffled(), more in any::<prop::sample::Index>()) {
        let most = shards.iter().map(Vec::len).max().unwrap_or(1);
        let policy = policy(u32::try_from(most - 1).unwrap());
        let (mut run, _) = after_all(&events, &policy);
        prop_assume!(run.state.is_terminal());
        let before = without_dispatch(&run);
        let event = more.get(&events);
        let effect = apply(&mut run, event, &Setting { now: at(99_000), policy: &policy, lease: LEASE });
        prop_assert_eq!(effect.decisions, vec![]);
        prop_assert_eq!(without_dispatch(&run), before);
    }
}
