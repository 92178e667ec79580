//! How a pull behaves.

use std::time::Duration;

/// How a [`Pull`](super::Pull) behaves.
#[derive(Debug, Clone)]
pub struct PullConfig {
    /// The server's sign of life while it has nothing to send; after three missed ones the
    /// requests are made anew. Default 2 s; at most half of `expires`.
    pub heartbeat: Duration,
    /// How long one request waits at the server before it is renewed. Default 30 s.
    pub expires: Duration,
    /// How long the server may refuse before that is worth a word: for a consumer that someone makes
    /// only when he hears of us. Default: not at all.
    pub bears_refusals: Duration,
}

impl Default for PullConfig {
    fn default() -> Self {
        let (heartbeat, expires) = (Duration::from_secs(2), Duration::from_secs(30));
        Self { heartbeat, expires, bears_refusals: Duration::ZERO }
    }
}

/// How a request asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Asking {
    /// For what is there now: the server answers at once.
    Look,
    /// For what comes until this is over, too, with signs of life meanwhile.
    Wait(Duration),
    /// The same for a time in which the server may be silent.
    Briefly(Duration),
}

impl Asking {
    /// The request's body, and how long it may be open at the server.
    pub(super) fn body(self, batch: usize, heartbeat: Duration) -> (String, Duration) {
        match self {
            Self::Look => (format!(r#"{{"batch":{batch},"no_wait":true}}"#), Duration::ZERO),
            Self::Briefly(expires) => {
                let nanos = expires.as_nanos();
                (format!(r#"{{"batch":{batch},"expires":{nanos}}}"#), expires)
            }
            Self::Wait(expires) => {
                let (nanos, alive) = (expires.as_nanos(), heartbeat.min(expires / 2).as_nanos());
                let body =
                    format!(r#"{{"batch":{batch},"expires":{nanos},"idle_heartbeat":{alive}}}"#);
                (body, expires)
            }
        }
    }
}
