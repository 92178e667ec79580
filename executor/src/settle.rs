//! The end of a delivery: reported and acked, or handed back.
//!
//! *Invariant: the dispatch is acked only after its result is stored.* An executor that dies
//! between the two leaves a dispatch that runs again, and a result that wins; never a run without
//! a result.
//!
//! *Invariant: an ack that is not confirmed keeps no slot.* A consumer that was deleted and made anew
//! ignores the ack of what it has not delivered itself, and it delivers nothing to whoever has no slot.

use std::time::Duration;

use async_nats::connection::State;
use taskparty_common::dispatch::ResultRecord;
use taskparty_common::outcome::Code;
use taskparty_nats::fail_point;
use taskparty_nats::lease::{self, AckError, Delivery, Lease};
use taskparty_nats::publish::PublishError;
use tokio::time::Instant;
use uuid::Uuid;

use crate::node::Node;

/// For how long an ack is tried while there is a connection: a consumer that ignores it may confirm all the while that the lease
/// goes on.
const ACKS: Duration = Duration::from_secs(60);

/// How long one acknowledgement is tried before it is said that it takes long.
const ACK_DEADLINE: Duration = Duration::from_secs(5);

/// How long it is tried to hand work back. Past that, its lease ends by itself.
const HAND_BACK: Duration = Duration::from_secs(2);

/// The pause before a result that was not stored is sent again.
const PAUSE: Duration = Duration::from_millis(500);

/// Stores `record`, then acks its dispatch. Storing goes on for as long as the lease is kept, the ack
/// for [a minute](ACKS) at most; once the lease is lost another has the work, and this holder says nothing more (decision 22). Its `slot` is given
/// back with the ack, or when that takes long.
pub(crate) async fn report(
    node: &Node,
    delivery: &Delivery,
    lease: &Lease,
    record: ResultRecord,
    slot: impl Send,
) {
    let run = record.run;
    tokio::select! {
        biased;
        () = lease.lost() => {
            tracing::warn!(%run, "A lease was lost before the result was stored and acked.");
        }
        () = settle(node, delivery, record, slot) => {}
    }
}

async fn settle(node: &Node, delivery: &Delivery, record: ResultRecord, slot: impl Send) {
    let run = record.run;
    fail_point!("executor.before_result");
    if !store(node, record).await {
        return;
    }
    fail_point!("executor.before_ack");
    ack(node, delivery, run, slot).await;
}

/// Acks the dispatch of what is reported; it may be delivered again when that fails for long.
pub(crate) async fn ack(node: &Node, delivery: &Delivery, run: Uuid, slot: impl Send) {
    let mut slot = Some(slot);
    let mut end = Instant::now() + ACKS;
    loop {
        match lease::ack(&node.publisher, delivery, ACK_DEADLINE).await {
            Ok(()) => return,
            Err(AckError::Unconfirmed(error)) if Instant::now() < end => {
                tracing::warn!(%run, %error, "A dispatch was not acked yet; trying again.");
                drop(slot.take());
                if node.nats.client().connection_state() != State::Connected {
                    end = Instant::now() + ACKS;
                }
            }
            Err(error) => {
                tracing::warn!(%run, %error, "A dispatch could not be acked and may be delivered again.");
                return;
            }
        }
    }
}

/// Tries until it is stored; false when it can never be.
async fn store(node: &Node, mut record: ResultRecord) -> bool {
    let subject = node.nats.names().result(&node.app);
    let mut shortened = false;
    let mut said = false;
    loop {
        let line = match serde_json::to_vec(&record) {
            Ok(line) => line,
            Err(error) => {
                tracing::error!(run = %record.run, %error, "A result could not be written as JSON.");
                return false;
            }
        };
        match node.joiner.send(&subject, line).await {
            Ok(_) => {
                node.live.reported(&record);
                return true;
            }
            Err(PublishError::TooLarge(text)) if !shortened => {
                tracing::warn!(run = %record.run, text, "A result goes out without its output, which the server does not take.");
                shortened = true;
                record.output = None;
                record.truncated = true;
                record.code.get_or_insert(Code::OutputTooLarge);
                continue;
            }
            Err(error) if !said => {
                said = true;
                tracing::warn!(run = %record.run, %error, "A result was not stored yet; trying while the lease is kept.");
            }
            Err(_) => {}
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Gives the work to whoever else there is, at once.
pub(crate) async fn hand_back(node: &Node, delivery: &Delivery) {
    if let Err(error) = lease::nak(&node.publisher, delivery, HAND_BACK).await {
        tracing::warn!(seq = delivery.stream_seq, %error, "Work could not be handed back; it is delivered again when its lease ends.");
    }
}

/// Removes a message that nobody will ever understand.
pub(crate) async fn discard(node: &Node, delivery: &Delivery) {
    if let Err(error) = lease::term(&node.publisher, delivery, ACK_DEADLINE).await {
        tracing::warn!(seq = delivery.stream_seq, %error, "A message that cannot be read could not be removed.");
    }
}
