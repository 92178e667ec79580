//! Work that is for this instance alone: broadcasts, and whatever a job's route has chosen it for.
//!
//! It comes from a consumer of its own, for any of the handlers, and needs a slot of its handler like
//! all work. Nobody else can take it, so it may wait here for one, its lease kept. *Invariant: of a
//! handler there never run more than it has slots*, wherever the work comes from.

use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use taskparty_common::name::Handler;
use taskparty_nats::consume::{ConsumeError, Pull, PullConfig};
use taskparty_nats::lease::Lease;
use taskparty_nats::subject::on_instance;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::node::Node;
use crate::{run, settle};

/// What waits for a slot here at once is as many as there are handlers, and at most so many. They are
/// anyone's, as the consumer cannot be asked for one handler's work: pinned work of one busy handler can
/// hold up that of the others. Few all the same: what waits here counts as delivered, and costs a
/// redelivery when this process dies.
const MOST_WAITING: usize = 8;

/// How often a slot is asked for.
const ASK: Duration = Duration::from_millis(100);

/// The scheduler makes the consumer when it has seen the registry entry.
const BEARS_REFUSALS: Duration = Duration::from_secs(10);

/// Pulls until the executor drains. What had arrived by then is still seen through.
///
/// # Errors
/// [`ConsumeError::Closed`] when the connection will not come back.
pub(crate) async fn pull(node: Arc<Node>) -> Result<(), ConsumeError> {
    let stream = node.nats.names().dispatch_stream(&node.app);
    let config = PullConfig { bears_refusals: BEARS_REFUSALS, ..PullConfig::default() };
    let mut pull = Pull::new(node.nats.js(), stream, on_instance(&node.instance), config);
    let places = Arc::new(Semaphore::new(node.handlers.len().clamp(1, MOST_WAITING)));
    let mut reserved = Vec::new();
    loop {
        let next = pull.next_slot(&places, &mut reserved);
        match node.phase.draining.run_until_cancelled(next).await {
            Some(next) => {
                let (received, place) = next?;
                node.attempts.spawn(run::pinned(node.clone(), received, place));
            }
            None => break,
        }
    }
    for received in pull.stop().await {
        let node = node.clone();
        if let Some(place) = reserved.pop() {
            node.attempts.clone().spawn(run::pinned(node, received, place));
            continue;
        }
        node.attempts
            .clone()
            .spawn(async move { settle::hand_back(&node, &received.delivery).await });
    }
    Ok(())
}

/// Waits for a slot of `handler`; then the place among those that wait is free. Nothing when the
/// lease ends first, or the drain time: nobody else could begin it, so it has all of that.
///
/// A handler that is not there needs none: then the place itself is returned.
pub(crate) async fn slot(
    node: &Node,
    handler: &Handler,
    lease: &Lease,
    place: OwnedSemaphorePermit,
) -> Option<OwnedSemaphorePermit> {
    let Some(desk) = node.handlers.get(handler) else { return Some(place) };
    let free = desk.room.clone().acquire_owned();
    tokio::pin!(free);
    // It must stand in the line before one is given back.
    if let Poll::Ready(slot) = futures::poll!(free.as_mut()) {
        return slot.ok();
    }
    loop {
        // The pull keeps all free slots for what it has asked for; it gives one back.
        desk.wanted.notify_one();
        tokio::select! {
            biased;
            slot = &mut free => return slot.ok(),
            () = lease.lost() => return None,
            () = node.phase.drained.cancelled() => return None,
            () = tokio::time::sleep(ASK) => {}
        }
    }
}
