//! How to connect, as the `nats` CLI has it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_nats::{ConnectOptions, ServerAddr};
use taskparty_common::name::Prefix;

use super::error::{ConnectError, shown};
use super::secret::Secret;

/// Where NATS is when nothing else is said.
pub const DEFAULT_URL: &str = "nats://127.0.0.1:4222";

/// How to connect. Everything but the prefix, the name and the deadlines can come from a context
/// of the `nats` CLI: see [`super::read_context`] and [`ConnectConfig::or`].
#[derive(Clone)]
pub struct ConnectConfig {
    /// One URL or several with commas. May hold `user:password@` or `token@`. Default:
    /// [`DEFAULT_URL`].
    pub url: Option<String>,
    /// A credentials file (JWT and seed).
    pub creds: Option<PathBuf>,
    /// A file that holds an nkey seed.
    pub nkey: Option<PathBuf>,
    /// A user's name, with `password`.
    pub user: Option<String>,
    /// The password of `user`.
    pub password: Option<Secret>,
    /// A token, instead of a user.
    pub token: Option<Secret>,
    /// Certificates.
    pub tls: Tls,
    /// What inboxes begin with, where permissions ask for it. Default: `_INBOX`.
    pub inbox_prefix: Option<String>,
    /// The JetStream domain, behind a leaf node.
    pub jetstream_domain: Option<String>,
    /// The prefix of the JetStream API, where an account imports it under another. Wins over
    /// `jetstream_domain`.
    pub jetstream_api_prefix: Option<String>,
    /// The installation's prefix. Default: `taskparty`.
    pub prefix: Prefix,
    /// The connection's name, as `nats server report connections` shows it.
    pub name: String,
    /// How long [`super::connect`] may take. Default: 5 s.
    pub connect_deadline: Duration,
    /// How long any single call may wait for its answer. Default: 2 s.
    pub request_deadline: Duration,
}

/// Certificates and how TLS begins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// The authorities to trust, PEM. Default: the system's.
    pub ca: Option<PathBuf>,
    /// Our certificate, PEM, with `key`.
    pub cert: Option<PathBuf>,
    /// The key of `cert`, PEM.
    pub key: Option<PathBuf>,
    /// When TLS begins.
    pub handshake: Handshake,
}

/// When TLS begins.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Handshake {
    /// After the server's greeting, when it or the URL (`tls://`) asks for it.
    #[default]
    AfterGreeting,
    /// Before it, for servers with `handshake_first`.
    First,
}

impl Default for ConnectConfig {
    fn default() -> Self {
        Self {
            url: None,
            creds: None,
            nkey: None,
            user: None,
            password: None,
            token: None,
            tls: Tls::default(),
            inbox_prefix: None,
            jetstream_domain: None,
            jetstream_api_prefix: None,
            prefix: Prefix::default(),
            name: "taskparty".to_owned(),
            connect_deadline: Duration::from_secs(5),
            request_deadline: Duration::from_secs(2),
        }
    }
}

