//! The process group of one attempt.
//!
//! *Invariant: nothing that runs in the group outlives it*, and it ends with this process, even
//! when that one is killed with SIGKILL. The group is led by a guard, a shell that reads from a pipe
//! whose other end only we hold: a line means SIGTERM for all, the end of the pipe means that we are
//! gone, and all are killed, the guard too. As the guard is reaped last, the group's id is never
//! somebody else's while we use it.
//!
//! What leaves the group on purpose (`setsid`) is out of reach.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;

/// It ignores what it passes on, and what a script sends to its whole group.
const GUARD: &str = "trap '' HUP INT QUIT TERM USR1 USR2 ALRM
while read -r _; do kill -TERM 0; done
kill -KILL 0";

/// How long the guard may take to read a line.
const TELL: Duration = Duration::from_millis(500);

/// How often a program that is just being written is tried, and the pause in between.
const BUSY_TRIES: u32 = 20;
const BUSY_PAUSE: Duration = Duration::from_millis(50);

/// A group that is killed when this is dropped.
#[derive(Debug)]
pub(super) struct Group {
    id: Pid,
    guard: ChildStdin,
    /// Kept, and with it the group's id, until the group has been killed.
    _leader: Child,
}

impl Group {
    /// A group with nothing but its guard.
    pub(super) fn start() -> std::io::Result<Self> {
        let mut leader = Command::new("/bin/sh")
            .args(["-c", GUARD, "taskparty-script-guard"])
            .env_clear()
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let id = leader.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        match (id, leader.stdin.take()) {
            (Some(id), Some(guard)) => Ok(Self { id, guard, _leader: leader }),
            _ => Err(std::io::Error::other("the guard ended at once")),
        }
    }

    /// Starts `command` in the group.
    pub(super) async fn spawn(&self, command: &mut Command) -> std::io::Result<Child> {
        command.process_group(self.id.as_raw_nonzero().get());
        for _ in 1..BUSY_TRIES {
            match command.spawn() {
                Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy => {
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                done => return done,
            }
        }
        command.spawn()
    }

    /// Asks all of it to end. By way of the guard, which is sure to ignore the signal by then.
    pub(super) async fn terminate(&mut self) {
        let told = timeout(TELL, self.guard.write_all(b"end\n")).await;
        if !matches!(told, Ok(Ok(()))) {
            let _ = kill_process_group(self.id, Signal::TERM);
        }
    }

    /// Ends all of it, at once and for good.
    pub(super) fn kill(&self) {
        let _ = kill_process_group(self.id, Signal::KILL);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}
