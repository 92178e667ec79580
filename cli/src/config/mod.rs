//! The configuration in force: flags over the environment over `taskparty.toml` over defaults.
//!
//! *Invariant: this folder and `main` are the only places that look at the environment.* What is
//! found is checked once and handed down by value. Every value remembers where it came from, so
//! that `taskparty config` can say it; secrets are never shown.

mod env;
mod file;
mod script;
mod settings;
mod sizes;

use std::path::PathBuf;
use std::time::Duration;

use serde::Serialize;
use taskparty_common::duration;
use taskparty_common::name::Prefix;
use taskparty_nats::connect::{ConnectConfig, Secret, Tls, read_context};
use taskparty_nats::server::Search;
use taskparty_nats::topology::TopologyConfig;

use crate::args::Global;
use crate::failure::Failure;
pub(crate) use env::Env;
pub(crate) use script::Script;
use settings::{Layers, SETTINGS, Setting};

/// Everything that is configured, checked.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// How to reach NATS; holds the prefix.
    pub(crate) nats: ConnectConfig,
    /// The log filter, when one was given.
    pub(crate) log: Option<String>,
    /// What a node does.
    pub(crate) roles: String,
    /// Where history is.
    pub(crate) store_url: String,
    /// What the role `script` may run.
    pub(crate) script: Script,
    /// The lease, the sizes of streams, and how often they are stored.
    pub(crate) topology: TopologyConfig,
    /// Where to look for a nats-server to start.
    pub(crate) nats_server: Search,
    /// Who we are, as `user@host`.
    pub(crate) who: String,
    /// This machine's name.
    pub(crate) host: String,
    /// All of it for people, with where it came from.
    pub(crate) shown: Vec<Shown>,
}

/// A setting as it is shown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Shown {
    /// Its name in `taskparty.toml`.
    pub(crate) name: &'static str,
    /// Its value, or that there is one.
    pub(crate) value: Option<String>,
    /// Where it came from.
    pub(crate) source: String,
}

impl Config {
    /// Reads everything that there is, `flags` first.
    pub(crate) fn read(
        global: &Global,
        more: Vec<(&'static str, Option<String>)>,
        env: &Env,
    ) -> Result<Self, Failure> {
        let file = file::read(global.config.as_deref())?;
        let layers = Layers { flags: flags(global, more), env, file };
        let mut shown = Vec::new();
        let mut get = |setting: &'static Setting| {
            let found = layers.find(setting);
            shown.push(found.shown(setting));
            found
        };
        let mut found: Vec<_> =
            SETTINGS.iter().map(|setting| (setting.name, get(setting))).collect();
        let mut take = |name: &str| {
            let at = found.iter().position(|(known, _)| *known == name);
            at.map(|at| found.swap_remove(at).1).unwrap_or_default()
        };
        let path = |found: settings::Found| found.given().map(PathBuf::from);
        let prefix = take("prefix");
        let timeout = take("timeout");
        let mut nats = ConnectConfig {
            url: take("nats.url").given(),
            creds: path(take("nats.creds")),
            nkey: path(take("nats.nkey")),
            user: take("nats.user").given(),
            password: take("nats.password").given().map(Secret::new),
            token: take("nats.token").given().map(Secret::new),
            inbox_prefix: take("nats.inbox_prefix").parse_given("nats.inbox_prefix", inbox)?,
            tls: Tls {
                ca: path(take("nats.tls_ca")),
                cert: path(take("nats.tls_cert")),
                key: path(take("nats.tls_key")),
                ..Tls::default()
            },
            prefix: prefix
                .parse("prefix", |text| Prefix::new(text).map_err(|error| error.to_string()))?,
            connect_deadline: timeout.parse("timeout", patience)?,
            ..ConnectConfig::default()
        };
        if let Some(context) = take("nats.context").given() {
            let home = env.path("HOME");
            let dir =
                env.path("XDG_CONFIG_HOME").or(home.as_ref().map(|home| home.join(".config")));
            nats = nats.or(read_context(&dir.unwrap_or_default(), home.as_deref(), &context)?);
        }
        let host = env.host();
        Ok(Self {
            nats,
            log: take("log").given(),
            roles: take("serve.roles").text(),
            store_url: take("store.url").text(),
            script: Script::read(&mut take, env)?,
            topology: TopologyConfig {
                replicas: take("replicas").parse_given("replicas", sizes::replicas)?,
                lease: take("lease").parse("lease", lease)?,
                dispatch_bytes: take("dispatch_bytes").parse("dispatch_bytes", sizes::bytes)?,
                results_bytes: take("results_bytes").parse("results_bytes", sizes::bytes)?,
                logs_bytes: take("logs_bytes").parse("logs_bytes", sizes::bytes)?,
                triggers_bytes: take("triggers_bytes").parse("triggers_bytes", sizes::room)?,
                alerts_bytes: take("alerts_bytes").parse("alerts_bytes", sizes::bytes)?,
                ..TopologyConfig::default()
            },
            nats_server: Search {
                explicit: path(take("dev.nats_server")),
                path: env.path("PATH").map(Into::into),
                checkouts: std::env::current_exe()
                    .into_iter()
                    .chain([env!("CARGO_MANIFEST_DIR").into()])
                    .collect(),
            },
            who: format!("{}@{host}", env.user()),
            host,
            shown,
        })
    }
}

/// A subject without wildcards.
fn inbox(text: &str) -> Result<String, String> {
    let is_token = |token: &str| {
        !token.is_empty() && token.chars().all(|c| c.is_ascii_graphic() && !"*>".contains(c))
    };
    if text.split('.').all(is_token) {
        Ok(text.to_owned())
    } else {
        Err(format!("{text:?} cannot begin a subject; write something like _INBOX_ada"))
    }
}

fn patience(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    if (Duration::from_millis(100)..=Duration::from_secs(600)).contains(&time) {
        Ok(time)
    } else {
        Err(format!("{text:?} is no time to wait for a connection; write 100ms to 10m"))
    }
}

fn lease(text: &str) -> Result<Duration, String> {
    let time = duration::parse(text).map_err(|error| error.to_string())?;
    if (Duration::from_secs(2)..=Duration::from_secs(3600)).contains(&time) {
        Ok(time)
    } else {
        Err(format!("{text:?} is no lease; write 2s to 1h"))
    }
}

fn flags(
    global: &Global,
    more: Vec<(&'static str, Option<String>)>,
) -> Vec<(&'static str, String)> {
    let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
    let nats = &global.nats;
    let mut flags = vec![
        ("prefix", global.prefix.clone()),
        ("log", global.log.clone()),
        ("timeout", global.timeout.clone()),
        ("nats.url", nats.nats_url.clone()),
        ("nats.context", nats.context.clone()),
        ("nats.creds", path(&nats.creds)),
        ("nats.nkey", path(&nats.nkey)),
        ("nats.inbox_prefix", nats.inbox_prefix.clone()),
        ("nats.tls_ca", path(&nats.tlsca)),
        ("nats.tls_cert", path(&nats.tlscert)),
        ("nats.tls_key", path(&nats.tlskey)),
    ];
    flags.extend(more);
    flags.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}
