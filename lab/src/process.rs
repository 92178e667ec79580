//! A process: it writes to a file of its own, and never outlives the one that started it.
//!
//! As with the nodes of NATS, a shell starts a guard in the background and then becomes the
//! process. The guard reads from a pipe whose other end only we hold, and kills when that ends
//! without a word.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::{Instant, sleep};

const GUARD: &str = r#"exec 3<&0 </dev/null
(read -r _ <&3 || kill -KILL $$) &
exec "$@" 3<&-"#;

const LOOK: Duration = Duration::from_millis(5);

/// How to start a process, again and again.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its environment; nothing else of ours is passed on but `PATH`.
    pub env: Vec<(String, String)>,
    /// Where it runs.
    pub dir: PathBuf,
    /// Where what it says goes; appended to.
    pub log: PathBuf,
}

/// A process; killed when it is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    pid: Pid,
    /// Our end of the guard's pipe. Taken only after the process has been reaped.
    lifeline: Option<ChildStdin>,
}

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be started, or its log cannot be written.
    pub fn start(spec: &Spec) -> Result<Self> {
        use std::os::unix::process::CommandExt;
        let log = OpenOptions::new().create(true).append(true).open(&spec.log);
        let mut log = log.with_context(|| format!("the log {}", spec.log.display()))?;
        writeln!(log, "--- started")?;
        let mut command = Command::new("/bin/sh");
        command.args(["-c", GUARD, "taskparty-guard"]).arg(&spec.program).args(&spec.args);
        command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
        command.envs(spec.env.iter().cloned()).current_dir(&spec.dir).process_group(0);
        command.stdin(Stdio::piped()).stdout(log.try_clone()?).stderr(log);
        let mut child =
            command.spawn().with_context(|| format!("starting {}", spec.program.display()))?;
        let lifeline = child.stdin.take();
        let pid = Pid::from_child(&child);
        Ok(Self { child, pid, lifeline })
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self.child.try_wait() {
            Ok(None) => None,
            Ok(Some(status)) => Some(status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        kill_process(self.pid, signal).context("a process that has ended takes no signal")
    }

    /// Asks it to end and waits; kills it after `patience`, which is an error.
    ///
    /// # Errors
    /// When it did not end in time, or not with success.
    pub async fn stop(mut self, patience: Duration) -> Result<()> {
        let end = Instant::now() + patience;
        self.signal(Signal::TERM)?;
        self.signal(Signal::CONT)?;
        loop {
            if let Some(status) = self.child.try_wait()? {
                if !status.success() {
                    bail!("it was asked to end, and ended with {status}");
                }
                return Ok(());
            }
            if Instant::now() >= end {
                bail!("it was asked to end, and did not within {patience:?}");
            }
            sleep(LOOK).await;
        }
    }

    /// The memory that it holds, in KiB; none when it has ended.
    pub fn memory(&self) -> Option<u64> {
        memory(self.pid())
    }
}

/// The memory that the process `pid` holds, in KiB.
pub fn memory(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().trim_end_matches("kB").trim().parse().ok()
}

/// The processor time that the process `pid` has used.
pub fn processor(pid: u32) -> Option<Duration> {
    /// Linux counts in hundredths of a second here, whatever the kernel's own tick is.
    const TICKS: u64 = 100;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the program's name, which may hold anything.
    let after_name = stat.rsplit_once(')')?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<u64>().ok();
    Some(Duration::from_millis((ticks(11)? + ticks(12)?) * 1000 / TICKS))
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

/// The last `lines` lines of a file.
pub fn tail(file: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    let skip = text.lines().count().saturating_sub(lines);
    text.lines().skip(skip).collect::<Vec<_>>().join("\n")
}
