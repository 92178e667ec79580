//! A child process that is bound to the life of ours.
//!
//! *Invariant: it never outlives the process that started it*, even when that one is killed with
//! SIGKILL. A shell starts a guard in the background and then becomes the child. The guard reads from a
//! pipe whose other end only we hold: a line says that all is well, the end of the pipe says that we are
//! gone, and the child is killed.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// Descriptor 3 because a background command of `sh` gets its standard input from /dev/null.
/// `$$` is the shell, also inside the parentheses, and after `exec` it is the child.
const GUARD: &str = r#"exec 3<&0 </dev/null
(read -r _ <&3 || kill -KILL $$) &
exec "$@" 3<&-"#;

/// A child process; killed when this is dropped.
#[derive(Debug)]
pub struct Guarded {
    child: Child,
    pid: Pid,
    /// Our end of the guard's pipe. Taken only after the child has been reaped.
    lifeline: Option<ChildStdin>,
}

impl Guarded {
    /// Starts `program` in a process group of its own, so that Ctrl-C in a terminal reaches us alone.
    /// `prepare` adds its arguments, and says its environment, its folder and where its output goes; its
    /// standard input is empty.
    ///
    /// # Errors
    /// When no process can be started. That `program` is none shows in how the process ends.
    pub fn spawn(program: &Path, prepare: impl FnOnce(&mut Command)) -> std::io::Result<Self> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", GUARD, "taskparty-guard"]).arg(program);
        prepare(&mut command);
        let mut child = command.process_group(0).stdin(Stdio::piped()).spawn()?;
        let lifeline = child.stdin.take();
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, lifeline })
    }

    /// Its id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system does not say.
    pub fn ended(&mut self) -> std::io::Result<Option<ExitStatus>> {
        self.child.try_wait()
    }

    /// Sends it a signal. It is reaped only through `&mut self`, so its id is still its own here.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> std::io::Result<()> {
        Ok(kill_process(self.pid, signal)?)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // Both are no-ops on a child that has been reaped.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Some(mut lifeline) = self.lifeline.take() {
            let _ = lifeline.write_all(b"ended\n");
        }
    }
}
