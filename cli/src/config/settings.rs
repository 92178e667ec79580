//! The settings that there are, and how one is found in the layers.

use super::Shown;
use super::env::Env;
use super::file::File;
use crate::failure::Failure;

/// A setting.
#[derive(Debug)]
pub(super) struct Setting {
    /// Its name in `taskparty.toml`, with its table.
    pub(super) name: &'static str,
    /// Its flag.
    flag: &'static str,
    /// Its variables, the first wins.
    env: &'static [&'static str],
    /// What holds when nothing is said.
    pub(super) default: Option<&'static str>,
    /// How it is shown.
    show: Show,
}

#[derive(Debug, Clone, Copy)]
enum Show {
    Plain,
    /// Without what stands before an `@`.
    Url,
    /// Only whether there is one.
    Hidden,
}

const fn setting(
    name: &'static str,
    flag: &'static str,
    env: &'static [&'static str],
    default: Option<&'static str>,
    show: Show,
) -> Setting {
    Setting { name, flag, env, default, show }
}

/// Every setting.
pub(super) const SETTINGS: &[Setting] = &[
    setting("prefix", "--prefix", &["TASKPARTY_PREFIX"], Some("taskparty"), Show::Plain),
    setting("log", "--log", &["TASKPARTY_LOG"], None, Show::Plain),
    setting("timeout", "--timeout", &["TASKPARTY_TIMEOUT"], Some("5s"), Show::Plain),
    setting(
        "nats.url",
        "--nats-url",
        &["TASKPARTY_NATS_URL", "NATS_URL"],
        Some("nats://127.0.0.1:4222"),
        Show::Url,
    ),
    setting(
        "nats.context",
        "--context",
        &["TASKPARTY_NATS_CONTEXT", "NATS_CONTEXT"],
        None,
        Show::Plain,
    ),
    setting("nats.creds", "--creds", &["TASKPARTY_NATS_CREDS", "NATS_CREDS"], None, Show::Plain),
    setting("nats.nkey", "--nkey", &["TASKPARTY_NATS_NKEY", "NATS_NKEY"], None, Show::Plain),
    setting("nats.user", "", &["TASKPARTY_NATS_USER", "NATS_USER"], None, Show::Plain),
    setting("nats.password", "", &["TASKPARTY_NATS_PASSWORD", "NATS_PASSWORD"], None, Show::Hidden),
    setting("nats.token", "", &["TASKPARTY_NATS_TOKEN", "NATS_TOKEN"], None, Show::Hidden),
    setting(
        "nats.inbox_prefix",
        "--inbox-prefix",
        &["TASKPARTY_NATS_INBOX_PREFIX"],
        None,
        Show::Plain,
    ),
    setting("nats.tls_ca", "--tlsca", &["TASKPARTY_NATS_TLS_CA", "NATS_CA"], None, Show::Plain),
    setting(
        "nats.tls_cert",
        "--tlscert",
        &["TASKPARTY_NATS_TLS_CERT", "NATS_CERT"],
        None,
        Show::Plain,
    ),
    setting("nats.tls_key", "--tlskey", &["TASKPARTY_NATS_TLS_KEY", "NATS_KEY"], None, Show::Plain),
    setting(
        "store.url",
        "--store-url",
        &["TASKPARTY_STORE_URL"],
        Some("sqlite:taskparty.db"),
        Show::Url,
    ),
    setting(
        "serve.roles",
        "--roles",
        &["TASKPARTY_ROLES"],
        Some("scheduler,log-writer,api"),
        Show::Plain,
    ),
    setting("lease", "", &["TASKPARTY_LEASE"], Some("30s"), Show::Plain),
    setting("script.app", "", &["TASKPARTY_SCRIPT_APP"], Some("scripts"), Show::Plain),
    setting("script.folder", "", &["TASKPARTY_SCRIPT_FOLDER"], None, Show::Plain),
    setting("script.inline", "", &["TASKPARTY_SCRIPT_INLINE"], Some("false"), Show::Plain),
    setting("script.programs", "", &["TASKPARTY_SCRIPT_PROGRAMS"], Some("false"), Show::Plain),
    setting("script.interpreters.shell", "", &["TASKPARTY_SCRIPT_SHELL"], None, Show::Plain),
    setting("script.interpreters.python", "", &["TASKPARTY_SCRIPT_PYTHON"], None, Show::Plain),
    setting("script.interpreters.node", "", &["TASKPARTY_SCRIPT_NODE"], None, Show::Plain),
    setting("script.slots", "", &["TASKPARTY_SCRIPT_SLOTS"], Some("4"), Show::Plain),
    setting("script.grace", "", &["TASKPARTY_SCRIPT_GRACE"], Some("5s"), Show::Plain),
    setting("script.drain", "", &["TASKPARTY_SCRIPT_DRAIN"], Some("30s"), Show::Plain),
    setting(
        "script.fatal_exit_code",
        "",
        &["TASKPARTY_SCRIPT_FATAL_EXIT_CODE"],
        Some("100"),
        Show::Plain,
    ),
    setting("script.env", "", &["TASKPARTY_SCRIPT_ENV"], None, Show::Plain),
    setting("script.job_env", "", &["TASKPARTY_SCRIPT_JOB_ENV"], Some("JOB_*"), Show::Plain),
    setting("script.http.allow", "", &["TASKPARTY_SCRIPT_HTTP_ALLOW"], None, Show::Plain),
    setting("script.http.secrets", "", &["TASKPARTY_SCRIPT_HTTP_SECRETS"], None, Show::Plain),
    setting("script.http.ca", "", &["TASKPARTY_SCRIPT_HTTP_CA"], None, Show::Plain),
    setting("replicas", "", &["TASKPARTY_REPLICAS"], None, Show::Plain),
    setting("dispatch_bytes", "", &["TASKPARTY_DISPATCH_BYTES"], Some("256MiB"), Show::Plain),
    setting("results_bytes", "", &["TASKPARTY_RESULTS_BYTES"], Some("2GiB"), Show::Plain),
    setting("logs_bytes", "", &["TASKPARTY_LOGS_BYTES"], Some("512MiB"), Show::Plain),
    setting("triggers_bytes", "", &["TASKPARTY_TRIGGERS_BYTES"], Some("1GiB"), Show::Plain),
    setting("alerts_bytes", "", &["TASKPARTY_ALERTS_BYTES"], Some("32MiB"), Show::Plain),
    setting("dev.nats_server", "", &["TASKPARTY_NATS_SERVER"], None, Show::Plain),
];

