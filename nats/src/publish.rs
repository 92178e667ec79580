//! Publishes that are confirmed.
//!
//! A [`Publisher`] sends a message to a stream and waits for the server's PubAck. One call is
//! several bounded attempts under one deadline, all with the same `Nats-Msg-Id`, so that the
//! stream keeps the message once however often it is sent. Any number of callers wait at once;
//! nothing waits for the PubAck of another.
//!
//! Facts it respects (ARCHITECTURE, facts about NATS): a publish during an election finds no
//! stream or gets no answer, and async-nats does not retry (10); a permission error looks like a
//! timeout (11).
//!
//! *Invariant: only an answer of the server refuses a publish.* After a timeout the message may
//! be in the stream; that is [`PublishError::Unconfirmed`], never a refusal.

mod answer;
mod draft;
mod replies;

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::{HeaderMap, Message};
use bytes::Bytes;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};

use self::answer::Verdict;
pub use self::draft::Draft;
use self::replies::{Replies, Waiter};

/// How a [`Publisher`] behaves.
#[derive(Debug, Clone)]
pub struct PublishConfig {
    /// How long one attempt waits for its answer. Default 2 s.
    pub attempt: Duration,
    /// How long [`Publisher::publish`] tries in all. Default 10 s.
    pub deadline: Duration,
    /// Publishes that wait for their answers at once; more wait for room. Default 4096.
    pub in_flight: usize,
}

impl Default for PublishConfig {
    fn default() -> Self {
        Self { attempt: Duration::from_secs(2), deadline: Duration::from_secs(10), in_flight: 4096 }
    }
}

/// A message that is in its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// The stream's name.
    pub stream: String,
    /// The message's sequence in it: the revision, where the stream is a bucket.
    pub seq: u64,
    /// The stream already had a message with this id, from an earlier attempt or an earlier call.
    pub duplicate: bool,
}

/// Why a publish was not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// The subject's last message is not the expected one. Nothing was stored *by this attempt*.
    #[error("the subject's last message is not the expected one")]
    WrongLastSequence {
        /// The sequence found, where the server says it.
        actual: Option<u64>,
        /// An earlier attempt of this call got no answer: what is there may be this message.
        /// Read it from the leader and compare.
        maybe_own: bool,
    },
    /// The stream, or the server's storage, has no room. Nothing was stored.
    #[error("the stream has no room: {0}")]
    Full(String),
    /// The message is larger than the server or the stream takes. Nothing was stored.
    #[error("the message is too large: {0}")]
    TooLarge(String),
    /// The server refused it for good. Nothing was stored.
    #[error("the server refused the message: {text} ({code})")]
    Refused {
        /// JetStream's error code (`err_code`); 0 where it is the client that refused.
        code: u64,
        /// The server's words.
        text: String,
    },
    /// No stream takes the subject now: it was never made, or was deleted, or elects its leader.
    /// Nothing was stored; not a refusal.
    #[error("no stream answers on the subject")]
    NoStream,
    /// No answer came in time: it may be stored, or not. Not a refusal: try again with the same id.
    #[error("the publish was not confirmed: {0}")]
    Unconfirmed(String),
}

impl PublishError {
    /// Whether it is certain that this message is not in the stream.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::WrongLastSequence { maybe_own, .. } => !maybe_own,
            Self::Full(_) | Self::TooLarge(_) | Self::Refused { .. } => true,
            Self::NoStream | Self::Unconfirmed(_) => false,
        }
    }
}

/// Why a request got no answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Nobody listens on the subject.
    #[error("nobody answers on the subject")]
    NoResponders,
    /// No answer came in time.
    #[error("no answer came in time")]
    TimedOut,
    /// The request cannot be sent: the connection is closed for good, or the subject is malformed.
    #[error("the request could not be sent")]
    NotSent,
}

/// Which attempts are followed by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Patience {
    /// All that did not succeed.
    All,
    /// Only those that surely stored nothing, in a stream that is there.
    NotStored,
}

/// Sends messages and waits until they are stored. Cheap to clone; one is enough for a process.
///
/// It owns one subscription, on which all answers arrive, and the task that reads it; both end
/// with the last clone.
#[derive(Debug, Clone)]
pub struct Publisher {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: async_nats::Client,
    replies: Replies,
    room: Semaphore,
    config: PublishConfig,
}

impl Publisher {
    /// A publisher on `client` with the default [`PublishConfig`].
    ///
    /// # Errors
    /// [`AskError::NotSent`] when the connection is closed for good. Being disconnected is no error.
    pub async fn start(client: &async_nats::Client) -> Result<Self, AskError> {
        Self::start_with(client, PublishConfig::default()).await
    }

    /// A publisher that behaves as `config` says.
    ///
    /// # Errors
    /// [`AskError::NotSent`] when the connection is closed for good. Being disconnected is no error.
    pub async fn start_with(
        client: &async_nats::Client,
        config: PublishConfig,
    ) -> Result<Self, AskError> {
        let replies = Replies::start(client).await?;
        let room = Semaphore::new(config.in_flight);
        Ok(Self { shared: Arc::new(Shared { client: client.clone(), replies, room, config }) })
    }

    /// The connection it sends on.
    pub fn client(&self) -> &async_nats::Client {
        &self.shared.client
    }

    /// Publishes `draft` and waits until it is stored, under the configured deadline.
    ///
    /// # Errors
    /// [`PublishError`]; only [`PublishError::Unconfirmed`] takes the whole deadline.
    pub async fn publish(&self, draft: Draft) -> Result<Stored, PublishError> {
        self.publish_within(draft, self.shared.config.deadline).await
    }

