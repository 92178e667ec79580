//! The server's words about pull requests: messages with a status and no body.

use async_nats::header::NATS_LAST_CONSUMER;
use async_nats::{HeaderMap, Message};

/// What a status message means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Status {
    /// It is there and has nothing to send.
    Heartbeat { last_delivered: Option<u64> },
    /// The request has ended; so many of its messages were not sent, where it is said.
    Ended { unfilled: Option<usize> },
    /// The request was not taken; another may be, later.
    Busy(String),
    /// No request is open any more: the consumer is gone, or moved, or was never there.
    Gone(String),
}

impl Status {
    /// The status of `message`; none when it is an ordinary message.
    pub(super) fn of(message: &Message) -> Option<Self> {
        let code = message.status?.as_u16();
        let words = message.description.clone().unwrap_or_default();
        Some(match code {
            100 => Self::Heartbeat { last_delivered: number(message, NATS_LAST_CONSUMER) },
            404 | 408 => Self::Ended { unfilled: number(message, "Nats-Pending-Messages") },
            409 if words.to_ascii_lowercase().contains("exceeded max") => Self::Busy(words),
            409 if words.eq_ignore_ascii_case("Batch Completed") => {
                Self::Ended { unfilled: number(message, "Nats-Pending-Messages") }
            }
            503 => Self::Gone("there is no such consumer, or it has no leader now".into()),
            _ => Self::Gone(format!("{code} {words}")),
        })
    }
}

fn number<T: std::str::FromStr>(
    message: &Message,
    name: impl async_nats::header::IntoHeaderName,
) -> Option<T> {
    let headers: &HeaderMap = message.headers.as_ref()?;
    headers.get(name)?.as_str().parse().ok()
}
