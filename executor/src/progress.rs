//! How far a handler is: the latest word, about once a second.
//!
//! It is looked at by a timer. *Invariant: what a handler says wakes no task*: a task woken by one
//! that then blocks its thread would wait behind it (tokio's LIFO slot), and the attempt's own
//! task, which watches over timeout and lease, must not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskparty_common::dispatch::Progress;
use tokio::time::Instant;

use crate::report::Attempt;

/// How often progress goes out at most.
const PERIOD: Duration = Duration::from_secs(1);

/// The longest note, in bytes.
const MAX_NOTE: usize = 1024;

#[derive(Debug)]
struct Latest {
    done: u64,
    total: Option<u64>,
    note: String,
}

/// What was said last and has not gone out yet.
type Slot = Mutex<Option<Latest>>;

/// The handler's end.
#[derive(Debug, Clone)]
pub(crate) struct ProgressSender(Arc<Slot>);

impl ProgressSender {
    /// Replaces whatever was said before.
    pub(crate) fn set(&self, done: u64, total: Option<u64>, mut note: String) {
        note.truncate(note.floor_char_boundary(MAX_NOTE));
        let mut latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *latest = Some(Latest { done, total, note });
    }
}

/// The executor's end.
#[derive(Debug)]
pub(crate) struct ProgressReader {
    slot: Arc<Slot>,
    next: Instant,
}

/// The two ends for one attempt.
pub(crate) fn channel() -> (ProgressSender, ProgressReader) {
    let slot = Arc::<Slot>::default();
    (ProgressSender(slot.clone()), ProgressReader { slot, next: Instant::now() + PERIOD })
}

impl ProgressReader {
    /// Waits until a second has passed since the last look and there is something new to say.
    /// Dropping the future loses nothing.
    pub(crate) async fn due(&mut self, attempt: &Attempt) -> Progress {
        loop {
            tokio::time::sleep_until(self.next).await;
            self.next = Instant::now() + PERIOD;
            if let Some(progress) = self.unsaid(attempt) {
                return progress;
            }
        }
    }

    /// What was said last and has not gone out yet.
    pub(crate) fn unsaid(&self, attempt: &Attempt) -> Option<Progress> {
        let latest = self.slot.lock().unwrap_or_else(PoisonError::into_inner).take()?;
        Some(Progress {
            run: attempt.run,
            shard: attempt.shard.index,
            attempt: attempt.attempt,
            done: latest.done,
            total: latest.total,
            note: latest.note,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_latest_goes_out_and_the_last_word_is_kept() {
        let attempt: Attempt = serde_json::from_value(serde_json::json!({
            "run": uuid::Uuid::nil(), "job": "j", "shard": {"index": 0, "total": 1}, "attempt": 1,
            "fire_time": "2027-01-01T00:00:00Z",
        }))
        .unwrap();
        let (sender, mut reader) = channel();
        reader.next = Instant::now();
        assert!(reader.unsaid(&attempt).is_none());
        for done in 1..=100 {
            sender.set(done, Some(100), String::new());
        }
        assert_eq!(reader.due(&attempt).await.done, 100);
        sender.set(101, None, "n".repeat(2_000));
        let within_the_second =
            tokio::time::timeout(Duration::from_millis(5), reader.due(&attempt)).await;
        assert!(within_the_second.is_err());
        drop(sender);
        let last = reader.unsaid(&attempt).unwrap();
        assert_eq!((last.done, last.note.len()), (101, MAX_NOTE));
        assert!(reader.unsaid(&attempt).is_none());
    }
}
