//! What is stored: single messages as the stream's leader has them, and stretches of a stream.
//!
//! *Invariant: every read here is right at the moment it is made.* Reads that any replica may
//! answer are a few per cent stale on a healthy cluster (fact 2), so single messages are asked of
//! the leader, and a stretch is only ended when the last message that the leader knew at the
//! beginning has been seen.

mod leader;
mod stretch;

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::header::NATS_MESSAGE_ID;
use bytes::Bytes;
use chrono::{DateTime, Utc};

pub use self::leader::{
    ConsumerInfo, StreamInfo, consumer_info, delete_consumer, delete_message, last_by_subject,
    message, next_by_subject, purge_subject, stream_info,
};
pub use self::stretch::{Start, read};
pub(crate) use self::stretch::{create_consumer, ephemeral};

/// How long a single question to the leader is tried.
pub const ASK_DEADLINE: Duration = Duration::from_secs(10);

/// A message as it is stored in a stream.
#[derive(Debug, Clone)]
pub struct Record {
    /// The subject it was published to.
    pub subject: String,
    /// Its sequence in the stream.
    pub seq: u64,
    /// Its headers; empty when it has none.
    pub headers: HeaderMap,
    /// Its body.
    pub payload: Bytes,
    /// When the stream stored it, by the server's clock.
    pub stored_at: DateTime<Utc>,
}

impl Record {
    /// The id it was published with.
    pub fn id(&self) -> Option<&str> {
        self.headers.get(NATS_MESSAGE_ID).map(async_nats::HeaderValue::as_str)
    }

    /// Whether it says that its key has no value: a deletion, a purge, or the server's mark that
    /// the last value expired.
    pub fn is_marker(&self) -> bool {
        is_marker(&self.headers)
    }
}

/// Whether these are the headers of a deletion, a purge, or an expiry of a key.
pub(crate) fn is_marker(headers: &HeaderMap) -> bool {
    let operation = headers.get("KV-Operation").map(async_nats::HeaderValue::as_str);
    matches!(operation, Some("DEL" | "PURGE")) || headers.get("Nats-Marker-Reason").is_some()
}

/// Why something stored could not be read or removed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// There is no such stream.
    #[error("there is no stream {0}")]
    NoStream(String),
    /// The server refused for good.
    #[error("the server refused: {0}")]
    Refused(String),
    /// It could not be done in time; nothing is known.
    #[error("the server did not answer in time: {0}")]
    Unanswered(String),
}
