//! Which file was opened.
//!
//! SQLite goes on with a file that somebody has removed or replaced: what it writes then is gone
//! with the process, without a word. *Invariant: nothing is written into a file that is no longer
//! where it was opened.*

use std::io;
use std::path::Path;

/// The file behind a path, as the system knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity(u64, u64);

impl Identity {
    #[cfg(unix)]
    pub(super) fn of(path: &Path) -> Result<Self, sqlx::Error> {
        use std::os::unix::fs::MetadataExt;
        let file = std::fs::metadata(path).map_err(|error| outage(path, &error.to_string()))?;
        Ok(Self(file.dev(), file.ino()))
    }

    #[cfg(not(unix))]
    pub(super) fn of(path: &Path) -> Result<Self, sqlx::Error> {
        std::fs::metadata(path).map_err(|error| outage(path, &error.to_string()))?;
        Ok(Self(0, 0))
    }

    /// Whether `path` still names this file.
    ///
    /// # Errors
    /// [`sqlx::Error::Io`], which [`StoreError`](super::StoreError) takes for an outage: putting the file back
    /// mends it.
    pub(super) fn check(self, path: &Path) -> Result<(), sqlx::Error> {
        if Self::of(path)? == self {
            return Ok(());
        }
        Err(outage(path, "another file is there now"))
    }
}

fn outage(path: &Path, why: &str) -> sqlx::Error {
    let text = format!(
        "the file {} was moved, removed or replaced ({why}); put it back, or start again with the \
         file that is to be used",
        path.display()
    );
    sqlx::Error::Io(io::Error::new(io::ErrorKind::NotFound, text))
}
