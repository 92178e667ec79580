//! Joins small JSON lines of one subject into one message when busy.
//!
//! At rest each line is a message of its own, at once. While a few publishes of the subject wait
//! for their PubAcks, further lines gather; they leave together, as NDJSON, when one is confirmed.
//! So nothing waits for a timer, and the number of messages follows the load.
//!
//! *Invariant: a line over the size limit is refused alone* and never harms its neighbours. A
//! message that the server refuses fails each of its senders.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::publish::{Draft, PublishError, Publisher, Stored};

/// What the headers of a joined message take, with room to spare.
const HEADER_ROOM: usize = 1024;

/// How a [`Joiner`] behaves.
#[derive(Debug, Clone)]
pub struct JoinConfig {
    /// Publishes of one subject that wait for PubAcks at once; more lines gather. Default 2.
    pub in_flight: usize,
    /// The bytes of one joined message, newlines included. Default 512 KiB; never more than the
    /// server takes.
    pub message_bytes: usize,
    /// The bytes of lines that wait or are in flight, over all subjects; past it senders wait.
    /// Default 16 MiB.
    pub queue_bytes: usize,
    /// How long one message is tried. Default 60 s.
    pub deadline: Duration,
}

impl Default for JoinConfig {
    fn default() -> Self {
        Self {
            in_flight: 2,
            message_bytes: 512 << 10,
            queue_bytes: 16 << 20,
            deadline: Duration::from_secs(60),
        }
    }
}

/// Joins lines of any number of subjects. Cheap to clone; ends with [`Joiner::finish`].
#[derive(Debug, Clone)]
pub struct Joiner {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    publisher: Publisher,
    config: JoinConfig,
    /// A permit a byte of the queue.
    room: Arc<Semaphore>,
    /// The subjects that have lines in flight; a subject at rest has no entry.
    lanes: Mutex<HashMap<String, Lane>>,
    tasks: TaskTracker,
    abandon: CancellationToken,
}

/// One busy subject.
#[derive(Debug, Default)]
struct Lane {
    in_flight: usize,
    waiting: VecDeque<Line>,
}

#[derive(Debug)]
struct Line {
    bytes: Bytes,
    done: oneshot::Sender<Result<Stored, PublishError>>,
    _room: OwnedSemaphorePermit,
}

impl Joiner {
    /// A joiner that publishes through `publisher`.
    pub fn new(publisher: Publisher, config: JoinConfig) -> Self {
        let room = Arc::new(Semaphore::new(config.queue_bytes.min(Semaphore::MAX_PERMITS)));
        Self {
            shared: Arc::new(Shared {
                publisher,
                config,
                room,
                lanes: Mutex::default(),
                tasks: TaskTracker::new(),
                abandon: CancellationToken::new(),
            }),
        }
    }

    /// Sends one line to `subject`; returns when the message that holds it is stored.
    ///
    /// `line` is one JSON value without a line break; a trailing one is removed. Waits while the
    /// queue is full. Dropping the future before the line is queued sends nothing; later, the line
    /// goes out all the same.
    ///
    /// # Errors
    /// [`PublishError::TooLarge`] for a line over the limit, at once; else what the message that
    /// held it met. [`PublishError::Unconfirmed`] once the joiner is finished.
    pub async fn send(
        &self,
        subject: &str,
        line: impl Into<Bytes>,
    ) -> Result<Stored, PublishError> {
        let mut line = line.into();
        line.truncate(line.trim_ascii_end().len());
        let limit = self.shared.line_limit();
        if line.len() > limit {
            let text = format!("a line of {} bytes; at most {limit} fit", line.len());
            return Err(PublishError::TooLarge(text));
        }
        let bytes = u32::try_from(line.len() + 1).unwrap_or(u32::MAX);
        let room = self.shared.room.clone().acquire_many_owned(bytes).await;
        let _room = room.map_err(|_| ended())?;
        let (done, stored) = oneshot::channel();
        self.shared.enqueue(subject, Line { bytes: line, done, _room });
        stored.await.map_err(|_| ended())?
    }

