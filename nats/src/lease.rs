//! The lease of a delivered message: acknowledging it, keeping it, and knowing when it is lost.
//!
//! Every acknowledgement is a request to the message's reply subject whose answer is looked at:
//! async-nats's `double_ack` takes "no responders" for success (fact 3). Never a NAK with a delay:
//! it counts against `max_ack_pending` (fact 5).
//!
//! *Invariant: a lease ends no later than the send time of its last confirmed `+WPI` plus its
//! length*, on a clock that counts suspend (decision 22). The server counts from when it got the
//! `+WPI`, which is later; so the holder stops first. NATS fences no acknowledgement: a confirmed
//! `+WPI` proves nothing once the consumer was deleted and made again.

mod clock;
mod delivery;
mod renew;

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

pub use self::clock::Uptime;
pub use self::delivery::Delivery;
pub use self::renew::{Lease, Renewer};
use crate::publish::{AskError, Publisher, pause};

/// How long one acknowledgement waits for its answer.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Why an acknowledgement was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AckError {
    /// No answer came, however often it was tried: the message may come again.
    #[error("the server did not confirm the acknowledgement: {0}")]
    Unconfirmed(AskError),
    /// The server answered with an error: the consumer or the message is gone, say.
    #[error("the server refused the acknowledgement: {0}")]
    Refused(String),
}

/// The four answers to a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Ack,
    Progress,
    Nak,
    Term,
}

impl Answer {
    fn body(self) -> Bytes {
        Bytes::from_static(match self {
            Answer::Ack => b"+ACK",
            Answer::Progress => b"+WPI",
            Answer::Nak => b"-NAK",
            Answer::Term => b"+TERM",
        })
    }
}

/// Done: the message leaves a work queue. Tried again for up to `deadline`.
///
/// # Errors
/// [`AckError`]. A repeated ack is confirmed like the first.
pub async fn ack(
    publisher: &Publisher,
    delivery: &Delivery,
    deadline: Duration,
) -> Result<(), AckError> {
    answer(publisher, delivery, Answer::Ack, deadline).await
}

/// Not done: the message is delivered again at once, to anyone. Tried for up to `deadline`.
///
/// # Errors
/// [`AckError`].
pub async fn nak(
    publisher: &Publisher,
    delivery: &Delivery,
    deadline: Duration,
) -> Result<(), AckError> {
    answer(publisher, delivery, Answer::Nak, deadline).await
}

/// Never deliver it again, though it was not done. Tried for up to `deadline`.
///
/// # Errors
/// [`AckError`].
pub async fn term(
    publisher: &Publisher,
    delivery: &Delivery,
    deadline: Duration,
) -> Result<(), AckError> {
    answer(publisher, delivery, Answer::Term, deadline).await
}

/// Still at it (`+WPI`): the lease runs anew from when the server gets this. Tried for up to
/// `deadline`. [`Renewer`] does it by itself.
///
/// # Errors
/// [`AckError`].
pub async fn progress(
    publisher: &Publisher,
    delivery: &Delivery,
    deadline: Duration,
) -> Result<(), AckError> {
    answer(publisher, delivery, Answer::Progress, deadline).await
}

/// Acks without asking for an answer: only where a second delivery is harmless, as in the log
/// writer, whose transitions are guarded. It may be lost without a word.
pub async fn ack_unconfirmed(client: &async_nats::Client, delivery: &Delivery) {
    let send = client.publish(delivery.reply.clone(), Answer::Ack.body());
    let _ = tokio::time::timeout(ATTEMPT, send).await;
}

async fn answer(
    publisher: &Publisher,
    delivery: &Delivery,
    answer: Answer,
    deadline: Duration,
) -> Result<(), AckError> {
    let end = Instant::now() + deadline;
    let mut attempt = 0;
    loop {
        let left = end.saturating_duration_since(Instant::now()).min(ATTEMPT);
        let error = match once(publisher, delivery, answer, left).await {
            Err(AckError::Unconfirmed(error)) => error,
            settled => return settled,
        };
        if Instant::now() >= end {
            return Err(AckError::Unconfirmed(error));
        }
        tokio::select! {
            () = pause(attempt) => {}
            () = tokio::time::sleep_until(end) => return Err(AckError::Unconfirmed(error)),
        }
        attempt += 1;
    }
}

async fn once(
    publisher: &Publisher,
    delivery: &Delivery,
    answer: Answer,
    within: Duration,
) -> Result<(), AckError> {
    let asked = publisher.ask(&delivery.reply, None, answer.body(), within).await;
    let reply = asked.map_err(AckError::Unconfirmed)?;
    if reply.payload.is_empty() || reply.payload.starts_with(b"+OK") {
        return Ok(());
    }
    Err(AckError::Refused(String::from_utf8_lossy(&reply.payload).into_owned()))
}
