//! The process of one server, bound to the life of ours.

use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};
use tokio::time::Instant;

use super::error::ServerError;
use super::guard::Guarded;

/// How often an ended process is looked for.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Process(Guarded);

impl Process {
    /// Starts `binary -c conf`; it is there until we have drained, as Ctrl-C reaches us alone.
    pub(crate) fn spawn(binary: &Path, conf: &Path, log: &Path) -> Result<Self, ServerError> {
        let output = OpenOptions::new()
            .create(true)
            .append(true)
            .open(log)
            .map_err(|source| ServerError::Files { path: log.to_owned(), source })?;
        let failed = |source| ServerError::Spawn { binary: binary.to_owned(), source };
        if !binary.is_file() {
            return Err(failed(std::io::ErrorKind::NotFound.into()));
        }
        let too = output.try_clone().map_err(failed)?;
        let guarded = Guarded::spawn(binary, |command| {
            command.arg("-c").arg(conf).stdout(output).stderr(too);
        });
        Ok(Self(guarded.map_err(failed)?))
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        match self.0.ended() {
            Ok(status) => status.map(|status| status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Returns once it has really stopped: the signal alone lets it go on for a moment.
    pub(crate) fn pause(&self) -> Result<(), ServerError> {
        self.signal(Signal::STOP)?;
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            let stopped =
                waitid(WaitId::Pid(self.0.pid()), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
            match stopped {
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Ok(Some(_)) => break,
                Err(_) => return Err(ServerError::NotRunning),
            }
        }
        Ok(())
    }

    pub(crate) fn resume(&self) -> Result<(), ServerError> {
        self.signal(Signal::CONT)
    }

    /// Asks it to end, waits up to `patience`, and kills it then.
    pub(crate) async fn stop(mut self, patience: Duration) {
        let deadline = Instant::now() + patience;
        if self.signal(Signal::TERM).is_ok() && self.signal(Signal::CONT).is_ok() {
            while self.ended().is_none() && Instant::now() < deadline {
                tokio::time::sleep(LOOK).await;
            }
        }
        // Dropping kills what is left.
    }

    fn signal(&self, signal: Signal) -> Result<(), ServerError> {
        self.0.signal(signal).map_err(|_| ServerError::NotRunning)
    }
}
