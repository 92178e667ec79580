//! Why a server could not be started.

use std::io;
use std::path::{Path, PathBuf};

use super::config::Place;

/// How much of the log an error shows.
const TAIL_LINES: usize = 12;
const TAIL_BYTES: u64 = 16 * 1024;

/// A server that could not be started or steered.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A folder or file could not be made.
    #[error("cannot write {} for nats-server: {source}; check the folder's rights and free space", .path.display())]
    Files {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The program could not be run.
    #[error("cannot run {}: {source}; run nats/install.sh to get a nats-server", .binary.display())]
    Spawn {
        /// The binary.
        binary: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Another program listens there.
    #[error("port {port} is taken by another program: stop that one, or choose another port")]
    PortTaken {
        /// The port.
        port: u16,
    },
    /// The server ended by itself.
    #[error("nats-server ended at its start ({status}); its log {} ends with:\n{tail}", .log.display())]
    Ended {
        /// The exit status.
        status: String,
        /// The log file.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },
    /// Nothing answered in time.
    #[error("nats-server did not answer in time ({waited_for}); its log {} ends with:\n{tail}", .log.display())]
    NotReady {
        /// What was still missing.
        waited_for: String,
        /// The log file.
        log: PathBuf,
        /// The end of the log.
        tail: String,
    },
    /// There is no process: it was stopped or killed.
    #[error("this nats-server is stopped: restart it first")]
    NotRunning,
    /// A cluster of fewer than three nodes, or too many.
    #[error("a cluster has 3 to 7 nodes, not {nodes}")]
    ClusterSize {
        /// What was asked for.
        nodes: usize,
    },
}

/// What went wrong while waiting, before the log was looked at.
#[derive(Debug)]
pub(crate) enum Trouble {
    Ended(String),
    NotReady(String),
}

impl Trouble {
    /// Adds what the log says.
    pub(crate) fn explain(self, place: &Place, log: &Path) -> ServerError {
        let tail = tail(log);
        match self {
            Trouble::Ended(_) if tail.contains("address already in use") => {
                ServerError::PortTaken { port: place.client }
            }
            Trouble::Ended(status) => ServerError::Ended { status, log: log.to_owned(), tail },
            Trouble::NotReady(waited_for) => {
                ServerError::NotReady { waited_for, log: log.to_owned(), tail }
            }
        }
    }
}

/// The last lines of a log; a note in its place when it cannot be read.
fn tail(log: &Path) -> String {
    use std::io::{Read, Seek, SeekFrom};
    let read = || -> io::Result<String> {
        let mut file = std::fs::File::open(log)?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
        let mut bytes = Vec::new();
        file.take(TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    match read() {
        Err(error) => format!("(the log cannot be read: {error})"),
        Ok(text) => {
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
        }
    }
}
