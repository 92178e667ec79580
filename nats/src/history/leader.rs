//! Questions that the stream's leader answers, each tried again under a deadline.

use std::future::Future;
use std::time::Duration;

use async_nats::jetstream::Context;
use async_nats::jetstream::context::{ConsumerInfoErrorKind, GetStreamErrorKind};
use async_nats::jetstream::message::StreamMessage;
use async_nats::jetstream::stream::{
    ConsumerErrorKind, DeleteMessageErrorKind, PurgeErrorKind, RawMessageError,
    RawMessageErrorKind, Stream,
};
use async_nats::jetstream::{Error as ApiError, ErrorCode};
use chrono::{DateTime, Utc};
use tokio::time::{Instant, timeout};

use super::{ASK_DEADLINE, ReadError, Record};
use crate::publish::pause;

/// How long one attempt waits for its answer.
const ATTEMPT: Duration = Duration::from_secs(2);

/// What follows from one attempt that did not succeed.
pub(super) enum Step {
    /// Passing trouble; the words say which.
    Again(String),
    /// It will not get better.
    Never(ReadError),
}

/// Tries `attempt` again and again until `deadline`, each time for at most 2 s.
pub(super) async fn retried<T, F>(
    deadline: Duration,
    mut attempt: impl FnMut() -> F,
) -> Result<T, ReadError>
where
    F: Future<Output = Result<T, Step>>,
{
    let end = Instant::now() + deadline;
    for tries in 0_u32.. {
        let left = end.saturating_duration_since(Instant::now());
        let trouble = match timeout(left.min(ATTEMPT), attempt()).await {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(Step::Never(error))) => return Err(error),
            Ok(Err(Step::Again(trouble))) => trouble,
            Err(_) => "no answer".to_owned(),
        };
        if Instant::now() >= end {
            return Err(ReadError::Unanswered(trouble));
        }
        pause(tries).await;
    }
    Err(ReadError::Unanswered("the attempts are used up".into()))
}

/// Whether an error of JetStream may pass.
pub(super) fn step(stream: &str, error: &ApiError) -> Step {
    match error.error_code() {
        ErrorCode::STREAM_NOT_FOUND => Step::Never(ReadError::NoStream(stream.to_owned())),
        _ if error.code() >= 500 => Step::Again(error.to_string()),
        _ => Step::Never(ReadError::Refused(error.to_string())),
    }
}

/// A stream as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamInfo {
    /// When it was made: another time is another stream, whose sequences began again.
    pub created: DateTime<Utc>,
    /// The lowest sequence that is still there.
    pub first_seq: u64,
    /// The last sequence that was given out; 0: nothing was ever stored.
    pub last_seq: u64,
    /// Messages in it.
    pub messages: u64,
    /// Their size in bytes, as `max_bytes` counts it.
    pub bytes: u64,
    /// The most bytes it may hold; none: no limit.
    pub max_bytes: Option<u64>,
}

/// What the leader says about `stream`.
///
/// # Errors
/// [`ReadError`].
pub async fn stream_info(js: &Context, stream: &str) -> Result<StreamInfo, ReadError> {
    let found = retried(ASK_DEADLINE, || async {
        js.get_stream(stream).await.map_err(|error| match error.kind() {
            GetStreamErrorKind::JetStream(error) => step(stream, &error),
            GetStreamErrorKind::Request => Step::Again(error.to_string()),
            _ => Step::Never(ReadError::Refused(error.to_string())),
        })
    })
    .await?;
    let info = found.cached_info();
    Ok(StreamInfo {
        created: info.created,
        first_seq: info.state.first_sequence,
        last_seq: info.state.last_sequence,
        messages: info.state.messages,
        bytes: info.state.bytes,
        max_bytes: u64::try_from(info.config.max_bytes).ok().filter(|bytes| *bytes > 0),
    })
}

/// A consumer as its leader sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// When it was made: another time is another consumer, whose delivery counts began again.
    pub created: DateTime<Utc>,
    /// Messages that it has yet to deliver.
    pub pending: u64,
    /// Messages that were delivered and are not acked.
    pub ack_pending: u64,
    /// Pull requests that wait for messages.
    pub waiting: u64,
    /// Everything up to this sequence of the stream is acked.
    pub ack_floor: u64,
    /// The last sequence of the stream that was delivered.
    pub delivered: u64,
}

/// What is known of `consumer` on `stream`; none when there is no such consumer.
///
/// # Errors
/// [`ReadError`].
pub async fn consumer_info(
    js: &Context,
    stream: &str,
    consumer: &str,
) -> Result<Option<ConsumerInfo>, ReadError> {
    retried(ASK_DEADLINE, || async {
        let handle = handle_of(js, stream).await?;
        match handle.consumer_info(consumer).await {
            Ok(info) => Ok(Some(ConsumerInfo {
                created: info.created,
                pending: info.num_pending,
                ack_pending: info.num_ack_pending as u64,
                waiting: info.num_waiting as u64,
                ack_floor: info.ack_floor.stream_sequence,
                delivered: info.delivered.stream_sequence,
            })),
            Err(error) => match error.kind() {
                ConsumerInfoErrorKind::NotFound => Ok(None),
                ConsumerInfoErrorKind::StreamNotFound => {
                    Err(Step::Never(ReadError::NoStream(stream.to_owned())))
                }
                ConsumerInfoErrorKind::JetStream(error) => Err(step(stream, &error)),
                ConsumerInfoErrorKind::InvalidName => {
                    Err(Step::Never(ReadError::Refused(error.to_string())))
                }
                _ => Err(Step::Again(error.to_string())),
            },
        }
    })
    .await
}

