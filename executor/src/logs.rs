//! Lines that handlers write to their runs' logs, on their way to the logs stream.
//!
//! Lines of one attempt and one level join into one message. *Invariant: a handler never waits
//! for its log*, and the buffer is bounded: what does not fit is counted, and the log says so.
//! The buffer is looked at by a timer, so that a handler which blocks its thread holds up no log
//! but its own: a task that it woke could be stuck behind it (tokio's LIFO slot).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::join_all;
use taskparty_common::name::{App, JobId};
use taskparty_nats::publish::{Draft, Publisher};
use taskparty_nats::subject::Names;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The longest line, in bytes; more is cut.
const MAX_LINE: usize = 8 * 1024;

/// The bytes of one message at most.
const MAX_MESSAGE: usize = 64 * 1024;

/// Lines that wait at most, over all runs of the process.
const MAX_WAITING: usize = 16 * 1024;

/// Bytes that wait at most, over all runs of the process.
const MAX_WAITING_BYTES: usize = 8 << 20;

/// How long lines gather before they leave.
const GATHER: Duration = Duration::from_millis(50);

/// How long a message is tried before its lines are given up.
const DEADLINE: Duration = Duration::from_secs(10);

/// How much a line of a log matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// For whoever looks for a fault.
    Debug,
    /// What happens.
    Info,
    /// Unexpected, and dealt with.
    Warn,
    /// Somebody should look.
    Error,
}

impl Level {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Whose lines they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Writer {
    pub(crate) job: JobId,
    pub(crate) run: Uuid,
    pub(crate) shard: u32,
    pub(crate) attempt: u32,
}

#[derive(Debug)]
struct Line {
    writer: Arc<Writer>,
    level: Level,
    text: String,
    _room: OwnedSemaphorePermit,
}

/// The process's buffer, from the side of those who write.
#[derive(Debug, Clone)]
pub(crate) struct Logs {
    lines: mpsc::Sender<Line>,
    room: Arc<Semaphore>,
}

impl Logs {
    /// The log of one attempt.
    pub(crate) fn of(&self, writer: Writer) -> AttemptLog {
        AttemptLog { logs: self.clone(), writer: Arc::new(writer), left_out: AtomicU64::new(0) }
    }

    fn offer(&self, writer: &Arc<Writer>, level: Level, mut text: String) -> bool {
        text.truncate(text.floor_char_boundary(MAX_LINE));
        let bytes = u32::try_from(text.len()).unwrap_or(u32::MAX).max(1);
        let Ok(room) = self.room.clone().try_acquire_many_owned(bytes) else { return false };
        let line = Line { writer: writer.clone(), level, text, _room: room };
        self.lines.try_send(line).is_ok()
    }
}

/// The log of one attempt, as its handler writes to it.
#[derive(Debug)]
pub(crate) struct AttemptLog {
    logs: Logs,
    writer: Arc<Writer>,
    /// Lines left out since the log last said so.
    left_out: AtomicU64,
}

impl AttemptLog {
    pub(crate) fn write(&self, level: Level, text: String) {
        self.own_up();
        if !self.logs.offer(&self.writer, level, text) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Says in the log how many lines are missing before this place.
    fn own_up(&self) {
        let missing = self.left_out.swap(0, Ordering::Relaxed);
        if missing == 0 {
            return;
        }
        let text = format!("{missing} lines were left out: the log's buffer was full");
        if !self.logs.offer(&self.writer, Level::Warn, text) {
            self.left_out.fetch_add(missing, Ordering::Relaxed);
        }
    }
}

impl Drop for AttemptLog {
    fn drop(&mut self) {
        self.own_up();
    }
}

/// The buffer's other side: what carries the lines away.
#[derive(Debug)]
pub(crate) struct Carrier {
    lines: mpsc::Receiver<Line>,
}

/// An empty buffer.
pub(crate) fn buffer() -> (Logs, Carrier) {
    let (sender, lines) = mpsc::channel(MAX_WAITING);
    (Logs { lines: sender, room: Arc::new(Semaphore::new(MAX_WAITING_BYTES)) }, Carrier { lines })
}

impl Carrier {
    /// Publishes what is written until `end`, and then what is still there.
    pub(crate) async fn run(
        mut self,
        publisher: Publisher,
        names: Names,
        app: App,
        end: CancellationToken,
    ) {
        while tokio::time::timeout(GATHER, end.cancelled()).await.is_err() {
            self.carry(&publisher, &names, &app).await;
        }
        self.lines.close();
        self.carry(&publisher, &names, &app).await;
    }

