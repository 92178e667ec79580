//! A process: it writes to a file of its own, and never outlives the one that started it.
//!
//! It is guarded as the nodes of NATS are: [`Guarded`].

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::process::Signal;
use taskparty_nats::server::Guarded;
use tokio::time::{Instant, sleep};

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
pub struct Process(Guarded);

impl Process {
    /// Starts it.
    ///
    /// # Errors
    /// When it cannot be started, or its log cannot be written.
    pub fn start(spec: &Spec) -> Result<Self> {
        let log = OpenOptions::new().create(true).append(true).open(&spec.log);
        let mut log = log.with_context(|| format!("the log {}", spec.log.display()))?;
        writeln!(log, "--- started")?;
        let too = log.try_clone()?;
        let started = Guarded::spawn(&spec.program, |command| {
            command.args(&spec.args);
            command.env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
            command.envs(spec.env.iter().cloned()).current_dir(&spec.dir).stdout(log).stderr(too);
        });
        Ok(Self(started.with_context(|| format!("starting {}", spec.program.display()))?))
    }

    /// Its id.
    pub fn pid(&self) -> u32 {
        self.0.pid().as_raw_nonzero().get().unsigned_abs()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        match self.0.ended() {
            Ok(status) => status.map(|status| status.to_string()),
            Err(error) => Some(error.to_string()),
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// When it has ended.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        self.0.signal(signal).context("a process that has ended takes no signal")
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
            if let Some(status) = self.0.ended()? {
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

/// The last `lines` lines of a file.
pub fn tail(file: &Path, lines: usize) -> String {
    let text = String::from_utf8_lossy(&std::fs::read(file).unwrap_or_default()).into_owned();
    let skip = text.lines().count().saturating_sub(lines);
    text.lines().skip(skip).collect::<Vec<_>>().join("\n")
}
