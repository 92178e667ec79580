//! What is said of a server that refuses pulls: once, and once when it takes them again.

use std::time::Duration;

use tokio::time::Instant;

/// The refusals since the last sign of life.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    since: Option<Instant>,
    said: bool,
}

impl Refusals {
    /// The server refused once more; that is worth a word when it has done so for longer than `bears`.
    pub(super) fn one(&mut self, stream: &str, consumer: &str, reason: &str, bears: Duration) {
        let since = self.since.get_or_insert_with(Instant::now);
        if !self.said && since.elapsed() >= bears {
            self.said = true;
            tracing::warn!(%stream, %consumer, reason, "Pulling does not work now; it is tried until it does.");
        }
    }

    /// The server is there.
    pub(super) fn over(&mut self, stream: &str, consumer: &str) {
        if self.said {
            tracing::info!(%stream, %consumer, "Pulling works again.");
        }
        *self = Self::default();
    }
}
