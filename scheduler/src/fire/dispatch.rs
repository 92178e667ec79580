//! The dispatch of a fire: a message a shard.

use std::time::Duration;

use async_nats::connection::State;
use bytes::Bytes;
use chrono::{DateTime, TimeDelta, Utc};
use futures::stream::{FuturesUnordered, StreamExt};
use serde_json::value::{RawValue, to_raw_value};
use taskparty_common::dispatch::{Dispatch, Shard};
use taskparty_common::fire::Intent;
use taskparty_common::job::JobSpec;
use taskparty_nats::publish::{Draft, PublishError};
use tokio::time::Instant;

use super::look::Piece;
use super::{Firing, written};
use crate::definition::Definition;

/// How long one dispatch is tried before it is said that it takes long.
const PATIENCE: Duration = Duration::from_secs(10);

/// A dispatch that nobody has confirmed for as long is told of.
const LONG: Duration = Duration::from_secs(15);

/// What is sent later than this after it was known that nobody had sent it is looked for first.
const OLD: Duration = Duration::from_secs(4);

/// How the dispatch of a fire went.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Dispatched {
    /// Every shard is in the stream, or has been.
    All,
    /// The server would not have it, in these words; no shard is in the stream.
    Refused(String),
    /// The start deadline passed before every shard was in the stream.
    Late,
    /// It is too late to begin with it: another one may say that it was left out.
    Over,
    /// The node ends; another one goes on.
    Interrupted,
}

impl Firing {
    /// Puts each shard of `shards` in the stream, side by side, until `start_by`.
    ///
    /// A shard that is there already is not sent twice: its subject takes one message, and its
    /// id is known for a while after it was acked.
    pub(super) async fn dispatch(
        &self,
        intent: &Intent,
        definition: &Definition,
        shards: Vec<u32>,
        times: Times,
    ) -> Dispatched {
        let &[shard] = shards.as_slice() else {
            return Box::pin(self.dispatch_several(intent, definition, shards, times)).await;
        };
        self.dispatch_one(intent, definition, shard, times).await.into()
    }

    async fn dispatch_several(
        &self,
        intent: &Intent,
        definition: &Definition,
        shards: Vec<u32>,
        times: Times,
    ) -> Dispatched {
        let one = |shard| async move {
            (shard, self.dispatch_one(intent, definition, shard, times).await)
        };
        let mut open: FuturesUnordered<_> = shards.into_iter().map(one).collect();
        let mut refused: Vec<u32> = Vec::new();
        let mut reason = String::new();
        let mut stored = false;
        while let Some((shard, result)) = open.next().await {
            match result {
                One::There => stored = true,
                One::Refused(text) => {
                    refused.push(shard);
                    reason = text;
                }
                over => return over.into(),
            }
            // Once a shard is in, its run happens: the others are tried as long as they may start.
            if stored && !refused.is_empty() {
                if self.pause().await.is_err() {
                    return Dispatched::Interrupted;
                }
                for shard in refused.drain(..) {
                    open.push(one(shard));
                }
            }
        }
        if stored || refused.is_empty() { Dispatched::All } else { Dispatched::Refused(reason) }
    }

    async fn dispatch_one(
        &self,
        intent: &Intent,
        definition: &Definition,
        shard: u32,
        times: Times,
    ) -> One {
        let spec = definition.spec();
        let attempt = intent.plan.attempt;
        let subject = self.subject(spec, intent, shard);
        let message = match self.message(intent, definition, shard, times) {
            Ok(message) => message,
            Err(error) => return One::Refused(error.to_string()),
        };
        let piece = Piece { run: intent.run, shard, attempt };
        // It may be stored, and run, and be forgotten by a server that restarted.
        let mut maybe_done = false;
        let mut known_at = times.known_at;
        // Since when the server, which is there, has not answered.
        let mut silent_since = None;
        loop {
            if self.clock.now() > times.start_by {
                return One::Late;
            }
            if times.send_by.is_some_and(|by| self.clock.now() > by) {
                return One::Over;
            }
            // Another one may have completed it, too, when it took long.
            maybe_done |= known_at.elapsed() > OLD;
            if maybe_done {
                let look = self.looks.has_result(self.nats(), piece, times.known_from);
                match Box::pin(look).await {
                    Ok(true) => return One::There,
                    Ok(false) => (maybe_done, known_at) = (false, Instant::now()),
                    Err(error) => {
                        tracing::warn!(%subject, %error, "What became of a dispatch cannot be seen yet.");
                    }
                }
            }
            // What is sent while disconnected leaves on reconnect, when it may be done already.
            let connected = self.nats().client().connection_state() == State::Connected;
            if !connected {
                silent_since = None;
            }
            if !maybe_done && connected {
                let sent = Instant::now();
                let draft = Draft::new(subject.clone(), message.clone())
                    .id(format!("{}.{shard}.{attempt}", intent.run))
                    .expect_last(0);
                match self.publisher().publish_once(draft, PATIENCE).await {
                    Ok(_) | Err(PublishError::WrongLastSequence { .. }) => {
                        return One::There;
                    }
                    Err(error) if error.is_definite() => {
                        return One::Refused(error.to_string());
                    }
                    Err(PublishError::NoStream) => {
                        Box::pin(self.stream_is_missing(spec, intent)).await;
                    }
                    Err(error) => {
                        maybe_done = true;
                        tracing::warn!(%subject, %error, "A dispatch is not confirmed; it is looked for, and tried again.");
                        if silent_since.get_or_insert(sent).elapsed() > LONG {
                            Box::pin(self.tell_of_silence(spec)).await;
                        }
                    }
                }
            }
            if self.pause().await.is_err() {
                return One::Interrupted;
            }
        }
    }

