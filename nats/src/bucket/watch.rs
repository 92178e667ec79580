//! A watch that survives reconnects, restarts and lost consumers.
//!
//! All current values, then [`Change::Ready`] (an empty bucket gives it too), then changes; after
//! a loss, everything is read again and only what changed meanwhile is told, vanished keys as
//! deletions. `Ready` comes once.
//!
//! *Invariant: `Ready` means that everything the leader had when the watch began has been told.*
//! The values come from one replica, which may lag; so the leader is asked for the last revision
//! that matches, and the watch is not ready before it has come.
//!
//! Keys whose age limit is the bucket's (`executors`) vanish without a message: who watches them
//! looks at [`Entry::created`] too.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::DeliverPolicy;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use uuid::Uuid;

use super::view::View;
use super::{Buckets, Entry};
use crate::consume::{ConsumeError, Event, Pull, PullConfig, Received};
use crate::history::{ReadError, Record, create_consumer, ephemeral, last_by_subject, stream_info};
use crate::lease::Uptime;
use crate::publish::pause;
use crate::subject::Bucket;

/// Messages that are on their way at once; and changes that wait for the watcher.
const AHEAD: usize = 512;

/// The server's sign of life. Decision 13 counts on hearing something within 4 s.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// What a watch tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A key has a new value, or none any more. A deletion of a key that was never told is not told.
    Entry(Entry),
    /// All that was there at the beginning has been told. Comes once.
    Ready,
}

/// How long ago a watch last heard from the server; outlives nothing, blocks nothing.
#[derive(Debug, Clone)]
pub struct Liveness {
    born: Uptime,
    /// Milliseconds from `born` to the last message or heartbeat; 0: none yet.
    heard: Arc<AtomicU64>,
}

impl Liveness {
    fn new() -> Self {
        Self { born: Uptime::now(), heard: Arc::default() }
    }

    fn hear(&self) {
        let since = u64::try_from(self.born.ago().as_millis()).unwrap_or(u64::MAX);
        self.heard.store(since, Ordering::Relaxed);
    }

    /// For how long nothing was heard, suspended time included; since the watch began when
    /// nothing ever was. A watcher that does not take its changes makes this grow, too.
    pub fn silent_for(&self) -> Duration {
        let heard = Duration::from_millis(self.heard.load(Ordering::Relaxed));
        self.born.plus(heard).ago()
    }
}

/// A running watch. Its task ends when it is dropped or its shutdown token is cancelled.
#[derive(Debug)]
pub struct Watch {
    changes: mpsc::Receiver<Change>,
    liveness: Liveness,
    _ends_task: DropGuard,
}

impl Watch {
    /// Watches the keys of `bucket` that match `filter` (`>`: all; `app.*`).
    ///
    /// Remembers each key and its revision for as long as it runs. A bucket that does not exist
    /// yet is waited for.
    pub fn start(
        buckets: &Buckets,
        bucket: Bucket,
        filter: &str,
        shutdown: &CancellationToken,
    ) -> Self {
        let (told, changes) = mpsc::channel(AHEAD);
        let liveness = Liveness::new();
        let stop = shutdown.child_token();
        let names = buckets.nats.names();
        let watcher = Watcher {
            buckets: buckets.clone(),
            stream: names.bucket_stream(bucket),
            prefix: names.key(bucket, ""),
            subject: names.key(bucket, filter),
            view: View::default(),
            told,
            ready: false,
            liveness: liveness.clone(),
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(watcher.run()));
        Self { changes, liveness, _ends_task: stop.drop_guard() }
    }

    /// The next change; none after shutdown or when the connection is closed for good. May be
    /// dropped at any point.
    pub async fn next(&mut self) -> Option<Change> {
        self.changes.recv().await
    }

    /// When the server was last heard; can be kept and asked from anywhere.
    pub fn liveness(&self) -> Liveness {
        self.liveness.clone()
    }
}

/// Why one reading of the bucket ended.
enum End {
    /// The consumer is lost, or a message was: read again.
    Lost(String),
    /// Nobody listens, or the connection is closed.
    Over,
}

impl From<ConsumeError> for End {
    fn from(_: ConsumeError) -> Self {
        Self::Over
    }
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        Self::Lost(error.to_string())
    }
}

