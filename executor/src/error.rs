//! What can go wrong with an executor itself. What goes wrong in a handler is a result, never
//! one of these.

use std::time::Duration;

use taskparty_common::name::{Handler, NameError};

/// Why an executor cannot run as it was built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BuildError {
    /// A handler's name breaks the rule for names.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Two handlers have one name.
    #[error("the handler {0} is there twice; each name stands for one function")]
    Duplicate(Handler),
    /// There is nothing to run.
    #[error("the executor has no handler; add one with `.handler(\"name\", function)`")]
    NoHandlers,
    /// A handler with no room can never run.
    #[error("the handler {handler} has {slots} slots; use 1 to {max}", max = crate::handler::MAX_SLOTS)]
    Slots {
        /// Which one.
        handler: Handler,
        /// What was asked for.
        slots: u32,
    },
}

/// Why an executor ended before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// It was built wrong.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The server was reached and turned it away, or the connection's settings are wrong. A
    /// server that is down is no error: it is waited for.
    #[error(transparent)]
    Connect(#[from] taskparty_nats::connect::ConnectError),
    /// The connection was closed for good.
    #[error("the NATS connection was closed while {while_doing}")]
    Closed {
        /// What the executor was at.
        while_doing: &'static str,
    },
}

/// Why a trigger was not taken.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A job's id or a key breaks the rule for names.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The params could not be written as JSON.
    #[error("the params are no JSON: {0}")]
    Params(#[source] serde_json::Error),
    /// Nobody serves the API, or nobody answered in time. The trigger may have been taken: ask
    /// again with the same key.
    #[error(
        "no TaskParty API answered on {subject} within {within:?}; is `taskparty serve` running?"
    )]
    NoAnswer {
        /// Where it was asked.
        subject: String,
        /// For how long.
        within: Duration,
    },
    /// The API refused it. Nothing was triggered.
    #[error("{title}{}{detail}", if detail.is_empty() { "" } else { ": " })]
    Refused {
        /// The stable code, as everywhere: `not_found`, `invalid`.
        code: String,
        /// A sentence.
        title: String,
        /// What exactly; may be empty.
        detail: String,
    },
    /// The answer was not understood.
    #[error("the API's answer could not be read: {0}")]
    Answer(String),
}
