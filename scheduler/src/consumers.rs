//! The consumers of handlers that live executors offer: made as soon as one registers, so that it
//! can bind before any job names the handler.

use std::time::Duration;

use taskparty_nats::topology::Topology;
use tokio_util::sync::CancellationToken;

use crate::registry::Registry;

/// What could not be made is tried again after this long.
const AGAIN: Duration = Duration::from_secs(2);

/// Makes consumers until `shutdown`.
pub(crate) async fn run(topology: Topology, registry: Registry, shutdown: CancellationToken) {
    let mut changes = registry.changed();
    loop {
        let mut all = true;
        for (app, handler) in registry.handlers() {
            let made = tokio::select! {
                made = topology.ensure_handler(&app, &handler) => made,
                () = shutdown.cancelled() => return,
            };
            if let Err(error) = made {
                tracing::warn!(%app, %handler, %error, "A handler's consumer is not made; it is tried again.");
                all = false;
            }
        }
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            () = tokio::time::sleep(AGAIN), if !all => {}
            () = shutdown.cancelled() => return,
        }
    }
}