struct Watcher {
    buckets: Buckets,
    stream: String,
    /// What stands before a key in a subject.
    prefix: String,
    subject: String,
    view: View,
    told: mpsc::Sender<Change>,
    ready: bool,
    liveness: Liveness,
}

impl Watcher {
    async fn run(mut self) {
        let mut losses = 0;
        loop {
            let mut heard_any = false;
            let reason = match self.reading(&mut heard_any).await {
                End::Over => return,
                End::Lost(reason) => reason,
            };
            losses = if heard_any { 0 } else { losses + 1 };
            if losses == 1 {
                tracing::warn!(
                    stream = self.stream,
                    reason,
                    "A bucket cannot be watched now; it is tried until it can."
                );
            } else {
                tracing::debug!(stream = self.stream, reason, "A bucket is read again.");
            }
            pause(losses).await;
        }
    }

    /// Reads all current values, then follows the changes until something is lost.
    async fn reading(&mut self, heard_any: &mut bool) -> End {
        let name = format!("watch-{}", Uuid::new_v4().simple());
        let end = self.follow(&name, heard_any).await;
        let js = self.buckets.nats.js();
        let gone = js.delete_consumer_from_stream(&name, &self.stream);
        let _ = tokio::time::timeout(HEARTBEAT, gone).await;
        match end {
            Ok(never) => match never {},
            Err(end) => end,
        }
    }

    async fn follow(
        &mut self,
        name: &str,
        heard_any: &mut bool,
    ) -> Result<std::convert::Infallible, End> {
        let nats = self.buckets.nats.clone();
        let info = stream_info(nats.js(), &self.stream).await?;
        let mut target = self.last_matching().await?;
        let subjects = [self.subject.clone()];
        let config = ephemeral(name.to_owned(), DeliverPolicy::LastPerSubject, &subjects);
        let mut pending = create_consumer(nats.js(), &self.stream, &config).await?;
        self.view.replay_begins(info.created);
        let config = PullConfig { heartbeat: HEARTBEAT, ..PullConfig::default() };
        let mut pull = Pull::new(nats.js(), &self.stream, name, config);
        let (mut deliveries, mut reached, mut replaying) = (0, 0, true);
        loop {
            if replaying && pending == 0 && reached >= target {
                replaying = false;
                self.end_replay().await?;
            }
            match pull.event(AHEAD).await? {
                Event::Lost => return Err(End::Lost("its consumer or the connection".into())),
                Event::Ended => {}
                Event::Heartbeat { last_delivered } => {
                    if last_delivered.is_some_and(|last| last != deliveries) {
                        return Err(End::Lost("the last message".into()));
                    }
                    if replaying && pending == 0 {
                        // What was last may have been deleted or have expired before it came.
                        target = self.last_matching().await?;
                    }
                }
                Event::Received(received) => {
                    deliveries += 1;
                    if received.delivery.consumer_seq != deliveries {
                        return Err(End::Lost("a message".into()));
                    }
                    pending = received.delivery.pending;
                    reached = received.delivery.stream_seq;
                    self.hear(received).await?;
                }
            }
            *heard_any = true;
            self.liveness.hear();
        }
    }

    /// The leader's last revision that matches.
    async fn last_matching(&self) -> Result<u64, End> {
        let found = last_by_subject(self.buckets.nats.js(), &self.stream, &self.subject).await?;
        Ok(found.map_or(0, |record| record.seq))
    }

    async fn hear(&mut self, received: Received) -> Result<(), End> {
        let record = Record {
            subject: received.message.subject.to_string(),
            seq: received.delivery.stream_seq,
            headers: received.message.headers.unwrap_or_default(),
            payload: received.message.payload,
            stored_at: received.delivery.stored_at,
        };
        let entry = Entry::of(record, &self.prefix);
        match entry.and_then(|entry| self.view.hear(entry)) {
            Some(entry) => self.tell(Change::Entry(entry)).await,
            None => Ok(()),
        }
    }

    async fn end_replay(&mut self) -> Result<(), End> {
        for entry in self.view.replay_ends() {
            self.tell(Change::Entry(entry)).await?;
        }
        if !std::mem::replace(&mut self.ready, true) {
            self.tell(Change::Ready).await?;
        }
        Ok(())
    }

    async fn tell(&self, change: Change) -> Result<(), End> {
        self.told.send(change).await.map_err(|_| End::Over)
    }
}
