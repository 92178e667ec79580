//! What a fire dispatches: chosen before its lock is taken, and kept in it.

use serde::{Deserialize, Serialize};

use crate::name::Instance;
use crate::priority::Priority;

/// Which shards a fire dispatches, and to whom.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// How many shards the run has; none when it was to have one an executor and none was live.
    pub total: u32,
    /// The only shard to dispatch, for a retry; else all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<u32>,
    /// The attempt, from 1.
    pub attempt: u32,
    /// The executor of each shard that is dispatched, in their order; empty: whoever takes them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<Instance>,
    /// A shard whose executor is gone ends, and moves to no other one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub pinned: bool,
    /// Whoever takes it takes it in the order of priorities, and it stands where that one's work
    /// does; nothing: where work stands that has none, or is for one executor alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
}

impl Plan {
    /// The first attempt of all of `total` shards, for whoever takes them.
    pub fn whole(total: u32) -> Self {
        Self { total, only: None, attempt: 1, targets: Vec::new(), pinned: false, priority: None }
    }

    /// A further attempt of one of `total` shards, for whoever takes it.
    pub fn again(total: u32, shard: u32, attempt: u32) -> Self {
        Self { only: Some(shard), attempt, ..Self::whole(total) }
    }

    /// The indices of the shards to dispatch.
    pub fn shards(&self) -> impl Iterator<Item = u32> + use<> {
        match self.only {
            Some(shard) => shard..shard.saturating_add(1),
            None => 0..self.total,
        }
    }

    /// The executor that `shard` is for; none: whoever takes it.
    pub fn target(&self, shard: u32) -> Option<&Instance> {
        let place = shard.checked_sub(self.only.unwrap_or(0))?;
        self.targets.get(usize::try_from(place).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_of_before_routes_is_read_and_each_shard_finds_its_target() {
        let old: Plan = serde_json::from_str(r#"{"total":3,"attempt":1}"#).unwrap();
        assert_eq!(old, Plan::whole(3));
        assert_eq!(serde_json::to_string(&old).unwrap(), r#"{"total":3,"attempt":1}"#);
        let instance = |name: &str| Instance::new(name).unwrap();
        let all = Plan { targets: vec![instance("a"), instance("b")], ..Plan::whole(2) };
        assert_eq!((all.target(1), all.target(2)), (Some(&instance("b")), None));
        let one = Plan { targets: vec![instance("c")], ..Plan::again(5, 3, 2) };
        assert_eq!(one.shards().collect::<Vec<_>>(), [3]);
        assert_eq!((one.target(3), one.target(0)), (Some(&instance("c")), None));
    }
}
