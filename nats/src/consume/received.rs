//! What comes on a pull inbox.

use async_nats::Message;

use crate::lease::{Delivery, Uptime};

/// One delivered message.
#[derive(Debug, Clone)]
pub struct Received {
    /// What was delivered, and how to acknowledge it.
    pub delivery: Delivery,
    /// The subject, headers and body.
    pub message: Message,
    /// The lease did not begin before this: usually a moment ago, and long ago when this process
    /// stood still meanwhile. Count it from here.
    pub at: Uptime,
}

/// What can come of waiting once.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "almost every event is a message")]
pub(crate) enum Event {
    Received(Received),
    /// A sign of life, with the consumer's last delivery where the server tells it.
    Heartbeat {
        last_delivered: Option<u64>,
    },
    /// No request is open any more: the consumer had no more, or has sent all that was asked for.
    Ended,
    /// The requests were dropped; they are made anew at the next call.
    Lost,
}

impl Received {
    /// Reads a message of a pull inbox; none when no consumer delivered it.
    pub(super) fn of(message: Message, since: Uptime) -> Option<Self> {
        let Some(delivery) = Delivery::of(&message) else {
            if message.status.is_none() {
                tracing::warn!(subject = %message.subject, "A message on a pull inbox came from no consumer.");
            }
            return None;
        };
        Some(Self { delivery, message, at: since })
    }
}