    /// Takes no more lines, waits until all that were taken are stored, and gives up after
    /// `deadline`: whoever still waits gets [`PublishError::Unconfirmed`]. Safe to call twice.
    pub async fn finish(&self, deadline: Duration) {
        self.shared.room.close();
        self.shared.tasks.close();
        if tokio::time::timeout(deadline, self.shared.tasks.wait()).await.is_err() {
            tracing::warn!("Lines were still unconfirmed when the joiner had to end.");
            self.shared.abandon.cancel();
            self.shared.tasks.wait().await;
        }
    }
}

fn ended() -> PublishError {
    PublishError::Unconfirmed("the joiner has ended".into())
}

impl Shared {
    /// The largest line that is taken: it must fit a message alone, and the queue.
    fn line_limit(&self) -> usize {
        let message = self.publisher.client().max_payload().saturating_sub(HEADER_ROOM);
        message.min(self.config.queue_bytes.saturating_sub(1))
    }

    fn lanes(&self) -> MutexGuard<'_, HashMap<String, Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enqueue(self: &Arc<Self>, subject: &str, line: Line) {
        let mut lanes = self.lanes();
        let lane = match lanes.get_mut(subject) {
            Some(lane) => lane,
            None => lanes.entry(subject.to_owned()).or_default(),
        };
        lane.waiting.push_back(line);
        if lane.in_flight < self.config.in_flight.max(1) {
            lane.in_flight += 1;
            let lines = self.take(lane);
            drop(lanes);
            self.tasks.spawn(self.clone().drain(subject.to_owned(), lines));
        }
    }

    /// The lines of the next message: at least one, at most what fits.
    fn take(&self, lane: &mut Lane) -> Vec<Line> {
        let limit = self.config.message_bytes.min(self.line_limit());
        let mut size = 0;
        let mut lines = Vec::new();
        while let Some(next) = lane.waiting.front() {
            size += next.bytes.len() + 1;
            if size > limit && !lines.is_empty() {
                break;
            }
            lines.extend(lane.waiting.pop_front());
        }
        lines
    }

    /// Publishes `lines`, then whatever has gathered meanwhile, until the subject is at rest.
    async fn drain(self: Arc<Self>, subject: String, mut lines: Vec<Line>) {
        loop {
            self.publish(&subject, lines).await;
            let mut lanes = self.lanes();
            let Some(lane) = lanes.get_mut(&subject) else { return };
            lines = self.take(lane);
            if lines.is_empty() {
                lane.in_flight -= 1;
                if lane.in_flight == 0 {
                    lanes.remove(&subject);
                }
                return;
            }
        }
    }

    async fn publish(&self, subject: &str, lines: Vec<Line>) {
        let result = self.publish_payload(subject, joined(&lines)).await;
        if matches!(result, Err(PublishError::TooLarge(_))) && lines.len() > 1 {
            // The stream takes less than the server: let each line stand for itself.
            for line in lines {
                let alone = self.publish_payload(subject, line.bytes).await;
                let _ = line.done.send(alone);
            }
            return;
        }
        for line in lines {
            let _ = line.done.send(result.clone());
        }
    }

    async fn publish_payload(&self, subject: &str, bytes: Bytes) -> Result<Stored, PublishError> {
        let draft = Draft::new(subject, bytes);
        tokio::select! {
            result = self.publisher.publish_within(draft, self.config.deadline) => result,
            () = self.abandon.cancelled() => Err(ended()),
        }
    }
}

fn joined(lines: &[Line]) -> Bytes {
    if let [line] = lines {
        return line.bytes.clone();
    }
    let size = lines.iter().map(|line| line.bytes.len() + 1).sum();
    let mut bytes = Vec::with_capacity(size);
    for line in lines {
        if !bytes.is_empty() {
            bytes.push(b'\n');
        }
        bytes.extend_from_slice(&line.bytes);
    }
    bytes.into()
}
