//! Room in a stream that cannot bound itself.
//!
//! TRIGGERS holds schedules, and a stream with schedules drops old messages when it is full: they
//! would vanish without a word (decision 26). So it has no limit, and whoever publishes there looks
//! first.
//!
//! *Invariant: one question a second, however many ask.* The limit may be passed by what is
//! published in that second.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::connect::Nats;
use crate::history::stream_info;

/// How long an answer is good for.
const FRESH: Duration = Duration::from_secs(1);

/// There is no room.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{stream} holds {bytes} bytes, the most it may hold is {most}")]
pub struct NoRoom {
    /// The stream.
    pub stream: String,
    /// What it holds.
    pub bytes: u64,
    /// What it may hold.
    pub most: u64,
}

/// Whether a stream holds less than it may. Cheap to clone; clones share what they have seen.
#[derive(Debug, Clone)]
pub struct Room {
    nats: Nats,
    stream: String,
    most: u64,
    seen: Arc<Mutex<Option<(Instant, u64)>>>,
}

impl Room {
    /// Room in `stream`, which is to hold at most `most` bytes.
    pub fn new(nats: Nats, stream: impl Into<String>, most: u64) -> Self {
        Self { nats, stream: stream.into(), most, seen: Arc::default() }
    }

    /// Whether there is room. A stream that cannot be asked has: the publish will tell.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub async fn check(&self) -> Result<(), NoRoom> {
        let mut seen = self.seen.lock().await;
        let fresh = seen.filter(|(at, _)| at.elapsed() < FRESH);
        let bytes = match fresh {
            Some((_, bytes)) => bytes,
            None => match stream_info(self.nats.js(), &self.stream).await {
                Ok(info) => info.bytes,
                Err(error) => {
                    tracing::debug!(stream = self.stream, %error, "A stream's size is not known.");
                    return Ok(());
                }
            },
        };
        *seen = Some((fresh.map_or_else(Instant::now, |(at, _)| at), bytes));
        if bytes < self.most {
            return Ok(());
        }
        Err(NoRoom { stream: self.stream.clone(), bytes, most: self.most })
    }
}
