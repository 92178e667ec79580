//! Which scheduler fires which job: rendezvous hashing over the live members.
//!
//! It only spreads the work. Two members that see different memberships may both think that a job
//! is theirs, or neither; the lock decides, and whoever is wrong is so for seconds.
//!
//! Every member must come to the same answer, whatever its version.

use taskparty_common::name::{Instance, JobId};

use crate::rendezvous::{hash, score};

/// The live members, as one of them sees them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Members {
    /// Each with the hash of its id, in the order of the ids.
    all: Vec<(Instance, u64)>,
}

impl Members {
    pub(crate) fn new(members: impl IntoIterator<Item = Instance>) -> Self {
        let hashed = members.into_iter().map(|member| {
            let hash = hash(member.as_str());
            (member, hash)
        });
        let mut all: Vec<_> = hashed.collect();
        all.sort();
        all.dedup();
        Self { all }
    }

    /// Whether `instance` is one of them.
    pub(crate) fn has(&self, instance: &Instance) -> bool {
        self.all.iter().any(|(member, _)| member == instance)
    }

    /// The member that fires `job`; nobody when there is no member.
    ///
    /// When one of k members leaves, only its jobs move, about evenly to the others.
    pub(crate) fn owner(&self, job: &JobId) -> Option<&Instance> {
        let job = hash(job.as_str());
        let score = |(member, hash): &(Instance, u64)| (score(*hash, job), member.clone());
        self.all.iter().max_by_key(|entry| score(entry)).map(|(member, _)| member)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn members(names: &[&str]) -> Members {
        Members::new(names.iter().map(|name| Instance::new(name).unwrap()))
    }

    fn jobs() -> impl Iterator<Item = JobId> {
        (0..10_000).map(|n| JobId::new(&format!("job-{n}")).unwrap())
    }

    #[test]
    fn the_work_is_spread_evenly() {
        let members = members(&["a", "b", "c", "d"]);
        let mut counts = std::collections::BTreeMap::new();
        for job in jobs() {
            *counts.entry(members.owner(&job).unwrap().clone()).or_insert(0) += 1;
        }
        assert!(counts.values().all(|count| (2_300..2_700).contains(count)), "{counts:?}");
    }

    #[test]
    fn when_a_member_leaves_only_its_jobs_move() {
        let (before, after) = (members(&["a", "b", "c", "d"]), members(&["a", "b", "d"]));
        for job in jobs() {
            let (was, is) = (before.owner(&job).unwrap(), after.owner(&job).unwrap());
            assert!(was == is || was.as_str() == "c", "{job} went from {was} to {is}");
        }
        assert_eq!(Members::default().owner(&JobId::new("a").unwrap()), None);
    }

    #[test]
    fn the_answer_never_changes_between_versions() {
        let members = members(&["alpha", "beta", "gamma"]);
        let owners: Vec<&str> = ["settle", "report", "import", "a", "b"]
            .iter()
            .map(|job| members.owner(&JobId::new(job).unwrap()).unwrap().as_str())
            .collect();
        assert_eq!(owners, ["gamma", "alpha", "gamma", "alpha", "gamma"]);
    }

    proptest! {
        #[test]
        fn the_order_of_the_members_does_not_matter(
            mut names in prop::collection::vec("[a-z]{1,8}", 1..8), job in "[a-z]{1,8}"
        ) {
            let job = JobId::new(&job).unwrap();
            let of = |names: &[String]| {
                Members::new(names.iter().map(|name| Instance::new(name).unwrap())).owner(&job).cloned()
            };
            let owner = of(&names);
            names.reverse();
            prop_assert_eq!(of(&names), owner);
        }
    }
}
