//! What a process finds in its environment: a clean one, with the facts of its run.
//!
//! *Invariant: nothing of this process's environment gets through that the operator did not name*,
//! and a job sets only the names that it may: some, such as `BASH_ENV` or `NODE_OPTIONS`, would
//! run code of the job's own.

use std::collections::BTreeMap;
use std::ffi::OsString;

use chrono::SecondsFormat;
use serde_json::value::RawValue;

use crate::context::Context;
use crate::handler::HandlerError;

/// The longest params that are also put into the environment, in bytes. Linux takes 128 KiB for one
/// variable.
const MAX_PARAMS: usize = 32 * 1024;

/// What every process gets.
const ALWAYS: [&str; 3] = ["PATH", "HOME", "LANG"];

/// Where programs are looked for when this process does not know.
const DEFAULT_PATH: &str = "/usr/local/bin:/usr/bin:/bin";

/// The prefix of everything that we say.
const OURS: &str = "TASKPARTY_";

/// Names of variables: whole ones, and beginnings that end in `*`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvNames(Vec<String>);

impl Default for EnvNames {
    /// `JOB_*`.
    fn default() -> Self {
        Self(vec!["JOB_*".into()])
    }
}

impl EnvNames {
    /// Reads names such as `REGION`, `JOB_*` or `*`.
    ///
    /// # Errors
    /// What is wrong with a name, in words.
    pub fn new<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Result<Self, String> {
        let read = |name: S| {
            let name = name.as_ref();
            let plain = name.strip_suffix('*').unwrap_or(name);
            if name == "*" || is_name(plain) {
                Ok(name.to_owned())
            } else {
                Err(format!("{name:?} is no variable; write NAME, or PREFIX_*"))
            }
        };
        names.into_iter().map(read).collect::<Result<_, _>>().map(Self)
    }

    /// Whether `name` is one of them.
    pub fn contains(&self, name: &str) -> bool {
        self.0.iter().any(|known| match known.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => known == name,
        })
    }
}

fn is_name(name: &str) -> bool {
    let rest = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    name.bytes().next().is_some_and(|b| !b.is_ascii_digit()) && name.as_bytes().iter().all(rest)
}

/// Checks the variables of a job.
pub(super) fn check(env: &BTreeMap<String, String>, allowed: &EnvNames) -> Result<(), String> {
    for (name, value) in env {
        if !is_name(name) {
            return Err(format!("env: {name:?} is no name of a variable"));
        }
        if name.starts_with(OURS) {
            return Err(format!("env: {name} is set by TaskParty"));
        }
        if !allowed.contains(name) {
            return Err(format!(
                "env: this executor lets jobs set only {}, not {name}",
                allowed.0.join(", ")
            ));
        }
        if value.contains('\0') {
            return Err(format!("env: {name} holds a zero byte"));
        }
    }
    Ok(())
}

/// Everything that a process of this run finds.
pub(super) fn variables(
    context: &Context,
    params: &RawValue,
    base: &BTreeMap<OsString, OsString>,
    job: &BTreeMap<String, String>,
) -> Result<BTreeMap<OsString, OsString>, HandlerError> {
    let mut all = base.clone();
    all.extend(job.iter().map(|(name, value)| (name.into(), value.into())));
    let mut say = |name: &str, value: String| {
        all.insert(OsString::from(format!("{OURS}{name}")), value.into());
    };
    say("RUN", context.run().to_string());
    say("JOB", context.job().to_string());
    say("SHARD_INDEX", context.shard_index().to_string());
    say("SHARD_TOTAL", context.shard_total().to_string());
    if let Some(param) = context.shard_param::<Box<RawValue>>()? {
        say("SHARD_PARAM", plain(&param));
    }
    say("ATTEMPT", context.attempt().to_string());
    let time =
        |time: chrono::DateTime<chrono::Utc>| time.to_rfc3339_opts(SecondsFormat::Millis, true);
    say("FIRE_TIME", time(context.fire_time()));
    say("IDEMPOTENCY_KEY", context.idempotency_key().to_owned());
    if let Some(deadline) = context.deadline() {
        say("DEADLINE", time(deadline));
    }
    if params.get().len() <= MAX_PARAMS && !params.get().contains('\0') {
        say("PARAMS", params.get().to_owned());
    }
    Ok(all)
}

/// A JSON string as its text, anything else as JSON: what a shell can use. A text that no variable
/// can hold stays JSON.
fn plain(value: &RawValue) -> String {
    match serde_json::from_str::<String>(value.get()) {
        Ok(text) if !text.contains('\0') => text,
        _ => value.get().to_owned(),
    }
}

/// What a process gets out of `all`, this process's own environment: `PATH`, `HOME`, `LANG`, and what
/// the operator adds with `more`.
pub fn inherited(
    all: impl IntoIterator<Item = (OsString, OsString)>,
    more: &EnvNames,
) -> BTreeMap<OsString, OsString> {
    let wanted = |name: &OsString| {
        name.to_str().is_some_and(|name| ALWAYS.contains(&name) || more.contains(name))
    };
    let mut picked: BTreeMap<_, _> = all.into_iter().filter(|(name, _)| wanted(name)).collect();
    picked.entry("PATH".into()).or_insert_with(|| DEFAULT_PATH.into());
    picked
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_whole_or_beginnings() {
        let names = EnvNames::new(["REGION", "JOB_*"]).unwrap();
        for (name, is) in [
            ("REGION", true),
            ("REGION_2", false),
            ("JOB_", true),
            ("JOB_DAY", true),
            ("JOB", false),
        ] {
            assert_eq!(names.contains(name), is, "{name}");
        }
        assert!(EnvNames::new(["*"]).unwrap().contains("PATH"));
        for wrong in ["", "A B", "*A", "A**", "1A", "A=B", "A-B"] {
            assert!(EnvNames::new([wrong]).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_job_sets_only_what_it_may() {
        let set = |name: &str, value: &str| {
            check(&BTreeMap::from([(name.into(), value.into())]), &EnvNames::default())
        };
        assert_eq!(set("JOB_DAY", "1 May"), Ok(()));
        for (name, value) in
            [("BASH_ENV", "$(id)"), ("PATH", "/tmp"), ("JOB_A=B", ""), ("JOB_X", "a\0b"), ("", "")]
        {
            assert!(set(name, value).is_err(), "{name}");
        }
        let all = EnvNames::new(["*"]).unwrap();
        let ours = BTreeMap::from([("TASKPARTY_RUN".to_owned(), String::new())]);
        assert!(check(&ours, &all).is_err(), "what we say cannot be overwritten");
    }

    #[test]
    fn a_text_comes_without_its_quotes() {
        for (json, text) in [(r#""south""#, "south"), ("7", "7"), (r#"{"a": 1}"#, r#"{"a": 1}"#)] {
            let json = RawValue::from_string(json.into()).unwrap();
            assert_eq!(plain(&json), text);
        }
    }
}
