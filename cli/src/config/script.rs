//! `[script]`: what jobs may run here, for the role `script`.
//!
//! Everything is closed unless it is said. What is said is read whether the role is on or not, so
//! that `taskparty config` shows what is wrong with it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use taskparty_common::duration;
use taskparty_common::name::App;
use taskparty_executor::Executor;
use taskparty_executor::script::{
    self, AllowList, EnvNames, HttpConfig, Language, ScriptConfig, ScriptError,
};
use taskparty_executor::{MAX_SLOTS, slots};
use taskparty_nats::connect::Secret;

use super::env::Env;
use super::settings::Found;
use crate::failure::Failure;

/// The longest time that a script may be waited for.
const LONGEST: Duration = Duration::from_secs(3600);

/// What the role `script` does.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    /// The app that jobs name.
    pub(crate) app: App,
    config: ScriptConfig,
    drain: Duration,
    /// Variables that headers may refer to and that are not set.
    missing: Vec<String>,
}

impl Script {
    /// Reads it; `take` finds a setting.
    pub(super) fn read(take: &mut impl FnMut(&str) -> Found, env: &Env) -> Result<Self, Failure> {
        let mut path = |name: &str| take(name).given().map(PathBuf::from);
        let folder = path("script.folder");
        let ca = path("script.http.ca");
        let interpreters = Language::ALL.into_iter().filter_map(|language| {
            let name = format!("script.interpreters.{}", language.as_str());
            Some((language, path(&name)?))
        });
        let interpreters = interpreters.collect();
        let inline = take("script.inline").parse("script.inline", switch)?;
        let temporary = || env.path("TMPDIR").unwrap_or_else(|| "/tmp".into());
        let inherit = take("script.env").parse("script.env", names)?;
        let secrets = take("script.http.secrets").text();
        let secrets = list(&secrets).map(|name| (name.to_owned(), env.text(name).map(Secret::new)));
        let (found, missing): (Vec<_>, Vec<_>) = secrets.partition(|(_, value)| value.is_some());
        let secrets: BTreeMap<_, _> =
            found.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let allow = take("script.http.allow").parse("script.http.allow", |text| {
            AllowList::new(list(text)).map_err(|error| error.to_string())
        })?;
        let http = (!allow.is_empty()).then_some(HttpConfig { allow, secrets, ca });
        Ok(Self {
            app: take("script.app")
                .parse("script.app", |text| App::new(text).map_err(|error| error.to_string()))?,
            config: ScriptConfig {
                folder,
                inline: inline.then(temporary),
                interpreters,
                programs: take("script.programs").parse("script.programs", switch)?,
                environment: script::inherited(env.all(), &inherit),
                job_env: take("script.job_env").parse("script.job_env", names)?,
                slots: take("script.slots").parse("script.slots", room)?,
                grace: take("script.grace").parse("script.grace", time)?,
                fatal_exit_code: take("script.fatal_exit_code")
                    .parse("script.fatal_exit_code", code)?,
                http,
            },
            drain: take("script.drain").parse("script.drain", time)?,
            missing: missing.into_iter().map(|(name, _)| name).collect(),
        })
    }

    /// The executor that it describes. An error says what to configure.
    pub(crate) fn executor(&self) -> Result<Executor, Failure> {
        if !self.missing.is_empty() {
            return Err(Failure::invalid(format!(
                "script.http.secrets: not set in the environment: {}",
                self.missing.join(", ")
            )));
        }
        let executor = script::executor(self.app.clone(), self.config.clone());
        executor.map(|executor| executor.drain(self.drain)).map_err(|error| {
            Failure::invalid(match error {
                ScriptError::Nothing => {
                    "the role script runs nothing unless it is configured: set script.folder and \
                     script.interpreters.shell, or script.http.allow, in taskparty.toml"
                        .into()
                }
                error => format!("script: {error}"),
            })
        })
    }
}

fn list(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn names(text: &str) -> Result<EnvNames, String> {
    EnvNames::new(list(text))
}

fn switch(text: &str) -> Result<bool, String> {
    text.parse().map_err(|_| format!("{text:?} is neither true nor false"))
}

fn room(text: &str) -> Result<u32, String> {
    let wanted = text.parse().ok().filter(|count| (1..=MAX_SLOTS).contains(count));
    wanted
        .map(|count| slots(count).slots)
        .ok_or_else(|| format!("{text:?} is no number of runs at once; write 1 to {MAX_SLOTS}"))
}

fn code(text: &str) -> Result<u8, String> {
    let wanted = text.parse().ok().filter(|code| *code > 0);
    wanted.ok_or_else(|| format!("{text:?} is no exit code of a failure; write 1 to 255"))
}

fn time(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    if time <= LONGEST { Ok(time) } else { Err(format!("{text:?} is too long; write 1h at most")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Script, Failure> {
        let env = Env::from([("API_TOKEN", "s3cret"), ("PATH", "/bin"), ("OTHER", "x")]);
        let values = given.iter().map(|(name, value)| {
            let setting = super::super::settings::SETTINGS.iter().find(|s| s.name == *name);
            (setting.unwrap().name, (*value).to_owned())
        });
        let flags = values.collect();
        let layers = super::super::settings::Layers { flags, env: &env, file: None };
        let mut take = |name: &str| {
            let setting = super::super::settings::SETTINGS.iter().find(|s| s.name == name);
            layers.find(setting.unwrap())
        };
        Script::read(&mut take, &env)
    }

    #[test]
    fn by_default_everything_is_closed() {
        let script = read(&[]).unwrap();
        assert_eq!(script.app.as_str(), "scripts");
        assert!(script.config.inline.is_none() && script.config.http.is_none());
        assert_eq!(script.config.environment.len(), 1, "{:?}", script.config.environment);
        let problem = script.executor().unwrap_err().problem;
        assert!(format!("{problem:?}").contains("script.folder"), "{problem:?}");
    }

    #[test]
    fn what_is_said_is_checked() {
        for (name, value) in [
            ("script.app", "a b"),
            ("script.inline", "yes"),
            ("script.slots", "0"),
            ("script.grace", "2h"),
            ("script.fatal_exit_code", "0"),
            ("script.env", "A B"),
            ("script.http.allow", "https://example.com"),
        ] {
            let problem = read(&[(name, value)]).unwrap_err().problem;
            assert!(format!("{problem:?}").contains(name), "{problem:?}");
        }
        let http =
            [("script.http.allow", "example.com"), ("script.http.secrets", "API_TOKEN, NONE")];
        let problem = read(&http).unwrap().executor().unwrap_err().problem;
        let text = format!("{problem:?}");
        assert!(text.contains("NONE") && !text.contains("API_TOKEN"), "{text}");
        let script = read(&[http[0], ("script.http.secrets", "API_TOKEN")]).unwrap();
        assert!(script.executor().is_ok() && !format!("{script:?}").contains("s3cret"));
    }
}
