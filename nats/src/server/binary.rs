//! Which nats-server binary to run.
//!
//! Never downloads anything: `nats/install.sh` does that, and every error here names it.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The oldest nats-server that has all that TaskParty needs (message schedules came with it).
pub const OLDEST: (u64, u64) = (2, 12);

/// Where to look for the binary, in this order.
#[derive(Debug, Clone, Default)]
pub struct Search {
    /// What the user named; nothing else is tried when it is set.
    pub explicit: Option<PathBuf>,
    /// A value in the form of the `PATH` variable.
    pub path: Option<OsString>,
    /// Files or folders inside a checkout of TaskParty: each of their ancestors is asked for
    /// `nats/.bin/nats-server`, which is where `nats/install.sh` puts it.
    pub checkouts: Vec<PathBuf>,
}

impl Search {
    /// Looks where this process would: `TASKPARTY_NATS_SERVER`, `PATH`, the checkout that holds
    /// the running program and the one that this crate was built in. The one place of this crate
    /// that reads the environment; a caller with a configuration fills the fields by itself.
    pub fn from_env() -> Self {
        let mut checkouts: Vec<PathBuf> = std::env::current_exe().into_iter().collect();
        checkouts.push(PathBuf::from(env!("CARGO_MANIFEST_DIR")));
        Self {
            explicit: std::env::var_os("TASKPARTY_NATS_SERVER")
                .filter(|v| !v.is_empty())
                .map(PathBuf::from),
            path: std::env::var_os("PATH"),
            checkouts,
        }
    }
}

/// A nats-server that is new enough.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binary {
    /// Where it is.
    pub path: PathBuf,
    /// What it says of itself, such as `2.15.1`.
    pub version: String,
    /// How it was found.
    pub source: Source,
}

/// How a binary was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Named by the user.
    Explicit,
    /// On `PATH`.
    Path,
    /// Put there by `nats/install.sh`.
    Installed,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Source::Explicit => "as configured",
            Source::Path => "from PATH",
            Source::Installed => "installed by nats/install.sh",
        })
    }
}

/// No nats-server to run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum FindError {
    /// Nothing anywhere.
    #[error("no nats-server found{}: run nats/install.sh, or put nats-server {}.{} or newer on PATH", skipped(.too_old), OLDEST.0, OLDEST.1)]
    Missing {
        /// Servers that were found and are too old, with their versions.
        too_old: Vec<(PathBuf, String)>,
    },
    /// The one that the user named is too old.
    #[error("nats-server {version} at {} is too old: TaskParty needs {}.{} or newer; run nats/install.sh and leave the path away", .path.display(), OLDEST.0, OLDEST.1)]
    TooOld {
        /// Its path.
        path: PathBuf,
        /// Its version.
        version: String,
    },
    /// The one that the user named is no nats-server that runs.
    #[error("{} is no nats-server that runs here ({reason}): run nats/install.sh and leave the path away, or name another", .path.display())]
    NotRunnable {
        /// Its path.
        path: PathBuf,
        /// What happened instead.
        reason: String,
    },
}

fn skipped(too_old: &[(PathBuf, String)]) -> String {
    let list: Vec<String> =
        too_old.iter().map(|(path, version)| format!("{} is {version}", path.display())).collect();
    if list.is_empty() {
        String::new()
    } else {
        format!(" that is new enough ({})", list.join(", "))
    }
}

/// Finds a nats-server that is new enough. Runs each candidate once to ask its version.
///
/// # Errors
/// See [`FindError`]: each says what to do.
pub fn find(search: &Search) -> Result<Binary, FindError> {
    if let Some(path) = &search.explicit {
        let version = version_of(path)
            .map_err(|reason| FindError::NotRunnable { path: path.clone(), reason })?;
        return if new_enough(&version) {
            Ok(Binary { path: path.clone(), version, source: Source::Explicit })
        } else {
            Err(FindError::TooOld { path: path.clone(), version })
        };
    }
    let mut too_old = Vec::new();
    for (path, source) in candidates(search) {
        match version_of(&path) {
            Ok(version) if new_enough(&version) => {
                return Ok(Binary { path, version, source });
            }
            Ok(version) => too_old.push((path, version)),
            Err(_) => {}
        }
    }
    Err(FindError::Missing { too_old })
}

fn candidates(search: &Search) -> Vec<(PathBuf, Source)> {
    let on_path = search
        .path
        .iter()
        .flat_map(std::env::split_paths)
        .map(|dir| (dir.join("nats-server"), Source::Path));
    let installed = search
        .checkouts
        .iter()
        .flat_map(|inside| inside.ancestors())
        .map(|dir| (dir.join("nats/.bin/nats-server"), Source::Installed));
    let mut found: Vec<(PathBuf, Source)> = Vec::new();
    for (path, source) in on_path.chain(installed) {
        if path.is_absolute() && path.is_file() && !found.iter().any(|(known, _)| *known == path) {
            found.push((path, source));
        }
    }
    found
}

fn version_of(binary: &Path) -> Result<String, String> {
    let output = Command::new(binary)
        .arg("--version")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim()
        .strip_prefix("nats-server: ")
        .map(|version| version.trim_start_matches('v').to_owned())
        .ok_or_else(|| "--version does not answer as nats-server does".to_owned())
}

/// Whether a version as servers tell it (`2.15.1`, `2.12.0-RC.1`) is at least [`OLDEST`].
pub(crate) fn new_enough(version: &str) -> bool {
    let mut numbers =
        version.trim_start_matches('v').split('.').map(|part| part.parse::<u64>().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) >= OLDEST,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_numbers() {
        for (version, enough) in [
            ("2.12.0", true),
            ("2.15.1", true),
            ("3.0.0", true),
            ("2.12.0-RC.1", true),
            ("2.9.9", false),
            ("2.10.26", false),
            ("", false),
            ("x", false),
        ] {
            assert_eq!(new_enough(version), enough, "{version}");
        }
    }
}
