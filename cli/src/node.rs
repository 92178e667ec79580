//! Starting a node, for `serve` and for `dev`: the one place that knows how.

use std::collections::BTreeSet;
use std::time::Duration;

use taskparty_nats::clock::Clock;
use taskparty_nats::connect::Nats;
use taskparty_nats::topology::TopologyConfig;
use taskparty_scheduler::{CLOCK_TOLERANCE, Node, NodeConfig, Role};
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;

/// How long fires that are under way may take when the node ends.
const DRAIN: Duration = Duration::from_secs(10);

/// How long the end of a node may take in all.
const END: Duration = Duration::from_secs(25);

/// Every role that there is.
pub(crate) const ALL: [Role; 3] = [Role::Scheduler, Role::LogWriter, Role::Api];

/// What a node is started with.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) roles: BTreeSet<Role>,
    pub(crate) store_url: String,
    pub(crate) host: String,
    /// The lease, and what the streams are like.
    pub(crate) topology: TopologyConfig,
}

/// Starts a node; it ends with `shutdown`.
pub(crate) async fn start(
    plan: Plan,
    nats: Nats,
    clock: Clock,
    shutdown: CancellationToken,
) -> Result<Node, Failure> {
    let config = NodeConfig {
        roles: plan.roles,
        topology: plan.topology,
        store: plan.store_url,
        host: plan.host,
        drain: DRAIN,
        clock_tolerance: Some(CLOCK_TOLERANCE),
    };
    Node::start(config, nats, clock, shutdown)
        .await
        .map_err(|error| Failure::could_not(format!("the node could not be started: {error}")))
}

/// Waits until a node that was told to end has ended; not for ever.
pub(crate) async fn ended(node: Node) -> Result<(), Failure> {
    tokio::time::timeout(END, node.ended())
        .await
        .map_err(|_| Failure::could_not(format!("the node did not end within {} s", END.as_secs())))
}
