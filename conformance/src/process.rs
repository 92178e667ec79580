//! An executor as a process of its own: started, signalled, and killed with its test.

use std::fs::File;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use taskparty_common::name::Instance;
use tempfile::NamedTempFile;

use crate::site::until;
use crate::subject::Subject;

/// A running executor. Dropping it kills the process; when the test is failing, what the process
/// had to say is printed.
#[derive(Debug)]
pub struct Process {
    child: Child,
    said: NamedTempFile,
    /// What it calls itself, once it has registered.
    pub instance: Instance,
}

/// A process that has not registered yet.
#[derive(Debug)]
pub struct Starting {
    child: Child,
    said: NamedTempFile,
}

impl Starting {
    /// Starts `subject` as an executor of `app`, with `drain` for what runs at its end.
    pub fn start(subject: &Subject, url: &str, app: &str, drain: Duration) -> Self {
        let said = NamedTempFile::new().unwrap();
        let output = || Stdio::from(File::options().append(true).open(said.path()).unwrap());
        let mut command = Command::new(&subject.program);
        command.args(&subject.args).env("NATS_URL", url).env("TASKPARTY_APP", app);
        command.env("TASKPARTY_DRAIN", drain.as_secs_f64().to_string());
        command.stdin(Stdio::null()).stdout(output()).stderr(output());
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| {
            panic!("{} does not start: {error}; run make test-langs", subject.program.display())
        });
        Self { child, said }
    }

    /// It calls itself `instance`.
    pub fn registered(self, instance: Instance) -> Process {
        Process { child: self.child, said: self.said, instance }
    }

    /// Fails the test when the process has ended already.
    pub fn check(&mut self) {
        if let Some(status) = self.child.try_wait().unwrap() {
            panic!("the executor ended at once, with {status}: {}", text(&self.said));
        }
    }
}

impl Process {
    /// Sends `signal`.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Waits for the end of the process, which must be a good one.
    pub async fn ends_well(mut self) {
        let status =
            until("the end of the executor", async || self.child.try_wait().unwrap()).await;
        assert!(status.success(), "the executor ended with {status}");
    }

    /// Asks for the end, and waits for it.
    pub async fn stop(self) {
        self.signal(Signal::TERM);
        self.ends_well().await;
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("{} said:\n{}", self.instance, text(&self.said));
        }
    }
}

fn text(said: &NamedTempFile) -> String {
    std::fs::read_to_string(said.path()).unwrap_or_default()
}