    /// Publishes `draft` and waits until it is stored, for at most `deadline`.
    ///
    /// # Errors
    /// As [`Publisher::publish`].
    pub async fn publish_within(
        &self,
        draft: Draft,
        deadline: Duration,
    ) -> Result<Stored, PublishError> {
        self.publish_until(draft, deadline, Patience::All).await
    }

    /// Publishes `draft` as [`Publisher::publish_within`] does, and returns as soon as it may be
    /// stored or no stream was there: for messages that must not be sent again blindly. The stream
    /// of a work queue forgets the ids of what is acked when its server restarts, so that neither
    /// the id nor an expected sequence stops a second one.
    ///
    /// # Errors
    /// As [`Publisher::publish`]; [`PublishError::NoStream`] and [`PublishError::Unconfirmed`] at
    /// once: find out what became of it, then call again.
    pub async fn publish_once(
        &self,
        draft: Draft,
        deadline: Duration,
    ) -> Result<Stored, PublishError> {
        self.publish_until(draft, deadline, Patience::NotStored).await
    }

    async fn publish_until(
        &self,
        draft: Draft,
        deadline: Duration,
        patience: Patience,
    ) -> Result<Stored, PublishError> {
        let end = Instant::now() + deadline;
        let room = timeout_at(end, self.shared.room.acquire()).await;
        let Ok(Ok(_room)) = room else {
            return Err(PublishError::Unconfirmed("too many publishes wait for answers".into()));
        };
        let draft = draft.with_an_id();
        let mut waiter = self.shared.replies.waiter();
        let mut maybe_stored = false;
        for attempt in 0_u32.. {
            let verdict = self.attempt(&draft, &mut waiter, end).await;
            let (error, unclear) = match verdict {
                Verdict::Stored(stored) => return Ok(stored),
                Verdict::Never(PublishError::WrongLastSequence { actual, .. }) => {
                    return Err(PublishError::WrongLastSequence {
                        actual,
                        maybe_own: maybe_stored,
                    });
                }
                Verdict::Never(error) => return Err(error),
                Verdict::Again { error, unclear } => (error, unclear),
            };
            maybe_stored |= unclear;
            if patience == Patience::NotStored && (unclear || error == PublishError::NoStream) {
                return Err(error);
            }
            let pause = backoff(attempt);
            if Instant::now() + pause >= end {
                return Err(match error {
                    PublishError::Unconfirmed(_) => error,
                    _ if maybe_stored => PublishError::Unconfirmed(error.to_string()),
                    _ => error,
                });
            }
            tracing::debug!(subject = %draft.subject(), attempt, %error, "A publish is tried again.");
            // A late answer to an earlier attempt is as good as one to the next.
            if let Some(late) = waiter.wait(pause).await
                && let Verdict::Stored(stored) = answer::read(&late)
            {
                return Ok(stored);
            }
        }
        Err(PublishError::Unconfirmed("the attempts are used up".into()))
    }

    async fn attempt(&self, draft: &Draft, waiter: &mut Waiter<'_>, end: Instant) -> Verdict {
        let attempt_end = end.min(Instant::now() + self.shared.config.attempt);
        waiter.arm();
        let client = &self.shared.client;
        let send = client.publish_with_reply_and_headers(
            draft.subject().clone(),
            waiter.reply(),
            draft.headers(),
            draft.payload().clone(),
        );
        match timeout_at(attempt_end, send).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return answer::not_sent(&error),
            Err(_) => return Verdict::again("the connection takes no more messages"),
        }
        if let Some(reply) = waiter.wait_until(attempt_end).await {
            return answer::read(&reply);
        }
        // What was sent while disconnected leaves on reconnect: no need to queue it again and again.
        while Instant::now() < end && client.connection_state() != State::Connected {
            if let Some(reply) = waiter.wait(Duration::from_millis(50)).await {
                return answer::read(&reply);
            }
        }
        Verdict::unclear("the server did not answer")
    }

    /// Sends a request and waits for its answer, once.
    ///
    /// For acknowledgements and the like, where an answer means something and nothing is stored.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn ask(
        &self,
        subject: &str,
        headers: Option<HeaderMap>,
        payload: Bytes,
        within: Duration,
    ) -> Result<Message, AskError> {
        let end = Instant::now() + within;
        let client = &self.shared.client;
        let mut waiter = self.shared.replies.waiter();
        waiter.arm();
        let (subject, reply) = (subject.to_owned(), waiter.reply());
        let sent = match headers {
            Some(headers) => {
                let send = client.publish_with_reply_and_headers(subject, reply, headers, payload);
                timeout_at(end, send).await
            }
            None => timeout_at(end, client.publish_with_reply(subject, reply, payload)).await,
        };
        match sent {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(AskError::NotSent),
            Err(_) => return Err(AskError::TimedOut),
        }
        let answer = waiter.wait_until(end).await.ok_or(AskError::TimedOut)?;
        match answer.status {
            Some(async_nats::StatusCode::NO_RESPONDERS) => Err(AskError::NoResponders),
            _ => Ok(answer),
        }
    }

    /// Waits until everything that was sent before has left for the server, for at most `within`.
    pub async fn flush(&self, within: Duration) {
        let _ = timeout(within, self.shared.client.flush()).await;
    }
}

/// The pause before attempt `attempt + 2`: 50 ms doubling to 1 s, between half and all of it.
pub(crate) fn backoff(attempt: u32) -> Duration {
    let full = Duration::from_millis(50 << attempt.min(5)).min(Duration::from_secs(1));
    full.mul_f64(rand::random_range(0.5..=1.0))
}

/// Waits a jittered pause that grows with `attempt`.
pub(crate) async fn pause(attempt: u32) {
    sleep(backoff(attempt)).await;
}
