//! What the server says beside its answers.
//!
//! A refused publish or subscription is answered by nothing: it looks like a call that timed out.
//! The refusal comes as an event of the connection. Events are logged here, and refusals are
//! kept for a while so that a timed-out call can be explained.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use async_nats::{ClientError, Event, ServerError};

/// How many refusals are kept.
const KEPT: usize = 64;

/// A right that the server refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denied {
    /// The subject that it was about.
    pub subject: String,
    /// What was tried: `to publish to "x"` or `to subscribe to "x"`.
    pub action: String,
    /// When we heard of it.
    pub at: Instant,
}

/// The events of one connection. Cheap to clone; all clones see the same.
#[derive(Debug, Clone, Default)]
pub struct Events(Arc<Mutex<Seen>>);

#[derive(Debug, Default)]
struct Seen {
    denied: VecDeque<Denied>,
    /// Failed attempts since the connection was lost.
    attempts: u64,
}

impl Events {
    /// The latest refusal since `since` of something on `subject`, or of our inbox, without which
    /// no answer arrives.
    pub fn denied_since(&self, subject: &str, since: Instant) -> Option<Denied> {
        let seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seen.denied
            .iter()
            .rev()
            .take_while(|denied| denied.at >= since)
            .find(|denied| denied.subject == subject || denied.action.starts_with("to subscribe"))
            .cloned()
    }

    pub(crate) fn record(&self, event: &Event) {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Connected => {
                seen.attempts = 0;
                tracing::info!("connected to NATS");
            }
            Event::Disconnected => {
                tracing::warn!("lost the connection to NATS; reconnecting until it is back")
            }
            Event::LameDuckMode => {
                tracing::info!("the NATS server is about to stop; moving to another")
            }
            Event::SlowConsumer(id) => {
                tracing::warn!(
                    subscription = id,
                    "a subscription is read too slowly; messages of it were dropped"
                );
            }
            Event::ServerError(error) => match denied(error) {
                Some(denied) => {
                    tracing::error!(action = %denied.action, "NATS refuses a right; grant it in the server's configuration");
                    seen.denied.push_back(denied);
                    if seen.denied.len() > KEPT {
                        seen.denied.pop_front();
                    }
                }
                None => tracing::error!(%error, "the NATS server reports an error"),
            },
            Event::ClientError(ClientError::Other(error)) => {
                seen.attempts += 1;
                if seen.attempts.is_power_of_two() {
                    tracing::warn!(%error, attempts = seen.attempts, "cannot reconnect to NATS yet");
                }
            }
            Event::ClientError(error) => {
                tracing::error!(%error, "the NATS client reports an error")
            }
            Event::Draining | Event::Closed => {
                tracing::debug!(%event, "the connection to NATS ends")
            }
        }
    }
}

fn denied(error: &ServerError) -> Option<Denied> {
    let ServerError::Other(text) = error else { return None };
    let (_, rest) = text.split_once("Permissions Violation for ")?;
    let (kind, rest) = rest.split_once(" to \"")?;
    let (subject, _) = rest.split_once('"')?;
    let verb = if kind.starts_with("Subscription") { "subscribe" } else { "publish" };
    Some(Denied {
        subject: subject.to_owned(),
        action: format!("to {verb} to {subject:?}"),
        at: Instant::now(),
    })
}
