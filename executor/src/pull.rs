//! Taking work: one pull a handler, for as many messages as it has free slots.
//!
//! The executor only binds to its consumers, which the scheduler makes when it sees the registry
//! entry. *Invariant: no message is in memory without a slot of its own.*

use std::sync::Arc;

use taskparty_common::dispatch::Dispatch;
use taskparty_common::name::Handler;
use taskparty_nats::consume::{ConsumeError, Pull, PullConfig, Received};
use tokio::sync::OwnedSemaphorePermit;

use crate::node::{Desk, Node};
use crate::{run, settle};

/// Pulls until the executor drains, then hands back what had arrived and not begun.
///
/// # Errors
/// [`ConsumeError::Closed`] when the connection will not come back.
pub(crate) async fn pull(
    node: Arc<Node>,
    handler: Handler,
    desk: Desk,
) -> Result<(), ConsumeError> {
    let stream = node.nats.names().dispatch_stream(&node.app);
    let mut pull = Pull::new(node.nats.js(), stream, handler.as_str(), PullConfig::default());
    let mut reserved = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = node.phase.draining.cancelled() => break,
            () = desk.wanted.notified() => {
                // Slots that are kept for what was asked for are not free; one has to be.
                let arrived = if reserved.is_empty() { Vec::new() } else { pull.take_back().await };
                for received in arrived {
                    begin_or_hand_back(&node, received, &mut reserved);
                }
                drop(reserved.pop());
            }
            next = pull.next_slot(&desk.room, &mut reserved) => {
                let (received, slot) = next?;
                node.attempts.spawn(run::attempt(node.clone(), received, slot));
            }
        }
    }
    for received in pull.stop().await {
        hand_back(&node, received, &mut reserved);
    }
    Ok(())
}

/// Begins `received` in a slot that was kept for it.
fn begin_or_hand_back(
    node: &Arc<Node>,
    received: Received,
    reserved: &mut Vec<OwnedSemaphorePermit>,
) {
    match reserved.pop() {
        Some(slot) => {
            node.attempts.spawn(run::attempt(node.clone(), received, slot));
        }
        // No more can come than was asked for; should it be so, it is not ours.
        None => hand_back(node, received, reserved),
    }
}

/// Gives `received` to whoever else there is. One that may not be delivered again is begun
/// instead: handed back it would be lost without ever having started.
fn hand_back(node: &Arc<Node>, received: Received, reserved: &mut Vec<OwnedSemaphorePermit>) {
    let last = serde_json::from_slice::<Dispatch>(&received.message.payload)
        .is_ok_and(|dispatch| received.delivery.delivered >= dispatch.max_deliveries);
    match reserved.pop() {
        Some(slot) if last => {
            node.attempts.spawn(run::attempt(node.clone(), received, slot));
        }
        _ => {
            let node = node.clone();
            node.attempts
                .clone()
                .spawn(async move { settle::hand_back(&node, &received.delivery).await });
        }
    }
}