/// The last message of `subject` in `stream`, from the leader; none when there is none.
///
/// `subject` may hold wildcards: then the last message of all that match. A marker of a deleted
/// or expired key is a message too.
///
/// # Errors
/// [`ReadError`].
pub async fn last_by_subject(
    js: &Context,
    stream: &str,
    subject: &str,
) -> Result<Option<Record>, ReadError> {
    retried(ASK_DEADLINE, || async {
        let handle = handle_of(js, stream).await?;
        found(stream, handle.get_last_raw_message_by_subject(subject).await)
    })
    .await
}

/// The first message of `subject` in `stream` from sequence `seq` on, from the leader; none when there is
/// none. `subject` may hold wildcards.
///
/// # Errors
/// [`ReadError`].
pub async fn next_by_subject(
    js: &Context,
    stream: &str,
    subject: &str,
    seq: u64,
) -> Result<Option<Record>, ReadError> {
    retried(ASK_DEADLINE, || async {
        let handle = handle_of(js, stream).await?;
        found(stream, handle.get_first_raw_message_by_subject(subject, seq).await)
    })
    .await
}

/// The message with sequence `seq` in `stream`, from the leader; none when it is not there.
///
/// # Errors
/// [`ReadError`].
pub async fn message(js: &Context, stream: &str, seq: u64) -> Result<Option<Record>, ReadError> {
    retried(ASK_DEADLINE, || async {
        let handle = handle_of(js, stream).await?;
        found(stream, handle.get_raw_message(seq).await)
    })
    .await
}

/// A handle on `stream`; whether there is such a stream its answers say.
async fn handle_of(js: &Context, stream: &str) -> Result<Stream<()>, Step> {
    let handle = js.get_stream_no_info(stream).await;
    handle.map_err(|error| Step::Never(ReadError::Refused(error.to_string())))
}

fn found(
    stream: &str,
    answer: Result<StreamMessage, RawMessageError>,
) -> Result<Option<Record>, Step> {
    match answer {
        Ok(message) => Ok(Some(Record {
            subject: message.subject.to_string(),
            seq: message.sequence,
            headers: message.headers,
            payload: message.payload,
            stored_at: message.time,
        })),
        Err(error) => match error.kind() {
            RawMessageErrorKind::NoMessageFound => Ok(None),
            RawMessageErrorKind::JetStream(error) => Err(step(stream, &error)),
            RawMessageErrorKind::InvalidSubject => {
                Err(Step::Never(ReadError::Refused(error.to_string())))
            }
            RawMessageErrorKind::Other => Err(Step::Again(error.to_string())),
        },
    }
}

/// Removes the message with sequence `seq` from `stream`; false when it was not there.
///
/// # Errors
/// [`ReadError`]; after [`ReadError::Unanswered`] it may be gone.
pub async fn delete_message(js: &Context, stream: &str, seq: u64) -> Result<bool, ReadError> {
    const DELETE_FAILED: ErrorCode = ErrorCode::STREAM_MESSAGE_DELETE_FAILED;
    retried(ASK_DEADLINE, || async {
        let handle = handle_of(js, stream).await?;
        handle.delete_message(seq).await.or_else(|error| match error.kind() {
            DeleteMessageErrorKind::JetStream(error) => match error.error_code() {
                ErrorCode::NO_MESSAGE_FOUND | ErrorCode::SEQUENCE_NOT_FOUND => Ok(false),
                DELETE_FAILED if error.to_string().contains("no message found") => Ok(false),
                _ => Err(step(stream, &error)),
            },
            _ => Err(Step::Again(error.to_string())),
        })
    })
    .await
}

/// Removes `consumer` from `stream`; false when it was not there.
///
/// # Errors
/// [`ReadError`]; after [`ReadError::Unanswered`] it may be gone.
pub async fn delete_consumer(
    js: &Context,
    stream: &str,
    consumer: &str,
) -> Result<bool, ReadError> {
    retried(ASK_DEADLINE, || async {
        let handle = handle_of(js, stream).await?;
        match handle.delete_consumer(consumer).await {
            Ok(_) => Ok(true),
            Err(error) => match error.kind() {
                ConsumerErrorKind::JetStream(error)
                    if error.error_code() == ErrorCode::CONSUMER_NOT_FOUND =>
                {
                    Ok(false)
                }
                ConsumerErrorKind::JetStream(error) => Err(step(stream, &error)),
                _ => Err(Step::Again(error.to_string())),
            },
        }
    })
    .await
}

/// Removes all messages of `subject`, wildcards allowed, from `stream`; says how many.
///
/// # Errors
/// [`ReadError`]; after [`ReadError::Unanswered`] they may be gone.
pub async fn purge_subject(js: &Context, stream: &str, subject: &str) -> Result<u64, ReadError> {
    retried(ASK_DEADLINE, || async {
        let handle = handle_of(js, stream).await?;
        match handle.purge().filter(subject).await {
            Ok(done) => Ok(done.purged),
            Err(error) => match error.kind() {
                PurgeErrorKind::JetStream(error) => Err(step(stream, &error)),
                _ => Err(Step::Again(error.to_string())),
            },
        }
    })
    .await
}
