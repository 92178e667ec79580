//! Routing: which executors a run goes to, in how many shards, and in which line.
//!
//! *Invariants.* The choice is made once and kept, in the lock or beside the place of a run that
//! waited, before anything is dispatched: whoever completes a fire dispatches to the same. Nothing
//! here can make a fire fail: where nobody can be chosen, the work is for whoever takes it.

mod choose;
mod probe;
mod turns;

use taskparty_common::fire::Plan;
use taskparty_common::job::{JobSpec, MAX_SHARDS, Route, Shards};
use taskparty_common::name::Instance;
use taskparty_common::priority::Priority;
use taskparty_nats::bucket::Buckets;
use uuid::Uuid;

use self::choose::{Need, Turns, choose, takes_turns};
use self::probe::Wanted;
use self::turns::{Book, Keep};
use crate::registry::Registry;

/// Chooses executors. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Router {
    registry: Registry,
    buckets: Buckets,
    book: Book,
}

/// Whether the run surely happens that a choice is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Certainty {
    /// It does: its turn is taken.
    Sure,
    /// It may be left out or wait: its turn is taken by [`Router::took`], when it has its place.
    Open,
}

impl Router {
    pub(crate) fn new(registry: Registry, buckets: Buckets) -> Self {
        let book = Book::new(buckets.clone());
        Self { registry, buckets, book }
    }

    /// Whether there is anything to choose for runs of this job.
    pub(crate) fn has_a_say(spec: &JobSpec) -> bool {
        let is_shared_out = spec.route != Route::Any || spec.shards == Shards::Executors;
        is_shared_out || !spec.priority.is_default()
    }

    /// The plan of `run` with its executors: for the first attempt how many shards, and for whom; for
    /// a retry for whom. A plan that is pinned already stays as it is.
    pub(crate) async fn route(
        &self,
        spec: &JobSpec,
        run: Uuid,
        plan: Plan,
        certainty: Certainty,
    ) -> Plan {
        if plan.pinned || !Self::has_a_say(spec) {
            return plan;
        }
        let live = self.registry.candidates(&spec.app, &spec.handler);
        let mut plan = Plan { targets: Vec::new(), priority: None, ..plan };
        if plan.only.is_none() {
            plan.total = match (&spec.route, spec.shards) {
                (Route::Broadcast, _) => return broadcast(plan, live),
                (_, Shards::Count(count)) => count,
                (_, Shards::Executors) => count_of(&live).min(MAX_SHARDS),
            };
        }
        let targets = Box::pin(self.choose(spec, run, &plan, &live, certainty)).await;
        let priority = if targets.is_empty() { self.line_for(spec) } else { None };
        Plan { targets, priority, ..plan }
    }

    /// Where work stands that anyone may take. *Invariant: not where only some of the executors look*:
    /// in a fleet of which some know no priorities it stands with the work that has none.
    fn line_for(&self, spec: &JobSpec) -> Option<Priority> {
        let known =
            !spec.priority.is_default() && self.registry.knows_priorities(&spec.app, &spec.handler);
        known.then_some(spec.priority)
    }

    /// One executor for each shard of `plan`; none when the route leaves it to whoever is free.
    async fn choose(
        &self,
        spec: &JobSpec,
        run: Uuid,
        plan: &Plan,
        live: &[Instance],
        certainty: Certainty,
    ) -> Vec<Instance> {
        let wanted = match &spec.route {
            Route::Failover => Wanted::Alive,
            Route::Busyover => Wanted::Idle,
            route if takes_turns(route) && !live.is_empty() => {
                let keep = if certainty == Certainty::Sure { Keep::Taken } else { Keep::Looked };
                let step = |turns: &mut Turns| targets(spec, run, plan, live, turns);
                return self.book.turn(&spec.id, keep, step).await;
            }
            _ => return targets(spec, run, plan, live, &mut Turns::default()),
        };
        let shards = plan.shards().count();
        let count = if wanted == Wanted::Alive { 1 } else { shards };
        let found = probe::ask(self.buckets.nats(), spec, live, wanted, count).await;
        // Nobody: whoever is free first, or comes to himself.
        found.iter().cycle().take(if found.is_empty() { 0 } else { shards }).cloned().collect()
    }

    /// A run whose executors were chosen while it was not sure to happen, happens.
    pub(crate) async fn took(&self, spec: &JobSpec, plan: &Plan) {
        if takes_turns(&spec.route) && !plan.targets.is_empty() && !plan.pinned {
            let step = |turns: &mut Turns| {
                plan.targets.iter().for_each(|target| turns.note(&spec.route, target));
            };
            self.book.turn(&spec.id, Keep::Taken, step).await;
        }
    }
}

/// A shard for each live executor; none at all when there are more than a run can have.
fn broadcast(plan: Plan, live: Vec<Instance>) -> Plan {
    let total = count_of(&live);
    if total > MAX_SHARDS {
        return Plan { total: 0, pinned: true, ..plan };
    }
    Plan { total, targets: live, pinned: true, ..plan }
}

fn count_of(live: &[Instance]) -> u32 {
    u32::try_from(live.len()).unwrap_or(u32::MAX)
}

/// The choice for each shard of `plan`; nothing unless there is one for each.
fn targets(
    spec: &JobSpec,
    run: Uuid,
    plan: &Plan,
    live: &[Instance],
    turns: &mut Turns,
) -> Vec<Instance> {
    let (high, low) = run.as_u64_pair();
    let seed = high ^ low ^ u64::from(plan.attempt).rotate_left(32);
    let chosen = plan.shards().map(|shard| {
        let shard = (plan.total > 1).then_some(shard);
        choose(&spec.route, live, Need { job: &spec.id, shard, seed }, turns).cloned()
    });
    chosen.collect::<Option<Vec<_>>>().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn live(count: u32) -> Vec<Instance> {
        (0..count).map(|n| Instance::new(&format!("x{n:04}")).unwrap()).collect()
    }

    #[test]
    fn a_broadcast_has_a_shard_for_each_live_executor_and_none_where_they_are_too_many() {
        for (there, total) in
            [(0, 0), (1, 1), (3, 3), (MAX_SHARDS, MAX_SHARDS), (MAX_SHARDS + 1, 0)]
        {
            let plan = broadcast(Plan::whole(1), live(there));
            let targets = live(total);
            assert_eq!(plan, Plan { total, targets, pinned: true, ..Plan::whole(1) }, "{there}");
        }
    }
}
