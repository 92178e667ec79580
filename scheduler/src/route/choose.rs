//! The choice of an executor: pure, from who is there, what is asked for and who got the last runs.
//!
//! What needs an answer of the executors themselves is in [`super::probe`].

use serde::{Deserialize, Serialize};
use taskparty_common::job::Route;
use taskparty_common::name::{Instance, JobId};

use crate::rendezvous;

/// One shard that needs an executor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Need<'a> {
    /// The job.
    pub(crate) job: &'a JobId,
    /// The shard, of a run that has several.
    pub(crate) shard: Option<u32>,
    /// What chance goes by: the same for the same attempt of the same run.
    pub(crate) seed: u64,
}

/// Who got the last runs of a job: what `round_robin` and the two `least_…_used` go by. Kept in the
/// bucket of routes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Turns {
    /// The format: 1.
    pub(crate) v: u32,
    /// The last of a round robin, live or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last: Option<Instance>,
    /// Those that were live at the last choice, the one that got a run longest ago first; with how
    /// many more runs it got than the one that got the fewest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) used: Vec<(Instance, u64)>,
}

impl Turns {
    /// `target` got a run.
    pub(crate) fn note(&mut self, route: &Route, target: &Instance) {
        if *route == Route::RoundRobin {
            self.last = Some(target.clone());
            return;
        }
        let fewest = self.fewest();
        let place = self.used.iter().position(|(one, _)| one == target);
        let count = place.map_or(fewest, |place| self.used.remove(place).1);
        self.used.push((target.clone(), count.saturating_add(1)));
        let fewest = self.fewest();
        self.used.iter_mut().for_each(|(_, count)| *count -= fewest);
    }

    fn fewest(&self) -> u64 {
        self.used.iter().map(|(_, count)| *count).min().unwrap_or(0)
    }
}

/// Whether `route` goes by who got the last runs.
pub(crate) fn takes_turns(route: &Route) -> bool {
    matches!(route, Route::RoundRobin | Route::LeastFrequentlyUsed | Route::LeastRecentlyUsed)
}

/// The executor for `need`, of `candidates` in the order of their ids; `turns` is as it is after
/// that. Nothing where the route leaves it to whoever is free, or nobody is there.
pub(crate) fn choose<'a>(
    route: &Route,
    candidates: &'a [Instance],
    need: Need<'_>,
    turns: &mut Turns,
) -> Option<&'a Instance> {
    match route {
        Route::Any | Route::Broadcast | Route::Failover | Route::Busyover => None,
        Route::First => candidates.first(),
        Route::Last => candidates.last(),
        Route::Random => by_chance(candidates, need),
        Route::ConsistentHash { key } => by_hash(candidates, key.as_deref(), need),
        Route::RoundRobin => next_in_turn(candidates, turns),
        Route::LeastRecentlyUsed => least_used(route, candidates, turns, |_| 0),
        Route::LeastFrequentlyUsed => least_used(route, candidates, turns, |count| count),
    }
}

fn by_chance<'a>(candidates: &'a [Instance], need: Need<'_>) -> Option<&'a Instance> {
    let count = u64::try_from(candidates.len()).ok().filter(|count| *count > 0)?;
    let chance =
        rendezvous::mix(need.seed ^ rendezvous::mix(u64::from(need.shard.unwrap_or(0)) + 1));
    candidates.get(usize::try_from(chance % count).ok()?)
}

/// Shards of one run are spread, each always to the same executor.
fn by_hash<'a>(
    candidates: &'a [Instance],
    key: Option<&str>,
    need: Need<'_>,
) -> Option<&'a Instance> {
    let key = rendezvous::hash(key.unwrap_or(need.job.as_str()));
    let key = need.shard.map_or(key, |shard| rendezvous::mix(key ^ (u64::from(shard) + 1)));
    candidates.iter().max_by_key(|one| rendezvous::score(rendezvous::hash(one.as_str()), key))
}

fn next_in_turn<'a>(candidates: &'a [Instance], turns: &mut Turns) -> Option<&'a Instance> {
    let last = turns.last.as_ref();
    let after = candidates.iter().find(|one| last.is_none_or(|last| *one > last));
    let chosen = after.or(candidates.first())?;
    turns.note(&Route::RoundRobin, chosen);
    Some(chosen)
}