impl fmt::Debug for ConnectConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectConfig")
            .field("url", &self.shown_url())
            .field("creds", &self.creds)
            .field("nkey", &self.nkey)
            .field("user", &self.user)
            .field("password", &self.password)
            .field("token", &self.token)
            .field("tls", &self.tls)
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl ConnectConfig {
    /// The defaults, with this URL.
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::default() }
    }

    /// Takes from `context` what is not set here. Identity comes as a whole: when a user, token,
    /// nkey or credentials file is set here, none is taken from the context.
    #[must_use]
    pub fn or(mut self, context: ConnectConfig) -> Self {
        if !self.has_identity() {
            self.creds = context.creds;
            self.nkey = context.nkey;
            self.user = context.user;
            self.password = context.password;
            self.token = context.token;
        }
        self.url = self.url.or(context.url);
        self.tls.ca = self.tls.ca.or(context.tls.ca);
        if self.tls.cert.is_none() {
            self.tls.cert = context.tls.cert;
            self.tls.key = context.tls.key;
        }
        if self.tls.handshake == Handshake::AfterGreeting {
            self.tls.handshake = context.tls.handshake;
        }
        self.inbox_prefix = self.inbox_prefix.or(context.inbox_prefix);
        self.jetstream_domain = self.jetstream_domain.or(context.jetstream_domain);
        self.jetstream_api_prefix = self.jetstream_api_prefix.or(context.jetstream_api_prefix);
        self
    }

    fn has_identity(&self) -> bool {
        self.creds.is_some() || self.nkey.is_some() || self.user.is_some() || self.token.is_some()
    }

    pub(crate) fn api_prefix(&self) -> String {
        match (&self.jetstream_api_prefix, &self.jetstream_domain) {
            (Some(prefix), _) => prefix.clone(),
            (None, Some(domain)) => format!("$JS.{domain}.API"),
            (None, None) => "$JS.API".to_owned(),
        }
    }

    /// The URL for people: without what stands before an `@`.
    pub fn shown_url(&self) -> String {
        shown(self.url.as_deref().unwrap_or(DEFAULT_URL))
    }

    /// Who we say that we are, for errors.
    pub(crate) fn shown_identity(&self) -> String {
        if let Some(path) = &self.creds {
            format!("the credentials in {}", path.display())
        } else if let Some(path) = &self.nkey {
            format!("the nkey in {}", path.display())
        } else if let Some(user) = &self.user {
            format!("user {user:?}")
        } else if self.token.is_some() {
            "the token".to_owned()
        } else {
            match self.url_identity() {
                Some((user, Some(_))) => format!("user {user:?}"),
                Some((_, None)) => "the token in the URL".to_owned(),
                None => "a connection without credentials".to_owned(),
            }
        }
    }

    pub(crate) fn servers(&self) -> Result<Vec<ServerAddr>, ConnectError> {
        let text = self.url.as_deref().unwrap_or(DEFAULT_URL);
        let mut servers = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let bad = |reason: String| ConnectError::BadUrl { url: shown(part), reason };
            let addr: ServerAddr = part.parse().map_err(|_| bad("it cannot be read".to_owned()))?;
            if !matches!(addr.scheme(), "nats" | "tls") {
                return Err(bad(format!("the scheme {:?} is not NATS", addr.scheme())));
            }
            if addr.host().is_empty() {
                return Err(bad("it has no host".to_owned()));
            }
            servers.push(addr);
        }
        if servers.is_empty() {
            return Err(ConnectError::BadUrl {
                url: shown(text),
                reason: "it is empty".to_owned(),
            });
        }
        Ok(servers)
    }

    /// User and password, or token and nothing, from the first URL that has any: the client
    /// itself ignores them.
    fn url_identity(&self) -> Option<(String, Option<String>)> {
        self.servers().ok()?.iter().find_map(|addr| {
            let user = percent_decoded(addr.username()?);
            Some((user, addr.password().map(percent_decoded)))
        })
    }

    pub(crate) async fn authenticated(
        &self,
        options: ConnectOptions,
    ) -> Result<ConnectOptions, ConnectError> {
        if let Some(path) = &self.creds {
            let text = read("the credentials file", path).await?;
            return options
                .credentials(&text)
                .map_err(|_| ConnectError::BadCredentials { path: path.clone() });
        }
        if let Some(path) = &self.nkey {
            let text = read("the nkey file", path).await?;
            let seed = text.lines().map(str::trim).find(|line| line.starts_with("SU"));
            return seed
                .map(|seed| options.nkey(seed.to_owned()))
                .ok_or_else(|| ConnectError::BadCredentials { path: path.clone() });
        }
        if let Some(user) = &self.user {
            let password = self.password.as_ref().map_or("", Secret::expose);
            return Ok(options.user_and_password(user.clone(), password.to_owned()));
        }
        if let Some(token) = &self.token {
            return Ok(options.token(token.expose().to_owned()));
        }
        Ok(match self.url_identity() {
            Some((user, Some(password))) => options.user_and_password(user, password),
            Some((token, None)) => options.token(token),
            None => options,
        })
    }
}

impl Tls {
    pub(crate) async fn apply(
        &self,
        mut options: ConnectOptions,
    ) -> Result<ConnectOptions, ConnectError> {
        if let Some(ca) = &self.ca {
            read("the CA file", ca).await?;
            options = options.add_root_certificates(ca.clone()).require_tls(true);
        }
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                read("the certificate", cert).await?;
                read("the certificate's key", key).await?;
                options =
                    options.add_client_certificate(cert.clone(), key.clone()).require_tls(true);
            }
            (None, None) => {}
            _ => return Err(ConnectError::HalfCertificate),
        }
        Ok(match self.handshake {
            Handshake::First => options.tls_first(),
            Handshake::AfterGreeting => options,
        })
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.handshake == Handshake::First
    }
}

async fn read(what: &'static str, path: &Path) -> Result<String, ConnectError> {
    tokio::fs::read_to_string(path).await.map_err(|source| ConnectError::File {
        what,
        path: path.to_owned(),
        source,
    })
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let code = (bytes[at] == b'%').then(|| text.get(at + 1..at + 3)).flatten();
        match code.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