    /// Where the dispatch of `shard` goes: to its executor, or to whoever takes it.
    pub(super) fn subject(&self, spec: &JobSpec, intent: &Intent, shard: u32) -> String {
        let (names, run, attempt) = (self.nats().names(), intent.run, intent.plan.attempt);
        match intent.plan.target(shard) {
            Some(one) => names.direct(&spec.app, one, &spec.handler, run, shard, attempt),
            None => {
                let priority = intent.plan.priority.unwrap_or_default();
                names.dispatch_by(&spec.app, &spec.handler, priority, (run, shard, attempt))
            }
        }
    }

    /// No stream took a dispatch: it elects its leader, or somebody has deleted it.
    async fn stream_is_missing(&self, spec: &JobSpec, intent: &Intent) {
        self.topology.forget(&spec.app);
        if let Err(error) = self.ensure_consumers(spec, &intent.plan).await {
            tracing::warn!(app = %spec.app, handler = %spec.handler, %error, "The stream of an app's work is not there; it is tried again.");
        }
    }

    /// The stream of an app's work has been silent for long, though the scheduler is connected.
    async fn tell_of_silence(&self, spec: &JobSpec) {
        let stream = self.nats().names().dispatch_stream(&spec.app);
        let message = format!(
            "{stream} has not confirmed a dispatch for {} s or longer: no job of {} runs until it does. See whether it has a leader and its disk is well (`nats stream info {stream}`, the log of nats-server), and restart the server if it says `critical write error`. What is due is tried until its start deadline",
            LONG.as_secs(),
            spec.app
        );
        self.alarms.raise("unconfirmed", &message).await;
    }

    fn message(
        &self,
        intent: &Intent,
        definition: &Definition,
        shard: u32,
        times: Times,
    ) -> Result<Bytes, serde_json::Error> {
        let spec = definition.spec();
        let param = spec.shard_params.get(shard as usize).map(to_raw_value).transpose()?;
        let params: &RawValue = intent.params.as_deref().unwrap_or(&definition.params);
        let dispatch = Dispatch {
            v: 1,
            run: intent.run,
            job: spec.id.clone(),
            app: spec.app.clone(),
            handler: spec.handler.clone(),
            params: params.to_owned(),
            shard: Shard { index: shard, total: intent.plan.total, param },
            attempt: intent.plan.attempt,
            trigger: intent.trigger,
            fire_time: intent.fire_time,
            timezone: spec.timezone().into(),
            dispatched_at: times.dispatched_at,
            start_by: times.start_by,
            timeout_ms: spec
                .timeout
                .map(|timeout| u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX)),
            lease_ms: u64::try_from(self.lease.as_millis()).unwrap_or(u64::MAX),
            max_deliveries: u64::from(spec.redeliveries) + 1,
            idempotency_key: format!("{}/{shard}", intent.run),
        };
        written(&dispatch, dispatch.params.get().len())
    }
}

/// When a fire was dispatched, and until when it may start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Times {
    pub(super) dispatched_at: DateTime<Utc>,
    pub(super) start_by: DateTime<Utc>,
    /// Until when it may be sent; nothing: until `start_by`.
    pub(super) send_by: Option<DateTime<Utc>>,
    /// When it was known that nobody had sent it.
    pub(super) known_at: Instant,
    /// The same, by the clock.
    pub(super) known_from: DateTime<Utc>,
}

impl Times {
    /// Of a dispatch at `at`, whose start deadline runs from there, and which nobody has sent yet.
    pub(super) fn from(at: DateTime<Utc>, spec: &JobSpec) -> Self {
        let deadline = TimeDelta::from_std(spec.start_deadline).unwrap_or(TimeDelta::MAX);
        let start_by = at.checked_add_signed(deadline).unwrap_or(at);
        let known_at = Instant::now();
        Self { dispatched_at: at, start_by, send_by: None, known_at, known_from: at }
    }
}

/// How the dispatch of one shard went.
enum One {
    There,
    Refused(String),
    Late,
    Over,
    Interrupted,
}

impl From<One> for Dispatched {
    /// Of a fire with one shard.
    fn from(one: One) -> Self {
        match one {
            One::There => Self::All,
            One::Refused(text) => Self::Refused(text),
            One::Late => Self::Late,
            One::Over => Self::Over,
            One::Interrupted => Self::Interrupted,
        }
    }
}
