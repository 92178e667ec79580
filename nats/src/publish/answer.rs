//! What a server's answer to a publish means.

use async_nats::{Message, StatusCode};
use serde::Deserialize;

use super::{PublishError, Stored};

/// What follows from one attempt.
#[derive(Debug)]
pub(super) enum Verdict {
    /// It is in the stream.
    Stored(Stored),
    /// It is refused, and will be refused again.
    Never(PublishError),
    /// Try again; `unclear` when it may be stored already.
    Again { error: PublishError, unclear: bool },
}

impl Verdict {
    /// Not stored; another attempt may succeed.
    pub(super) fn again(text: impl Into<String>) -> Self {
        Self::Again { error: PublishError::Unconfirmed(text.into()), unclear: false }
    }

    /// Perhaps stored.
    pub(super) fn unclear(text: impl Into<String>) -> Self {
        Self::Again { error: PublishError::Unconfirmed(text.into()), unclear: true }
    }
}

#[derive(Deserialize)]
struct PubAck {
    error: Option<ApiError>,
    #[serde(default)]
    stream: String,
    #[serde(default)]
    seq: u64,
    #[serde(default)]
    duplicate: bool,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// Reads the server's answer.
pub(super) fn read(message: &Message) -> Verdict {
    if message.status == Some(StatusCode::NO_RESPONDERS) {
        return Verdict::Again { error: PublishError::NoStream, unclear: false };
    }
    match serde_json::from_slice::<PubAck>(&message.payload) {
        Err(error) => Verdict::unclear(format!("an answer that is no PubAck: {error}")),
        Ok(PubAck { error: Some(error), .. }) => refused(error),
        Ok(PubAck { stream, seq, duplicate, .. }) => {
            Verdict::Stored(Stored { stream, seq, duplicate })
        }
    }
}

/// The client itself refused to send it.
pub(super) fn not_sent(error: &async_nats::client::PublishError) -> Verdict {
    use async_nats::client::PublishErrorKind::{InvalidSubject, MaxPayloadExceeded, Send};
    match error.kind() {
        MaxPayloadExceeded => Verdict::Never(PublishError::TooLarge(error.to_string())),
        InvalidSubject => {
            Verdict::Never(PublishError::Refused { code: 0, text: error.to_string() })
        }
        Send => Verdict::again("the connection is closed"),
    }
}

fn refused(error: ApiError) -> Verdict {
    let text = error.description;
    match error.err_code {
        // In a cluster the server may know that the sequence is wrong without knowing the right one.
        10071 | 10164 => {
            let actual = text.rsplit_once(": ").and_then(|(_, seq)| seq.parse().ok());
            Verdict::Never(PublishError::WrongLastSequence { actual, maybe_own: false })
        }
        10054 | 10097 => Verdict::Never(PublishError::TooLarge(text)),
        // A limit of the stream that refuses new messages comes as "store failed": only the words tell.
        10077 | 10122 if text.contains("exceeded") => Verdict::Never(PublishError::Full(text)),
        // An account's or a server's resources: often gone in a moment.
        10002 | 10023 | 10028 | 10047 => {
            Verdict::Again { error: PublishError::Full(text), unclear: false }
        }
        // Another attempt with the same id is on its way into the stream.
        10158 => Verdict::unclear(text),
        _ if error.code == 503 => Verdict::again(text),
        code => Verdict::Never(PublishError::Refused { code, text }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(payload: &str) -> Verdict {
        read(&Message {
            subject: "_INBOX.x".into(),
            reply: None,
            payload: payload.to_owned().into(),
            headers: None,
            status: None,
            description: None,
            length: 0,
        })
    }

    #[test]
    fn refusals_are_told_from_passing_trouble() {
        let error = |code: u64, err_code: u64, text: &str| {
            answer(&format!(
                r#"{{"error":{{"code":{code},"err_code":{err_code},"description":"{text}"}}}}"#
            ))
        };
        assert!(matches!(
            error(400, 10071, "wrong last sequence: 17"),
            Verdict::Never(PublishError::WrongLastSequence { actual: Some(17), maybe_own: false })
        ));
        assert!(matches!(
            error(400, 10164, "wrong last sequence"),
            Verdict::Never(PublishError::WrongLastSequence { actual: None, .. })
        ));
        assert!(matches!(
            error(503, 10077, "maximum bytes exceeded"),
            Verdict::Never(PublishError::Full(_))
        ));
        assert!(matches!(
            error(503, 10077, "raft: not leader"),
            Verdict::Again { error: PublishError::Unconfirmed(_), unclear: false }
        ));
        assert!(matches!(
            error(503, 10023, "insufficient resources"),
            Verdict::Again { error: PublishError::Full(_), unclear: false }
        ));
        assert!(matches!(
            error(400, 10060, "expected stream does not match"),
            Verdict::Never(PublishError::Refused { code: 10060, .. })
        ));
        assert!(matches!(answer("?"), Verdict::Again { unclear: true, .. }));
        assert!(matches!(
            answer(r#"{"stream":"S","seq":3,"duplicate":true}"#),
            Verdict::Stored(Stored { seq: 3, duplicate: true, .. })
        ));
    }
}
