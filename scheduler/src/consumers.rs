//! The consumers of what live executors offer: one for each handler, made as soon as one registers
//! it, so that it can bind before any job names the handler; one for each priority that somebody looks
//! for; and one for each executor, for the work that is for it alone, removed when it has gone and
//! nothing is left for it.
//!
//! *Invariant: no consumer is removed over work.* What waits for an executor that has gone is the log
//! writer's: it removes the messages and decides what follows.

use std::collections::HashMap;
use std::time::Duration;

use taskparty_common::name::{App, Instance};
use taskparty_nats::connect::Nats;
use taskparty_nats::topology::Topology;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::registry::Registry;
use crate::told::Told;

/// What could not be made, or is still to be removed, is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);

/// A consumer stays for this long after its executor: other schedulers may see it go later, and must
/// not take the removal for somebody's mischief.
const GRACE: Duration = Duration::from_secs(10);

/// How often it is looked for lines that others have made: who made one may have died before it told
/// anybody.
const SEARCH: Duration = Duration::from_secs(60);

/// Makes and removes consumers until `shutdown`.
pub(crate) async fn run(
    nats: Nats,
    topology: Topology,
    registry: Registry,
    shutdown: CancellationToken,
) {
    let mut changes = registry.changed();
    let mut lines = topology.new_lines();
    let mut searched: HashMap<App, Instant> = HashMap::new();
    let mut told = Told::default();
    let mut gone: HashMap<(App, Instance), Instant> = HashMap::new();
    loop {
        let made = tokio::select! {
            made = make(&topology, &registry, &mut searched) => made,
            () = shutdown.cancelled() => return,
        };
        let all_know = tokio::select! {
            all = told.tell(&nats, &topology, &registry) => all,
            () = shutdown.cancelled() => return,
        };
        let now = Instant::now();
        let released = topology.release_instances(|app, one| registry.lives(app, one));
        gone.extend(released.into_iter().map(|key| (key, now)));
        // One that was only cut off is back.
        gone.retain(|(app, one), _| !registry.lives(app, one));
        tokio::select! {
            () = remove(&topology, &mut gone) => {}
            () = shutdown.cancelled() => return,
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            // The sender lives as long as the topology.
            _ = lines.changed() => {}
            () = tokio::time::sleep(AGAIN), if !made || !all_know || !gone.is_empty() => {}
            () = tokio::time::sleep(SEARCH) => {}
            () = shutdown.cancelled() => return,
        }
    }
}

/// True when all are there.
async fn make(
    topology: &Topology,
    registry: &Registry,
    searched: &mut HashMap<App, Instant>,
) -> bool {
    let mut all = true;
    for (app, handler) in registry.handlers() {
        if let Err(error) = topology.ensure_handler(&app, &handler).await {
            tracing::warn!(%app, %handler, %error, "A handler's consumer is not made; it is tried again.");
            all = false;
        } else if searched.get(&app).is_none_or(|at| at.elapsed() >= SEARCH) {
            // Lines that others have made, in which work may stand.
            match topology.find_lines(&app).await {
                Ok(()) => {
                    searched.insert(app, Instant::now());
                }
                Err(error) => {
                    tracing::warn!(%app, %error, "Which consumers an app has cannot be seen; it is tried again.");
                    all = false;
                }
            }
        }
    }
    for ((app, handler), priorities) in registry.priorities() {
        for priority in priorities {
            if let Err(error) = topology.ensure_priority(&app, &handler, priority).await {
                tracing::warn!(%app, %handler, %priority, %error, "The consumer of a priority is not made; it is tried again.");
                all = false;
            }
        }
    }
    for (app, instance) in registry.instances() {
        if let Err(error) = topology.ensure_instance(&app, &instance).await {
            tracing::warn!(%app, %instance, %error, "An executor's own consumer is not made; it is tried again.");
            all = false;
        }
    }
    all
}

/// Removes the consumers of those that have been gone for long enough, and forgets them.
async fn remove(topology: &Topology, gone: &mut HashMap<(App, Instance), Instant>) {
    let overdue: Vec<_> = gone
        .iter()
        .filter(|(_, since)| since.elapsed() >= GRACE)
        .map(|(key, _)| key.clone())
        .collect();
    for key in overdue {
        match topology.remove_instance(&key.0, &key.1).await {
            Ok(true) => {
                gone.remove(&key);
            }
            Ok(false) => {}
            Err(error) => {
                tracing::warn!(app = %key.0, instance = %key.1, %error, "The consumer of an executor that has gone is not removed; it is tried again.");
            }
        }
    }
}
