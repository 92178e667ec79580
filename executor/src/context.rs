//! What a handler is told about its run, and what it can say while it runs.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use taskparty_common::dispatch::Dispatch;
use taskparty_common::name::{App, Handler, Instance, JobId};
use taskparty_common::outcome::Trigger;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use uuid::Uuid;

use crate::handler::HandlerError;
use crate::logs::{AttemptLog, Level};
use crate::progress::ProgressSender;

/// One attempt at one shard of a run, as its handler sees it. Cheap to clone; clones may go into
/// tasks and threads of the handler's own.
#[derive(Debug, Clone)]
pub struct Context {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// The work, its params taken out.
    dispatch: Dispatch,
    delivery: u64,
    instance: Instance,
    deadline: Option<(Instant, DateTime<Utc>)>,
    stop: CancellationToken,
    log: AttemptLog,
    progress: ProgressSender,
}

/// What a [`Context`] is made of.
pub(crate) struct ContextParts {
    pub(crate) dispatch: Dispatch,
    pub(crate) delivery: u64,
    pub(crate) instance: Instance,
    pub(crate) started: DateTime<Utc>,
    pub(crate) stop: CancellationToken,
    pub(crate) log: AttemptLog,
    pub(crate) progress: ProgressSender,
}

impl Context {
    pub(crate) fn new(parts: ContextParts) -> Self {
        let deadline = parts.dispatch.timeout_ms.and_then(|ms| {
            let timeout = Duration::from_millis(ms);
            let at =
                parts.started.checked_add_signed(chrono::TimeDelta::from_std(timeout).ok()?)?;
            Some((Instant::now().checked_add(timeout)?, at))
        });
        Self {
            inner: Arc::new(Inner {
                dispatch: parts.dispatch,
                delivery: parts.delivery,
                instance: parts.instance,
                deadline,
                stop: parts.stop,
                log: parts.log,
                progress: parts.progress,
            }),
        }
    }

    /// The run.
    pub fn run(&self) -> Uuid {
        self.inner.dispatch.run
    }

    /// The job.
    pub fn job(&self) -> &JobId {
        &self.inner.dispatch.job
    }

    /// The app.
    pub fn app(&self) -> &App {
        &self.inner.dispatch.app
    }

    /// The handler's own name.
    pub fn handler(&self) -> &Handler {
        &self.inner.dispatch.handler
    }

    /// The process in which it runs.
    pub fn instance(&self) -> &Instance {
        &self.inner.instance
    }

    /// Which shard this is, from 0.
    pub fn shard_index(&self) -> u32 {
        self.inner.dispatch.shard.index
    }

    /// How many shards the run has; 1 when the job is not sharded. The same for all of a run.
    pub fn shard_total(&self) -> u32 {
        self.inner.dispatch.shard.total
    }

    /// This shard's own item of the job's `shard_params`; none when there is no such item.
    ///
    /// # Errors
    /// A fatal error when the item is no `T`: no retry makes it one.
    pub fn shard_param<T: DeserializeOwned>(&self) -> Result<Option<T>, HandlerError> {
        let Some(param) = &self.inner.dispatch.shard.param else { return Ok(None) };
        serde_json::from_str(param.get()).map(Some).map_err(|error| {
            HandlerError::fatal(format!("the shard's param does not fit: {error}"))
        })
    }

    /// Which try this is, from 1. A retry is a new attempt.
    pub fn attempt(&self) -> u32 {
        self.inner.dispatch.attempt
    }

    /// How often this attempt was handed out, this time included: above 1 when an executor before
    /// took it and went away. What it did before it went may be done already.
    pub fn delivery(&self) -> u64 {
        self.inner.delivery
    }

    /// Why the job is due.
    pub fn trigger(&self) -> Trigger {
        self.inner.dispatch.trigger
    }

    /// The nominal instant: when the job was due. Use it, and never the time now, to decide which
    /// day is to be settled; a late run or a retry then does the same as one on time.
    pub fn fire_time(&self) -> DateTime<Utc> {
        self.inner.dispatch.fire_time
    }

    /// When the work was put in the stream.
    pub fn dispatched_at(&self) -> DateTime<Utc> {
        self.inner.dispatch.dispatched_at
    }

    /// The zone of the job's schedule, an IANA name.
    pub fn timezone(&self) -> &str {
        &self.inner.dispatch.timezone
    }

    /// When the handler will be stopped; none when it may take as long as it likes.
    pub fn deadline(&self) -> Option<DateTime<Utc>> {
        self.inner.deadline.map(|(_, at)| at)
    }

    /// How long the handler still has, on a monotonic clock.
    pub fn time_left(&self) -> Option<Duration> {
        let (end, _) = self.inner.deadline?;
        Some(end.saturating_duration_since(Instant::now()))
    }

    pub(crate) fn deadline_instant(&self) -> Option<Instant> {
        self.inner.deadline.map(|(end, _)| end)
    }

    /// `<run>/<shard>`: the same on every attempt and every delivery. Delivery is at least once;
    /// give this key to whatever must happen only once.
    pub fn idempotency_key(&self) -> &str {
        &self.inner.dispatch.idempotency_key
    }

    /// Waits until the handler has to stop: cancelled by someone, past its deadline, its lease
    /// lost, or the service shutting down with the drain time over. A second later the handler's
    /// future is dropped (at once for deadline and lease), so this is for what a drop does not
    /// stop: threads, and tasks of the handler's own.
    pub fn cancelled(&self) -> WaitForCancellationFuture<'_> {
        self.inner.stop.cancelled()
    }

    /// Whether the handler has to stop.
    pub fn is_cancelled(&self) -> bool {
        self.inner.stop.is_cancelled()
    }

    /// The token behind [`Context::cancelled`], for APIs that take one.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.inner.stop
    }

    /// Writes to the run's log (`taskparty run logs`). Never waits: when the buffer is full, as
    /// while NATS is away, the line is left out, and the log says how many were. A line over
    /// 8 KiB is cut.
    pub fn log(&self, level: Level, text: impl Into<String>) {
        self.inner.log.write(level, text.into());
    }

    /// [`Context::log`] at level info.
    pub fn info(&self, text: impl Into<String>) {
        self.log(Level::Info, text);
    }

    /// [`Context::log`] at level warn.
    pub fn warn(&self, text: impl Into<String>) {
        self.log(Level::Warn, text);
    }

    /// Says how far the run is, in a unit of the handler's own. Call it as often as you like: the
    /// latest goes out about once a second, and the last one before the result.
    pub fn progress(&self, done: u64, total: impl Into<Option<u64>>, note: impl Into<String>) {
        self.inner.progress.set(done, total.into(), note.into());
    }
}
