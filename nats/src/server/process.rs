//! The process of one server, bound to the life of ours.
//!
//! *Invariant: no nats-server outlives the process that started it*, even when that one is killed
//! with SIGKILL. A shell starts a guard in the background and then becomes the server. The guard
//! reads from a pipe whose other end only we hold: a line says that all is well, the end of the
//! pipe says that we are gone, and the server is killed.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use tokio::time::Instant;

use super::error::ServerError;

/// Descriptor 3 because a background command of `sh` gets its standard input from /dev/null.
/// `$$` is the shell, also inside the parentheses, and after `exec` it is the server.
const GUARD: &str = r#"exec 3<&0 </dev/null
(read -r _ <&3 || kill -KILL $$) &
exec "$@" 3<&-"#;

/// How often an ended process is looked for.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    pid: Pid,
    /// Our end of the guard's pipe. Taken only after the server has been reaped.
    lifeline: Option<ChildStdin>,
}

impl Process {
    /// Starts `binary -c conf` in a process group of its own, so that Ctrl-C in a terminal reaches
    /// us alone and the server is there until we have drained.
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
        let mut child = Command::new("/bin/sh")
            .args(["-c", GUARD, "nats-server-guard"])
            .arg(binary)
            .arg("-c")
            .arg(conf)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(output.try_clone().map_err(failed)?)
            .stderr(output)
            .spawn()
            .map_err(failed)?;
        let lifeline = child.stdin.take();
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, lifeline })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(Some(status)) => Some(status.to_string()),
            Ok(None) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    /// Returns once it has really stopped: the signal alone lets it go on for a moment.
    pub(crate) fn pause(&self) -> Result<(), ServerError> {
        self.signal(Signal::STOP)?;
        let deadline = Instant::now() + Duration::from_secs(2);
        while Instant::now() < deadline {
            let stopped =
                waitid(WaitId::Pid(self.pid), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
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

    /// The child is reaped only through `&mut self`, so its pid is still its own here.
    fn signal(&self, signal: Signal) -> Result<(), ServerError> {
        kill_process(self.pid, signal).map_err(|_| ServerError::NotRunning)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both are no-ops on a child that has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mut lifeline) = self.lifeline.take() {
            let _ = lifeline.write_all(b"ended\n");
        }
    }
}