    async fn carry(&mut self, publisher: &Publisher, names: &Names, app: &App) {
        let lines = std::iter::from_fn(|| self.lines.try_recv().ok());
        let messages = joined(lines);
        let sent = join_all(messages.into_iter().map(|message| async move {
            let lines = message.lines;
            let draft = message.draft(names, app);
            (lines, publisher.publish_within(draft, DEADLINE).await)
        }));
        for (lines, result) in sent.await {
            if let Err(error) = result {
                tracing::warn!(lines, %error, "Lines of runs' logs could not be stored.");
            }
        }
    }
}

/// Lines that leave together.
struct Message {
    writer: Arc<Writer>,
    level: Level,
    text: String,
    lines: usize,
}

impl Message {
    fn draft(self, names: &Names, app: &App) -> Draft {
        let writer = &self.writer;
        let subject = names.log(app, &writer.job);
        Draft::new(subject, self.text)
            .header("Taskparty-Run", writer.run.to_string())
            .header("Taskparty-Shard", writer.shard.to_string())
            .header("Taskparty-Attempt", writer.attempt.to_string())
            .header("Taskparty-Level", self.level.as_str())
    }
}

/// Joins lines of one attempt that have one level and follow each other in that attempt.
fn joined(lines: impl Iterator<Item = Line>) -> Vec<Message> {
    let mut messages: Vec<Message> = Vec::new();
    let mut last: HashMap<Arc<Writer>, usize> = HashMap::new();
    for line in lines {
        let open = last.get(&line.writer).and_then(|at| messages.get_mut(*at));
        if let Some(message) = open
            && message.level == line.level
            && message.text.len() + line.text.len() < MAX_MESSAGE
        {
            message.text.push('\n');
            message.text.push_str(&line.text);
            message.lines += 1;
            continue;
        }
        last.insert(line.writer.clone(), messages.len());
        messages.push(Message {
            writer: line.writer,
            level: line.level,
            text: line.text,
            lines: 1,
        });
    }
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writer(shard: u32) -> Writer {
        Writer { job: JobId::new("j").unwrap(), run: Uuid::nil(), shard, attempt: 1 }
    }

    fn waiting(carrier: &mut Carrier) -> Vec<Line> {
        std::iter::from_fn(|| carrier.lines.try_recv().ok()).collect()
    }

    #[test]
    fn lines_join_in_the_order_of_their_attempt() {
        let (logs, mut carrier) = buffer();
        let (a, b) = (logs.of(writer(0)), logs.of(writer(1)));
        for n in 0..3 {
            a.write(Level::Info, format!("a{n}"));
            b.write(Level::Info, format!("b{n}"));
        }
        a.write(Level::Warn, "careful".into());
        a.write(Level::Info, "a3".into());
        let messages = joined(waiting(&mut carrier).into_iter());
        let texts: Vec<_> = messages.iter().map(|m| (m.writer.shard, m.text.as_str())).collect();
        assert_eq!(texts, [(0, "a0\na1\na2"), (1, "b0\nb1\nb2"), (0, "careful"), (0, "a3")]);
    }

    #[test]
    fn a_full_buffer_leaves_lines_out_and_says_how_many() {
        let (logs, mut carrier) = buffer();
        let log = logs.of(writer(0));
        let fit = MAX_WAITING_BYTES / MAX_LINE;
        for _ in 0..fit + 5 {
            log.write(Level::Info, "é".repeat(MAX_LINE));
        }
        assert_eq!(waiting(&mut carrier).len(), fit);
        log.write(Level::Info, "again".into());
        let texts: Vec<_> = waiting(&mut carrier).into_iter().map(|line| line.text).collect();
        assert_eq!(texts, ["5 lines were left out: the log's buffer was full", "again"]);
    }
}
