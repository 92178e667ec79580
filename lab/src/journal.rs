//! What is said about what is done: to the terminal, and with the wall time, to find it again beside the logs.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use taskparty_nats::clock::Clock;

/// Where lines go, beside the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Voice {
    /// To stdout.
    Out,
    /// To stderr: stdout is for data.
    Err,
    /// Nowhere.
    Silent,
}

/// Cheap to clone.
#[derive(Debug, Clone)]
pub struct Journal {
    voice: Voice,
    file: Arc<Mutex<File>>,
    clock: Clock,
}

impl Journal {
    /// Writes into `dir`.
    ///
    /// # Errors
    /// When the file cannot be made.
    pub fn open(dir: &Path, voice: Voice) -> Result<Self> {
        let path = dir.join("journal.log");
        let file = File::create(&path).with_context(|| path.display().to_string())?;
        Ok(Self { voice, file: Arc::new(Mutex::new(file)), clock: Clock::system() })
    }

    /// A line.
    pub fn say(&self, text: impl AsRef<str>) {
        let now = self.clock.now().format("%H:%M:%S%.3f");
        let line = format!("{now} {}\n", text.as_ref());
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        // A terminal that has gone, or a full disk, is no reason to end.
        let _ = match self.voice {
            Voice::Out => std::io::stdout().write_all(line.as_bytes()),
            Voice::Err => std::io::stderr().write_all(line.as_bytes()),
            Voice::Silent => Ok(()),
        };
        let _ = file.write_all(line.as_bytes());
    }

    /// The wall clock.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }
}