/// Those that are a number or a switch: the file may have them without quotes.
pub(super) const BARE: &[&str] =
    &["script.inline", "script.programs", "script.slots", "script.fatal_exit_code"];

/// Where values come from, the first wins.
#[derive(Debug)]
pub(super) struct Layers<'a> {
    pub(super) flags: Vec<(&'static str, String)>,
    pub(super) env: &'a Env,
    pub(super) file: Option<File>,
}

/// A value with where it came from.
#[derive(Debug, Clone, Default)]
pub(super) struct Found {
    value: Option<String>,
    source: String,
    by_default: Option<&'static str>,
}

impl Layers<'_> {
    pub(super) fn find(&self, setting: &'static Setting) -> Found {
        let given =
            |value: String, source: String| Found { value: Some(value), source, by_default: None };
        if let Some((_, value)) = self.flags.iter().find(|(name, _)| *name == setting.name) {
            return given(value.clone(), format!("flag {}", setting.flag));
        }
        for name in setting.env {
            if let Some(value) = self.env.text(name) {
                return given(value, format!("environment {name}"));
            }
        }
        if let Some(file) = &self.file
            && let Some((_, value)) = file.values.iter().find(|(name, _)| *name == setting.name)
        {
            return given(value.clone(), format!("file {}", file.path.display()));
        }
        let source = if setting.default.is_some() { "default" } else { "not set" };
        Found { value: None, source: source.into(), by_default: setting.default }
    }
}

impl Found {
    /// What the user said, if anything.
    pub(super) fn given(self) -> Option<String> {
        self.value
    }

    /// What holds.
    pub(super) fn text(self) -> String {
        self.value.or(self.by_default.map(str::to_owned)).unwrap_or_default()
    }

    /// What holds, read; an error says where it came from.
    pub(super) fn parse<T>(
        self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let source = self.source.clone();
        read(&self.text())
            .map_err(|problem| Failure::invalid(format!("{name} (from {source}): {problem}")))
    }

    /// What the user said, read.
    pub(super) fn parse_given<T>(
        self,
        name: &str,
        read: impl FnOnce(&str) -> Result<T, String>,
    ) -> Result<Option<T>, Failure> {
        if self.value.is_none() { Ok(None) } else { self.parse(name, read).map(Some) }
    }

    pub(super) fn shown(&self, setting: &Setting) -> Shown {
        let value = self.value.clone().or(self.by_default.map(str::to_owned));
        let value = value.map(|value| match setting.show {
            Show::Plain => value,
            Show::Hidden => "(hidden)".into(),
            Show::Url => value.split(',').map(without_user).collect::<Vec<_>>().join(","),
        });
        Shown { name: setting.name, value, source: self.source.clone() }
    }
}

fn without_user(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => {
            format!("{}(hidden)@{}", &url[..scheme + 3], &url[at + 1..])
        }
        (None, Some(at)) => format!("(hidden)@{}", &url[at + 1..]),
        _ => url.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(name: &str, layers: &Layers<'_>) -> Shown {
        let setting = SETTINGS.iter().find(|setting| setting.name == name).unwrap();
        layers.find(setting).shown(setting)
    }

    #[test]
    fn flags_win_over_the_environment_over_the_file_over_defaults() {
        let env =
            Env::from([("NATS_URL", "nats://u:secret@env"), ("TASKPARTY_NATS_TOKEN", "secret")]);
        let file = File {
            path: "taskparty.toml".into(),
            values: vec![("nats.url", "nats://file".into()), ("prefix", "from-file".into())],
        };
        let mut layers = Layers { flags: Vec::new(), env: &env, file: Some(file) };
        let shown = find("nats.url", &layers);
        assert_eq!(
            (shown.value.as_deref(), &*shown.source),
            (Some("nats://(hidden)@env"), "environment NATS_URL")
        );
        assert_eq!(find("prefix", &layers).source, "file taskparty.toml");
        assert_eq!(find("store.url", &layers).source, "default");
        assert_eq!(find("nats.token", &layers).value.as_deref(), Some("(hidden)"));
        layers.flags.push(("nats.url", "nats://flag".into()));
        assert_eq!(find("nats.url", &layers).source, "flag --nats-url");
    }
}
