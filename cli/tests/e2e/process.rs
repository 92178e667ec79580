//! A process that a test starts, watches and ends, never one that outlives it.

use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::site::{until, within};

/// A process of one test; killed when it is dropped.
pub(crate) struct Process {
    child: Child,
    /// What it says, in one file.
    log: PathBuf,
}

impl Process {
    pub(crate) fn start(mut command: Command, log: PathBuf) -> Self {
        let said = std::fs::File::create(&log).unwrap();
        command.stdin(Stdio::null()).stdout(said.try_clone().unwrap()).stderr(said);
        Self { child: command.kill_on_drop(true).spawn().unwrap(), log }
    }

    pub(crate) fn log(&self) -> String {
        // Not there any more when all of a failed test is taken down.
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until it has said `words`; false when it ended before.
    pub(crate) async fn says(&mut self, words: &str) -> bool {
        until(words, async || {
            // Asked in this order: what it says last must not be missed.
            let ended = self.child.try_wait().unwrap().is_some();
            let said = self.log().contains(words);
            (said || ended).then_some(said)
        })
        .await
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().expect("it runs").cast_signed()).unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub(crate) async fn ended(&mut self) -> ExitStatus {
        within("the end of a process", self.child.wait()).await.unwrap()
    }

    /// `kill -9`.
    pub(crate) async fn kill(mut self) {
        self.signal(Signal::KILL);
        self.ended().await;
    }

    /// SIGTERM, and a good end.
    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        let status = self.ended().await;
        assert!(status.success(), "{status}: {}", self.log());
    }

    /// Waits until it has been killed by one of its fail points.
    pub(crate) async fn dies(mut self) {
        use std::os::unix::process::ExitStatusExt;
        let status = self.ended().await;
        assert_eq!(status.signal(), Some(Signal::KILL.as_raw()), "{}", self.log());
        assert!(self.log().contains("A fail point was hit"), "{}", self.log());
    }

    /// The memory that it holds, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        let path = format!("/proc/{}/status", self.pid().as_raw_nonzero());
        let status = std::fs::read_to_string(path).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let skip = log.lines().count().saturating_sub(40);
            let end: Vec<&str> = log.lines().skip(skip).collect();
            eprintln!("--- the end of {}\n{}", self.log.display(), end.join("\n"));
        }
    }
}
