//! Reading a stretch of a stream once, to its end as of the call.

use std::ops::ControlFlow;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::consumer::{AckPolicy, DeliverPolicy, pull};
use chrono::{DateTime, Utc};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::leader::{Step, last_by_subject, message, retried, step};
use super::{ReadError, Record};
use crate::consume::{Event, Pull, PullConfig};

/// Messages that are on their way at once.
const AHEAD: usize = 512;

/// Where a stretch begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the oldest message.
    First,
    /// With this sequence.
    Seq(u64),
    /// With the first message that was stored at this time or later, by the server's clock.
    Time(DateTime<Utc>),
}

/// Reads the messages of `subjects` (wildcards allowed) in `stream` from `start` on, in order,
/// each once, until `visit` breaks or all that were stored before this call have been visited.
/// What is stored during the call may be visited too. A message that is replaced or removed during
/// the call is not visited: for the keys of a bucket use
/// [`Buckets::entries`](crate::bucket::Buckets::entries).
///
/// # Errors
/// [`ReadError::Unanswered`] when the end was not reached within `deadline`: then what was
/// visited is not all.
pub async fn read(
    js: &Context,
    stream: &str,
    subjects: &[String],
    start: Start,
    deadline: Duration,
    visit: impl FnMut(Record) -> ControlFlow<()>,
) -> Result<(), ReadError> {
    let end = Instant::now() + deadline;
    let mut last = None;
    for subject in subjects {
        let found = timeout_at(end, last_by_subject(js, stream, subject)).await;
        let found = found.map_err(|_| late("the end of the stretch is not known"))??;
        last = last.max(found.map(|record| (record.seq, record.stored_at)));
    }
    let Some((last, stored_at)) = last else { return Ok(()) };
    let nothing = match start {
        Start::First => false,
        Start::Seq(seq) => last < seq,
        Start::Time(time) => stored_at < time,
    };
    if nothing {
        return Ok(());
    }
    let mut reading = Reading { js, stream, subjects, start, last, seen: 0, visit };
    loop {
        let passed = timeout_at(end, reading.pass()).await;
        if passed.map_err(|_| late("the end of the stretch was not reached"))?? {
            return Ok(());
        }
    }
}

fn late(text: &str) -> ReadError {
    ReadError::Unanswered(text.to_owned())
}

struct Reading<'a, V> {
    js: &'a Context,
    stream: &'a str,
    subjects: &'a [String],
    start: Start,
    /// The sequence to reach.
    last: u64,
    /// The last sequence visited.
    seen: u64,
    visit: V,
}

impl<V: FnMut(Record) -> ControlFlow<()>> Reading<'_, V> {
    /// Reads with one consumer until the end (true) or until the consumer is lost (false).
    async fn pass(&mut self) -> Result<bool, ReadError> {
        let (name, mut pending) = self.consumer().await?;
        let config = PullConfig { heartbeat: Duration::from_millis(500), ..PullConfig::default() };
        let mut pull = Pull::new(self.js, self.stream, &name, config);
        let done = self.follow(&mut pull, &mut pending).await;
        drop(pull);
        let _ = self.js.delete_consumer_from_stream(&name, self.stream).await;
        done
    }

    async fn follow(&mut self, pull: &mut Pull, pending: &mut u64) -> Result<bool, ReadError> {
        let mut next = 1;
        loop {
            let event = pull.event(AHEAD).await.map_err(|error| late(&error.to_string()))?;
            match event {
                Event::Lost => return Ok(false),
                Event::Ended => {}
                Event::Heartbeat { .. } => {
                    // A message at the end may be gone by now: acked, expired, deleted.
                    let gone =
                        *pending == 0 && message(self.js, self.stream, self.last).await?.is_none();
                    if gone {
                        return Ok(true);
                    }
                }
                Event::Received(received) => {
                    let delivery = received.delivery;
                    if delivery.consumer_seq != next {
                        return Ok(false);
                    }
                    next += 1;
                    *pending = delivery.pending;
                    self.seen = delivery.stream_seq;
                    let record = Record {
                        subject: received.message.subject.to_string(),
                        seq: delivery.stream_seq,
                        headers: received.message.headers.unwrap_or_default(),
                        payload: received.message.payload,
                        stored_at: delivery.stored_at,
                    };
                    if (self.visit)(record).is_break() || self.seen >= self.last {
                        return Ok(true);
                    }
                }
            }
        }
    }

    /// A short-lived consumer from where the reading stands; and how many messages it has.
    async fn consumer(&self) -> Result<(String, u64), ReadError> {
        let deliver_policy = match (self.seen, self.start) {
            (0, Start::First | Start::Seq(0)) => DeliverPolicy::All,
            (0, Start::Seq(seq)) => DeliverPolicy::ByStartSequence { start_sequence: seq },
            (0, Start::Time(time)) => DeliverPolicy::ByStartTime { start_time: time },
            (seen, _) => DeliverPolicy::ByStartSequence { start_sequence: seen + 1 },
        };
        let name = format!("read-{}", Uuid::new_v4().simple());
        let config = ephemeral(name.clone(), deliver_policy, self.subjects);
        let pending = create_consumer(self.js, self.stream, &config).await?;
        Ok((name, pending))
    }
}

/// The configuration of a consumer that only reads, and goes when nobody reads any more.
pub(crate) fn ephemeral(
    name: String,
    deliver_policy: DeliverPolicy,
    subjects: &[String],
) -> pull::Config {
    let (filter_subject, filter_subjects) = match subjects {
        [one] => (one.clone(), Vec::new()),
        many => (String::new(), many.to_vec()),
    };
    pull::Config {
        name: Some(name),
        deliver_policy,
        ack_policy: AckPolicy::None,
        filter_subject,
        filter_subjects,
        memory_storage: true,
        num_replicas: 1,
        inactive_threshold: Duration::from_secs(30),
        ..pull::Config::default()
    }
}

/// Makes the consumer, or finds it made by an attempt whose answer was lost; says what is pending.
async fn create(js: &Context, stream: &str, config: &pull::Config) -> Result<u64, Step> {
    use async_nats::jetstream::stream::ConsumerErrorKind;
    match js.create_consumer_on_stream(config.clone(), stream).await {
        Ok(consumer) => Ok(consumer.cached_info().num_pending),
        Err(error) => Err(match error.kind() {
            ConsumerErrorKind::JetStream(error) => step(stream, &error),
            ConsumerErrorKind::InvalidConsumerType | ConsumerErrorKind::InvalidName => {
                Step::Never(ReadError::Refused(error.to_string()))
            }
            _ => Step::Again(error.to_string()),
        }),
    }
}

/// As [`create`], tried again for a while.
pub(crate) async fn create_consumer(
    js: &Context,
    stream: &str,
    config: &pull::Config,
) -> Result<u64, ReadError> {
    retried(super::ASK_DEADLINE, || create(js, stream, config)).await
}
