//! The environment, read once.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

/// The variables of this process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Env(BTreeMap<OsString, OsString>);

impl Env {
    /// As the process has it.
    pub(crate) fn read() -> Self {
        Self(std::env::vars_os().filter(|(_, value)| !value.is_empty()).collect())
    }

    /// A variable as text; one that is empty is none.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        self.0.get(&OsString::from(name)).map(|value| value.to_string_lossy().into_owned())
    }

    /// Every variable.
    pub(super) fn all(&self) -> BTreeMap<OsString, OsString> {
        self.0.clone()
    }

    /// A variable as a path.
    pub(super) fn path(&self, name: &str) -> Option<PathBuf> {
        self.0.get(&OsString::from(name)).map(PathBuf::from)
    }

    /// Who runs this.
    pub(super) fn user(&self) -> String {
        self.text("USER").or_else(|| self.text("LOGNAME")).unwrap_or_else(|| "unknown".into())
    }

    /// This machine's name.
    pub(super) fn host(&self) -> String {
        let kernel = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let host = self.text("HOSTNAME").or_else(kernel).map(|name| name.trim().to_owned());
        host.filter(|name| !name.is_empty()).unwrap_or_else(|| "localhost".into())
    }
}

#[cfg(test)]
impl<const N: usize> From<[(&str, &str); N]> for Env {
    fn from(pairs: [(&str, &str); N]) -> Self {
        Self(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
