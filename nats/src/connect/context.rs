//! The contexts of the `nats` CLI: `<config>/nats/context/<name>.json`.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::config::{ConnectConfig, Handshake, Tls};
use super::error::ConnectError;
use super::secret::Secret;

/// What a context's file holds, as far as we use it. An empty text is none.
#[derive(Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Context {
    url: String,
    creds: String,
    nkey: String,
    user: String,
    password: String,
    token: String,
    user_jwt: String,
    nsc: String,
    socks_proxy: String,
    cert: String,
    key: String,
    ca: String,
    tls_first: bool,
    inbox_prefix: String,
    jetstream_domain: String,
    jetstream_api_prefix: String,
}

/// Reads the context `name`. `config_dir` is what `$XDG_CONFIG_HOME` says, usually `~/.config`;
/// `home` is what a `~` in the context's paths stands for.
///
/// # Errors
/// [`ConnectError::UnknownContext`] with the names that there are, and [`ConnectError::BadContext`].
pub fn read_context(
    config_dir: &Path,
    home: Option<&Path>,
    name: &str,
) -> Result<ConnectConfig, ConnectError> {
    let dir = config_dir.join("nats").join("context");
    let unknown = || ConnectError::UnknownContext {
        name: name.to_owned(),
        dir: dir.clone(),
        known: known(&dir),
    };
    if name.is_empty() || name.contains(['/', '\\']) || name.contains("..") {
        return Err(unknown());
    }
    let path = dir.join(format!("{name}.json"));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Err(unknown()),
        Err(source) => return Err(ConnectError::File { what: "the context", path, source }),
    };
    let bad = |reason: String| ConnectError::BadContext {
        name: name.to_owned(),
        path: path.clone(),
        reason,
    };
    // Where it is broken, not what stands there: it may be a password.
    let context: Context = serde_json::from_str(&text)
        .map_err(|error| bad(format!("line {} is not as it should be", error.line())))?;
    for (field, value) in [
        ("user_jwt", &context.user_jwt),
        ("nsc", &context.nsc),
        ("socks_proxy", &context.socks_proxy),
    ] {
        if !value.is_empty() {
            return Err(bad(format!(
                "{field:?} is not supported; use a credentials file (\"creds\")"
            )));
        }
    }
    Ok(context.into_config(home))
}

/// The context that `nats context select` chose, if any.
pub fn selected_context(config_dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(config_dir.join("nats").join("context.txt")).ok()?;
    Some(text.trim().to_owned()).filter(|name| !name.is_empty())
}

fn known(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
        .collect();
    names.sort();
    names
}

impl Context {
    fn into_config(self, home: Option<&Path>) -> ConnectConfig {
        let text = |value: String| Some(value).filter(|value| !value.is_empty());
        let path = |value: String| {
            let value = text(value)?;
            Some(match (value.strip_prefix("~/"), home) {
                (Some(rest), Some(home)) => home.join(rest),
                _ => PathBuf::from(value),
            })
        };
        ConnectConfig {
            url: text(self.url),
            creds: path(self.creds),
            nkey: path(self.nkey),
            user: text(self.user),
            password: text(self.password).map(Secret::new),
            token: text(self.token).map(Secret::new),
            tls: Tls {
                ca: path(self.ca),
                cert: path(self.cert),
                key: path(self.key),
                handshake: if self.tls_first { Handshake::First } else { Handshake::AfterGreeting },
            },
            inbox_prefix: text(self.inbox_prefix),
            jetstream_domain: text(self.jetstream_domain),
            jetstream_api_prefix: text(self.jetstream_api_prefix),
            ..ConnectConfig::default()
        }
    }
}
