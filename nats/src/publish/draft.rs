//! A message on its way into a stream.

use std::time::Duration;

use async_nats::header::{
    HeaderMap, HeaderName, NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, NATS_MESSAGE_ID, NATS_MESSAGE_TTL,
    NATS_SCHEDULE, NATS_SCHEDULE_TARGET,
};
use async_nats::{HeaderValue, Subject};
use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use uuid::Uuid;

/// A message to publish. It always has an id: its own, or a fresh one.
///
/// What it says becomes headers for each attempt anew: a map of headers is costly to copy.
#[derive(Debug, Clone)]
pub struct Draft {
    subject: Subject,
    payload: Bytes,
    id: Option<String>,
    expected_last: Option<u64>,
    ttl: Option<Duration>,
    more: Vec<(HeaderName, String)>,
}

impl Draft {
    /// A message of `payload` for `subject`.
    pub fn new(subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        Self {
            subject: Subject::from(subject.into()),
            payload: payload.into(),
            id: None,
            expected_last: None,
            ttl: None,
            more: Vec::new(),
        }
    }

    /// The id by which the stream recognises a repetition (`Nats-Msg-Id`).
    ///
    /// The stream remembers ids for its duplicate window, and forgets those of acked messages
    /// when the server restarts. Without this call the message gets a fresh id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// Stores it only if `seq` is the sequence of the subject's last message; 0: if it has none.
    pub fn expect_last(mut self, seq: u64) -> Self {
        self.expected_last = Some(seq);
        self
    }

    /// Removes it after `ttl`, rounded up to whole seconds, at least one: the server refuses less.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = Some(ttl);
        self
    }

    /// Makes it a schedule: at `at`, to the millisecond, the server publishes it to `target`.
    ///
    /// Its own subject must be unique: a second schedule on the subject replaces the first.
    pub fn at(mut self, at: DateTime<Utc>, target: impl Into<String>) -> Self {
        let at = at.to_rfc3339_opts(SecondsFormat::Millis, true);
        self.more.push((NATS_SCHEDULE, format!("@at {at}")));
        self.more.push((NATS_SCHEDULE_TARGET, target.into()));
        self
    }

    /// The W3C trace context.
    pub fn traceparent(self, traceparent: impl AsRef<str>) -> Self {
        self.header("traceparent", traceparent)
    }

    /// Any other header. `name` must be the name of one; `value` must have no line breaks; they become spaces.
    pub fn header(mut self, name: &'static str, value: impl AsRef<str>) -> Self {
        let value = value.as_ref().replace(['\r', '\n'], " ");
        self.more.push((HeaderName::from_static(name), value));
        self
    }

    /// The bytes of its payload.
    pub fn payload(&self) -> &Bytes {
        &self.payload
    }

    pub(super) fn subject(&self) -> &Subject {
        &self.subject
    }

    /// Gives it a fresh id, unless it has one.
    pub(super) fn with_an_id(self) -> Self {
        match self.id {
            Some(_) => self,
            None => self.id(Uuid::new_v4().simple().to_string()),
        }
    }

    /// What it says, as headers.
    pub(super) fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(id) = &self.id {
            headers.insert(NATS_MESSAGE_ID, id.as_str());
        }
        if let Some(seq) = self.expected_last {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, HeaderValue::from(seq));
        }
        if let Some(ttl) = self.ttl {
            headers.insert(NATS_MESSAGE_TTL, format!("{}s", whole_seconds(ttl)));
        }
        for (name, value) in &self.more {
            headers.insert(name.clone(), value.as_str());
        }
        headers
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
        let own = Draft::new("a", "b").id("x").with_an_id();
        assert_eq!(own.headers().get(NATS_MESSAGE_ID).unwrap().as_str(), "x");
        let fresh = Draft::new("a", "b").with_an_id();
        assert!(fresh.headers().get(NATS_MESSAGE_ID).is_some());
    }
}
