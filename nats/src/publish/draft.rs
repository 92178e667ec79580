//! A message on its way into a stream.

use std::time::Duration;

use async_nats::HeaderValue;
use async_nats::header::{
    HeaderMap, NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_ID, NATS_MESSAGE_TTL,
    NATS_SCHEDULE, NATS_SCHEDULE_TARGET,
};
use async_nats::message::OutboundMessage;
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use uuid::Uuid;

/// A message to publish. It always has an id: its own, or a fresh one.
#[derive(Debug, Clone)]
pub struct Draft {
    subject: String,
    payload: Bytes,
    headers: HeaderMap,
    has_id: bool,
}

impl Draft {
    /// A message of `payload` for `subject`.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: subject.into(),
            payload: payload.into(),
            headers: HeaderMap::new(),
            has_id: false,
        }
    }

    /// The id by which the stream recognises a repetition (`Nats-Msg-Id`).
    ///
    /// The stream remembers ids for its duplicate window, and forgets those of acked messages
    /// when the server restarts. Without this call the message gets a fresh id.
    pub fn id(mut self, id: impl AsRef<str>) -> Self {
        self.headers.insert(NATS_MESSAGE_ID, id.as_ref());
        self.has_id = true;
        self
    }

    /// Stores it only if `seq` is the sequence of the subject's last message; 0: if it has none.
    pub fn expect_last(mut self, seq: u64) -> Self {
        self.headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(seq));
        self
    }

    /// Removes it after `ttl`, rounded up to whole seconds, at least one: the server refuses less.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.headers.insert(NATS_MESSAGE_TTL, format!("{}s", whole_seconds(ttl)));
        self
    }

    /// Makes it a schedule: at `at`, to the millisecond, the server publishes it to `target`.
    ///
    /// Its own subject must be unique: a second schedule on the subject replaces the first.
    pub fn at(mut self, at: DateTime<Utc>, target: impl AsRef<str>) -> Self {
        let at = at.to_rfc3339_opts(SecondsFormat::Millis, true);
        self.headers.insert(NATS_SCHEDULE, format!("@at {at}").as_str());
        self.headers.insert(NATS_SCHEDULE_TARGET, target.as_ref());
        self
    }

    /// The W3C trace context.
    pub fn traceparent(self, traceparent: impl AsRef<str>) -> Self {
        self.header("traceparent", traceparent)
    }

    /// Any other header. `value` must have no line breaks; they become spaces.
    pub fn header(mut self, name: &'static str, value: impl AsRef<str>) -> Self {
        self.headers.insert(name, value.as_ref().replace(['\r', '\n'], " ").as_str());
        self
    }

    /// The bytes of its payload.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    pub(super) fn into_outbound(mut self) -> OutboundMessage {
        if !self.has_id {
            self = self.id(Uuid::new_v4().simple().encode_lower(&mut Uuid::encode_buffer()));
        }
        OutboundMessage {
            subject: self.subject.into(),
            reply: None,
            payload: self.payload,
            headers: Some(self.headers),
        }
    }
}

/// `time` in whole seconds, rounded up, at least 1.
fn whole_seconds(time: Duration) -> u64 {
    let rest = u64::from(time.subsec_nanos() > 0);
    time.as_secs().saturating_add(rest).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_whole_seconds_and_never_less_than_asked() {
        for (ttl, seconds) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2), (600_000, 600)] {
            assert_eq!(whole_seconds(Duration::from_millis(ttl)), seconds);
        }
    }

    #[test]
    fn every_message_has_an_id() {
        let message = Draft::new("a", "b").into_outbound();
        assert!(message.headers.unwrap().get(NATS_MESSAGE_ID).is_some());
    }
}