/// The one with the lowest weight, of several the one that got a run longest ago. One that has just
/// come is taken for one that got as few runs as the others, longest ago.
fn least_used<'a>(
    route: &Route,
    candidates: &'a [Instance],
    turns: &mut Turns,
    weight: impl Fn(u64) -> u64,
) -> Option<&'a Instance> {
    turns.used.retain(|(one, _)| candidates.binary_search(one).is_ok());
    let fewest = turns.fewest();
    let known = |one: &&Instance| turns.used.iter().any(|(known, _)| known == *one);
    let new: Vec<_> =
        candidates.iter().filter(|one| !known(one)).map(|one| (one.clone(), fewest)).collect();
    turns.used.splice(0..0, new);
    // The first of those that are equal.
    let (chosen, _) = turns.used.iter().min_by_key(|(_, count)| weight(*count))?.clone();
    turns.note(route, &chosen);
    candidates.iter().find(|one| **one == chosen)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn instances(names: &str) -> Vec<Instance> {
        names.split_whitespace().map(|name| Instance::new(name).unwrap()).collect()
    }

    fn job() -> JobId {
        JobId::new("nightly").unwrap()
    }

    /// The choices of one run after the other, each with those who are there.
    fn walk(route: &Route, there: &[&str]) -> String {
        let (job, mut turns) = (job(), Turns::default());
        let chosen = there.iter().zip(0..).map(|(there, seed)| {
            let need = Need { job: &job, shard: None, seed };
            let there = instances(there);
            choose(route, &there, need, &mut turns).map_or("-".into(), ToString::to_string)
        });
        chosen.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_route_has_its_answer_while_executors_join_and_leave() {
        let there = ["", "b c", "b c", "b c d", "b c d", "a b c d", "a b d", "a b d", "a", "a e"];
        for (route, wanted) in [
            (Route::Any, "- - - - - - - - - -"),
            (Route::Broadcast, "- - - - - - - - - -"),
            (Route::Failover, "- - - - - - - - - -"),
            (Route::Busyover, "- - - - - - - - - -"),
            (Route::Random, "- b c b c b d b a e"),
            (Route::First, "- b b b b a a a a a"),
            (Route::Last, "- c c d d d d d a e"),
            (Route::RoundRobin, "- b c d b c d a a e"),
            (Route::LeastRecentlyUsed, "- b c d b a d b a e"),
            (Route::LeastFrequentlyUsed, "- b c d b a d b a e"),
            (Route::ConsistentHash { key: Some("settle".into()) }, "- c c c c a a a a a"),
        ] {
            assert_eq!(walk(&route, &there), wanted, "{}", route.as_str());
        }
    }

    #[test]
    fn one_that_comes_late_to_the_least_used_is_not_swamped() {
        let busy = std::iter::repeat_n("a b", 20).chain(std::iter::repeat_n("a b c", 6));
        let there: Vec<&str> = busy.collect();
        for route in [Route::LeastFrequentlyUsed, Route::LeastRecentlyUsed] {
            let chosen = walk(&route, &there);
            let of_new = chosen.split_whitespace().filter(|one| *one == "c").count();
            assert_eq!(of_new, 2, "{}: {chosen}", route.as_str());
        }
    }

    #[test]
    fn the_least_frequently_used_catches_up_and_the_least_recently_used_does_not() {
        let mut turns = Turns { v: 1, last: None, used: Vec::new() };
        turns.used = instances("a b").into_iter().zip([0, 3]).collect();
        let (job, there) = (job(), instances("a b"));
        let chosen: String = (0..5)
            .filter_map(|seed| {
                let need = Need { job: &job, shard: None, seed };
                choose(&Route::LeastFrequentlyUsed, &there, need, &mut turns)
            })
            .map(Instance::as_str)
            .collect();
        assert_eq!(chosen, "aaaba");
    }

    #[test]
    fn chance_is_even_and_the_same_for_the_same_attempt() {
        let (job, there) = (job(), instances("a b c d"));
        let mut counts = std::collections::BTreeMap::new();
        for seed in 0..4_000 {
            let need = Need { job: &job, shard: Some(seed % 3), seed: u64::from(seed) };
            let of = || choose(&Route::Random, &there, need, &mut Turns::default()).unwrap();
            assert_eq!(of(), of());
            *counts.entry(of()).or_insert(0) += 1;
        }
        assert!(
            counts.len() == 4 && counts.values().all(|n| (900..1_100).contains(n)),
            "{counts:?}"
        );
    }

    #[test]
    fn what_is_stored_is_read_back_and_short() {
        let turns = Turns { v: 1, last: None, used: vec![(Instance::new("a").unwrap(), 2)] };
        let text = serde_json::to_string(&turns).unwrap();
        assert_eq!(text, r#"{"v":1,"used":[["a",2]]}"#);
        assert_eq!(serde_json::from_str::<Turns>(&text).unwrap(), turns);
    }

    proptest! {
        #[test]
        fn when_one_of_k_leaves_only_its_keys_move_and_they_are_about_a_kth(
            count in 2_usize..12, leaves in any::<prop::sample::Index>(), salt in "[a-z]{1,6}",
        ) {
            let mut before: Vec<Instance> =
                (0..count).map(|n| Instance::new(&format!("{salt}-{n}")).unwrap()).collect();
            before.sort();
            let mut after = before.clone();
            let gone = after.remove(leaves.index(count));
            let (job, keys, mut moved) = (job(), 2_000_usize, 0);
            for key in 0..keys {
                let route = Route::ConsistentHash { key: Some(format!("key {key}")) };
                let need = Need { job: &job, shard: None, seed: 0 };
                let of = |there: &[Instance]| {
                    choose(&route, there, need, &mut Turns::default()).cloned().unwrap()
                };
                let (was, is) = (of(&before), of(&after));
                prop_assert!(was == is || was == gone);
                moved += usize::from(was == gone);
            }
            // A kth, and six standard deviations.
            let share = keys as f64 / count as f64;
            prop_assert!((moved as f64) < share + 6.0 * share.sqrt(), "{moved} of {keys}, {count}");
        }

        /// Whoever is there, each gets its turn.
        #[test]
        fn in_as_many_runs_as_there_are_executors_each_gets_one(
            count in 1_usize..9, steps in 1_usize..30,
        ) {
            let there: Vec<Instance> =
                (0..count).map(|n| Instance::new(&format!("x{n}")).unwrap()).collect();
            let job = job();
            for route in [Route::RoundRobin, Route::LeastRecentlyUsed, Route::LeastFrequentlyUsed] {
                let mut turns = Turns::default();
                let mut last = Vec::new();
                for seed in 0..(steps + count) as u64 {
                    let need = Need { job: &job, shard: None, seed };
                    last.push(choose(&route, &there, need, &mut turns).unwrap());
                }
                let mut round = last.split_off(last.len() - count);
                round.sort();
                prop_assert_eq!(round, there.iter().collect::<Vec<_>>());
            }
        }
    }
}
