//! Taking work: for each handler as many messages as it has free slots, the most urgent ones first.
//!
//! Work of a priority that is not the default stands in a line of its own, which the scheduler tells of
//! when there is one. The executor only binds to its consumers, which the scheduler makes when it sees the registry
//! entry. *Invariant: no message is in memory without a slot of its own.*

use std::collections::BTreeSet;
use std::sync::Arc;

use taskparty_common::dispatch::Dispatch;
use taskparty_common::name::Handler;
use taskparty_common::priority::Priority;
use taskparty_nats::consume::{ConsumeError, Lines, PullConfig, Received};
use taskparty_nats::subject::of_priority;
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
    let mut priorities = desk.priorities.subscribe();
    let lines = |priorities: &BTreeSet<Priority>| {
        let consumers: Vec<_> = priorities.iter().map(|one| of_priority(&handler, *one)).collect();
        Lines::new(node.nats.js(), &stream, &consumers, &PullConfig::default())
    };
    let mut pull = lines(&priorities.borrow_and_update());
    let mut reserved = Vec::new();
    loop {
        tokio::select! {
            biased;
            () = node.phase.draining.cancelled() => break,
            // The sender lives as long as the desk.
            _ = priorities.changed() => {
                let next = lines(&priorities.borrow_and_update());
                for received in std::mem::replace(&mut pull, next).stop().await {
                    begin_or_hand_back(&node, received, &mut reserved);
                }
            }
            () = desk.wanted.notified() => {
                // Slots that are kept for what was asked for are not free; one has to be.
                let kept = reserved.len();
                let arrived = if kept == 0 { Vec::new() } else { pull.make_room(kept).await };
                for received in arrived {
                    begin_or_hand_back(&node, received, &mut reserved);
                }
                if reserved.len() > pull.asked() {
                    drop(reserved.pop());
                }
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
