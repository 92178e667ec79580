//! The place of one process: what it is started with, its ways to NATS, and the process itself.

use std::time::Duration;

use anyhow::Result;
use rustix::process::Signal;
use taskparty_nats::proxy::Proxy;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use crate::journal::Journal;
use crate::process::{Process, Spec};

/// How often an end that nobody asked for is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// How long a process that ended by itself stays away, as a supervisor has it.
const BACK_OFF: Duration = Duration::from_secs(1);

/// The place of one process.
#[derive(Debug)]
pub struct Seat {
    /// Its name, in the journal and of its log.
    pub name: String,
    /// What is started here.
    pub spec: Spec,
    /// Its ways to the nodes of NATS, by node; empty: it connects by itself.
    pub proxies: Vec<Proxy>,
    process: Mutex<Option<Process>>,
}

impl Seat {
    /// An empty place.
    pub fn new(name: impl Into<String>, spec: Spec, proxies: Vec<Proxy>) -> Self {
        Self { name: name.into(), spec, proxies, process: Mutex::new(None) }
    }

    /// Starts the process, when there is none.
    ///
    /// # Errors
    /// As [`Process::start`].
    pub async fn start(&self) -> Result<()> {
        let mut process = self.process.lock().await;
        if process.is_none() {
            *process = Some(Process::start(&self.spec)?);
        }
        Ok(())
    }

    /// SIGKILL. Safe twice.
    pub async fn kill(&self) {
        self.process.lock().await.take();
    }

    /// SIGTERM, and waits for the end.
    ///
    /// # Errors
    /// When it does not end well, and in time.
    pub async fn stop(&self, patience: Duration) -> Result<()> {
        let process = self.process.lock().await.take();
        match process {
            Some(process) => process.stop(patience).await,
            None => Ok(()),
        }
    }

    /// Sends a signal, when it runs.
    pub async fn signal(&self, signal: Signal) {
        if let Some(process) = self.process.lock().await.as_ref() {
            let _ = process.signal(signal);
        }
    }

    /// Its process id, when it runs.
    pub async fn pid(&self) -> Option<u32> {
        self.process.lock().await.as_ref().map(Process::pid)
    }

    /// Starts it again when it ends by itself, until `stop`; says so, and returns how often.
    pub async fn supervise(&self, journal: &Journal, stop: &CancellationToken) -> u64 {
        let mut ends = 0;
        loop {
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = stop.cancelled() => return ends,
            }
            let status = self.process.lock().await.as_mut().and_then(Process::ended);
            let Some(status) = status else { continue };
            ends += 1;
            journal.say(format!("{} ended by itself: {status}", self.name));
            self.kill().await;
            tokio::time::sleep(BACK_OFF).await;
            if let Err(error) = self.start().await {
                journal.say(format!("{} does not start: {error:#}", self.name));
            }
        }
    }
}
