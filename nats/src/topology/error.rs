//! Why the streams could not be made or read.

use std::time::Duration;

/// Why JetStream did not do what was asked; each names the stream or consumer and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TopologyError {
    /// We may not.
    #[error(
        "no right {action}, needed for {name}: grant it (nats/conf/accounts.conf shows which rights a scheduler needs)"
    )]
    Denied {
        /// The stream or consumer.
        name: String,
        /// What was tried.
        action: String,
    },
    /// JetStream is off.
    #[error(
        "{name} cannot be made: JetStream is off in this server or for this account; turn it on"
    )]
    NoJetStream {
        /// The stream or consumer.
        name: String,
    },
    /// Not enough room, or a limit of the account.
    #[error(
        "{name} cannot be made: {description}; raise the limits of the NATS server or account (max_file_store, max_streams, max_consumers), or lower TaskParty's sizes"
    )]
    Limit {
        /// The stream or consumer.
        name: String,
        /// What the server said.
        description: String,
    },
    /// Fewer servers than copies.
    #[error(
        "{name} cannot be stored {replicas} times: {description}; bring up {replicas} servers with JetStream and room, or set fewer replicas"
    )]
    Peers {
        /// The stream or consumer.
        name: String,
        /// How many copies were asked for.
        replicas: u64,
        /// What the server said.
        description: String,
    },
    /// No answer, or only "not now", until the deadline.
    #[error(
        "JetStream did not answer about {name} in {waited:?} ({reason}); in a cluster a majority of the servers must be up"
    )]
    Unanswered {
        /// The stream or consumer.
        name: String,
        /// The last that was seen.
        reason: String,
        /// How long was waited.
        waited: Duration,
    },
    /// The server said no.
    #[error(
        "NATS refuses {name}: {description} (error {code}); `taskparty topology show` compares what is there with what is needed"
    )]
    Refused {
        /// The stream or consumer.
        name: String,
        /// JetStream's error code.
        code: u64,
        /// What the server said.
        description: String,
    },
}

impl TopologyError {
    /// A stable name of the kind, for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Denied { .. } => "nats_denied",
            Self::NoJetStream { .. } => "nats_no_jetstream",
            Self::Limit { .. } => "nats_limit",
            Self::Peers { .. } => "nats_peers",
            Self::Unanswered { .. } => "nats_unanswered",
            Self::Refused { .. } => "nats_refused_topology",
        }
    }
}
