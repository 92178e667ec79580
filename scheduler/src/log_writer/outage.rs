//! SQL being down: waited out, and said once and then at growing intervals.

use std::time::Duration;

use tokio::time::Instant;

use super::Parts;
use crate::store::StoreError;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
const FIRST_WORD: Duration = Duration::from_secs(10);
const LONGEST_WORD: Duration = Duration::from_secs(600);

/// One stretch of time in which SQL does not work.
#[derive(Debug, Default)]
pub(super) struct Outage {
    since: Option<Instant>,
    pause: Duration,
    said: Option<Instant>,
    say_again: Duration,
}

impl Outage {
    /// SQL failed; returns how long to wait before the next try.
    pub(super) fn met(&mut self, error: &StoreError, parts: &Parts) -> Duration {
        let now = Instant::now();
        let since = *self.since.get_or_insert(now);
        if self.said.is_none_or(|said| said.elapsed() >= self.say_again) {
            tracing::error!(
                %error,
                for_s = since.elapsed().as_secs(),
                "History cannot be written; results wait in NATS and nothing is lost. It is tried until it works."
            );
            self.said = Some(now);
            self.say_again = (self.say_again * 2).clamp(FIRST_WORD, LONGEST_WORD);
            let at = parts.clock.now();
            parts.status.update(|status| {
                status.outage_since.get_or_insert(at);
                status.outage = Some(error.to_string());
            });
        }
        self.pause = (self.pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        self.pause
    }

    /// SQL works.
    pub(super) fn over(&self, parts: &Parts) {
        let Some(since) = self.since else { return };
        tracing::info!(after_s = since.elapsed().as_secs(), "History is written again.");
        parts.status.update(|status| {
            status.outage_since = None;
            status.outage = None;
        });
    }
}
