//! Why a command ends early, and with which exit code.

use taskparty_nats::connect::ConnectError;
use taskparty_scheduler::api::wire::{Code, Problem};

/// The exit codes: a promise to scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// Done.
    Done = 0,
    /// It could not be done: connection, permission, server.
    CouldNot = 1,
    /// Wrong use, or invalid input.
    Invalid = 2,
    /// The run ended unsuccessfully, or `doctor` found problems.
    Unsuccessful = 3,
    /// `--dry-run` found changes.
    Changes = 4,
}

/// A command that could not do what was asked.
#[derive(Debug)]
pub(crate) struct Failure {
    /// How the process ends.
    pub(crate) exit: Exit,
    /// What it says.
    pub(crate) problem: Problem,
}

impl Failure {
    /// Something is wrong with the world.
    pub(crate) fn could_not(detail: impl Into<String>) -> Self {
        Self { exit: Exit::CouldNot, problem: Problem::unavailable(detail) }
    }

    /// Something is wrong with the input.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Problem::invalid(detail).into()
    }

    /// A promised part that this version does not have.
    pub(crate) fn not_yet(what: &str) -> Self {
        Problem::new(Code::NotYet, format!("{what}: not yet in this version"))
            .titled(format!("{what} is not there yet"))
            .into()
    }
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        let exit = match problem.code {
            Code::Invalid | Code::NotYet | Code::TooLarge => Exit::Invalid,
            _ => Exit::CouldNot,
        };
        Self { exit, problem }
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let code = match error {
            ConnectError::Unauthorized { .. } | ConnectError::Denied { .. } => Code::Forbidden,
            _ => Code::Unavailable,
        };
        Self { exit: Exit::CouldNot, problem: Problem::new(code, error.to_string()) }
    }
}
