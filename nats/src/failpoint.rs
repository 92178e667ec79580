//! Fail points: named places at which a test can kill, pause or delay the process.
//!
//! [`fail_point!`](crate::fail_point) marks a place. Without the feature `failpoints` it is
//! nothing at all. With it, a process-wide table, set once by [`set`], says what happens there.
//!
//! *Invariant: a build without the feature holds no trace of a fail point.* No release is built
//! with it.

/// Marks a place at which a test can kill, pause or delay the process.
///
/// Use it inside an async function: `taskparty_nats::fail_point!("fire.after_lock");`. It is
/// compiled out unless `taskparty-nats` has the feature `failpoints`.
#[cfg(feature = "failpoints")]
#[macro_export]
macro_rules! fail_point {
    ($name:expr) => {
        $crate::failpoint::hit($name).await
    };
}

/// Marks a place at which a test can kill, pause or delay the process.
///
/// Use it inside an async function: `taskparty_nats::fail_point!("fire.after_lock");`. It is
/// compiled out unless `taskparty-nats` has the feature `failpoints`.
#[cfg(not(feature = "failpoints"))]
#[macro_export]
macro_rules! fail_point {
    ($name:expr) => {};
}

/// Why a table of fail points was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FailPointError {
    /// A rule that cannot be read.
    #[error("fail point `{0}` is not `name=kill|pause|sleep(ms)`, with an optional `@n`")]
    Malformed(String),
    /// The table is set once per process.
    #[error("the fail points are already set")]
    AlreadySet,
    /// This build has no fail points.
    #[error("this build has no fail points; build it with the feature `failpoints`")]
    CompiledOut,
}

/// Sets the table of this process from `name=action[@n];…`.
///
/// Actions: `kill` (SIGKILL to itself, as a crash), `pause` (SIGSTOP to itself, until someone
/// sends SIGCONT), `sleep(ms)`. With `@n` it happens at the n-th hit only (from 1), else at each.
///
/// # Errors
/// [`FailPointError`], also when the table was set before; then nothing changes.
#[cfg(not(feature = "failpoints"))]
pub fn set(_rules: &str) -> Result<(), FailPointError> {
    Err(FailPointError::CompiledOut)
}

#[cfg(feature = "failpoints")]
pub use enabled::{hit, set};

#[cfg(feature = "failpoints")]
mod enabled {
    use std::collections::HashMap;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use rustix::process::{Signal, getpid, kill_process};

    use super::FailPointError;

    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Action {
        Kill,
        Pause,
        Sleep(Duration),
    }

    #[derive(Debug)]
    struct Rule {
        action: Action,
        /// The only hit at which it happens; none: each.
        at: Option<u64>,
        hits: AtomicU64,
    }

    /// How long a process may take to stop.
    const TO_STOP: Duration = Duration::from_millis(200);

    static TABLE: OnceLock<HashMap<String, Rule>> = OnceLock::new();

    /// Sets the table of this process from `name=action[@n];…`.
    ///
    /// Actions: `kill` (SIGKILL to itself, as a crash), `pause` (SIGSTOP to itself, until someone
    /// sends SIGCONT), `sleep(ms)`. With `@n` it happens at the n-th hit only (from 1), else at each.
    ///
    /// # Errors
    /// [`FailPointError`], also when the table was set before; then nothing changes.
    pub fn set(rules: &str) -> Result<(), FailPointError> {
        TABLE.set(parse(rules)?).map_err(|_| FailPointError::AlreadySet)
    }

    /// What [`fail_point!`](crate::fail_point) calls.
    pub async fn hit(name: &str) {
        let Some(rule) = TABLE.get().and_then(|table| table.get(name)) else {
            return;
        };
        let hit = rule.hits.fetch_add(1, Ordering::SeqCst) + 1;
        if rule.at.is_some_and(|at| at != hit) {
            return;
        }
        tracing::warn!(fail_point = name, hit, action = ?rule.action, "A fail point was hit.");
        match rule.action {
            Action::Sleep(time) => tokio::time::sleep(time).await,
            Action::Kill => signal(Signal::KILL),
            Action::Pause => {
                signal(Signal::STOP);
                // The process stops a moment after the call has returned; this thread waits for that.
                std::thread::sleep(TO_STOP);
            }
        }
    }

    fn signal(signal: Signal) {
        if let Err(error) = kill_process(getpid(), signal) {
            tracing::error!(%error, "A fail point could not signal its own process.");
        }
    }

    fn parse(rules: &str) -> Result<HashMap<String, Rule>, FailPointError> {
        rules
            .split(';')
            .map(str::trim)
            .filter(|rule| !rule.is_empty())
            .map(|rule| parse_rule(rule).ok_or_else(|| FailPointError::Malformed(rule.to_owned())))
            .collect()
    }

    fn parse_rule(rule: &str) -> Option<(String, Rule)> {
        let (name, what) = rule.split_once('=')?;
        let (action, at) = match what.split_once('@') {
            Some((action, at)) => (action, Some(at.trim().parse().ok().filter(|n| *n > 0)?)),
            None => (what, None),
        };
        let action = match action.trim() {
            "kill" => Action::Kill,
            "pause" => Action::Pause,
            other => {
                let ms = other.strip_prefix("sleep(")?.strip_suffix(')')?;
                Action::Sleep(Duration::from_millis(ms.trim().parse().ok()?))
            }
        };
        Some((name.trim().to_owned(), Rule { action, at, hits: AtomicU64::new(0) }))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn rules_are_read() {
            let table = parse("a.b=kill@3; c = sleep(20) ;d=pause").unwrap();
            assert_eq!((table["a.b"].action, table["a.b"].at), (Action::Kill, Some(3)));
            assert_eq!(table["c"].action, Action::Sleep(Duration::from_millis(20)));
            assert_eq!((table["d"].action, table["d"].at), (Action::Pause, None));
            for bad in ["a", "a=die", "a=kill@0", "a=sleep(x)", "a=sleep(1"] {
                assert_eq!(parse(bad).unwrap_err(), FailPointError::Malformed(bad.to_owned()));
            }
        }

        #[tokio::test]
        async fn a_table_is_set_once_and_counts_its_hits() {
            set("slow=sleep(1)@2").unwrap();
            assert_eq!(set("x=kill"), Err(FailPointError::AlreadySet));
            for _ in 0..3 {
                crate::fail_point!("slow");
                crate::fail_point!("unknown");
            }
            assert_eq!(TABLE.get().unwrap()["slow"].hits.load(Ordering::SeqCst), 3);
        }
    }
}
