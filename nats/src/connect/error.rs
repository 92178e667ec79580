//! Why there is no connection: one sentence each, which says what it was and what to do.

use std::io;
use std::path::PathBuf;

use crate::server::OLDEST;

/// Why NATS cannot be used. Servers are named without credentials.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The URL is no NATS URL.
    #[error("{url:?} is no NATS URL ({reason}): write it as nats://host:4222 or tls://host:4222")]
    BadUrl {
        /// The URL, without credentials.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file could not be read.
    #[error("cannot read {what} {}: {source}; check the path and its rights", .path.display())]
    File {
        /// What it is for.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A credentials or nkey file with something else in it.
    #[error("{} holds no NATS credentials: it must be a user's .creds file, or for an nkey the seed that begins with SU", .path.display())]
    BadCredentials {
        /// Where.
        path: PathBuf,
    },
    /// A certificate without key, or a key without certificate.
    #[error("a client certificate needs both its certificate and its key: set both or neither")]
    HalfCertificate,
    /// No such context.
    #[error("there is no NATS context {name:?} in {}: {}", .dir.display(), choices(.known))]
    UnknownContext {
        /// The name.
        name: String,
        /// Where contexts are.
        dir: PathBuf,
        /// The contexts there.
        known: Vec<String>,
    },
    /// A context that cannot be used.
    #[error("the NATS context {name:?} ({}) cannot be used: {reason}", .path.display())]
    BadContext {
        /// The name.
        name: String,
        /// The file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The host's name has no address.
    #[error("the host of {server} has no address: check the URL's spelling and the name server")]
    UnknownHost {
        /// The server.
        server: String,
    },
    /// Nobody listens.
    #[error(
        "nothing listens at {server}: start nats-server there (`taskparty dev` brings one), or give the right URL"
    )]
    Refused {
        /// The server.
        server: String,
    },
    /// The network does not get there, or the server hangs.
    #[error(
        "{server} does not answer ({reason}): check that the server is well, and the network and firewalls between"
    )]
    Unreachable {
        /// The server.
        server: String,
        /// What was seen.
        reason: String,
    },
    /// Something else listens there.
    #[error(
        "{server} is no NATS server but {what}: give the port for clients, usually 4222 (8222 is its monitoring port)"
    )]
    NotNats {
        /// The server.
        server: String,
        /// What it is.
        what: &'static str,
    },
    /// A nats-server that lacks what is needed.
    #[error("nats-server {version} at {server} is too old: TaskParty needs {}.{} or newer (message schedules); upgrade it", OLDEST.0, OLDEST.1)]
    TooOld {
        /// The server.
        server: String,
        /// Its version.
        version: String,
    },
    /// JetStream is off.
    #[error("JetStream is off {}: turn it on ({})", where_off(.whole_server, .server), how_on(.whole_server))]
    NoJetStream {
        /// The server.
        server: String,
        /// Whether it is off in the whole server; else in this account.
        whole_server: bool,
    },
    /// JetStream is on but does not answer.
    #[error(
        "JetStream at {server} does not answer ({reason}): in a cluster a majority of the servers must be up; `nats server report jetstream` shows them"
    )]
    JetStreamSilent {
        /// The server.
        server: String,
        /// What was seen.
        reason: String,
    },
    /// Who we are is not accepted.
    #[error(
        "{server} does not accept {identity}: check the user, password, token or credentials file, and that they belong to this server"
    )]
    Unauthorized {
        /// The server.
        server: String,
        /// Who we said we are, without the secret.
        identity: String,
    },
    /// A right is missing.
    #[error(
        "{server} refuses {identity} the right {action}: grant it (`taskparty topology acl` prints what is needed, nats/conf/accounts.conf is an example)"
    )]
    Denied {
        /// The server.
        server: String,
        /// Who we are.
        identity: String,
        /// To publish or subscribe to what.
        action: String,
    },
    /// The two sides do not agree on TLS.
    #[error("no TLS with {server}: {reason}")]
    Tls {
        /// The server.
        server: String,
        /// What was wrong and what to do.
        reason: String,
    },
    /// Asked to stop while waiting.
    #[error("stopped while waiting for NATS")]
    Stopped,
}

impl ConnectError {
    /// A stable name of the kind, for scripts.
    pub fn code(&self) -> &'static str {
        match self {
            Self::BadUrl { .. } => "nats_bad_url",
            Self::File { .. } => "nats_file",
            Self::BadCredentials { .. } => "nats_bad_credentials",
            Self::HalfCertificate => "nats_half_certificate",
            Self::UnknownContext { .. } => "nats_unknown_context",
            Self::BadContext { .. } => "nats_bad_context",
            Self::UnknownHost { .. } => "nats_unknown_host",
            Self::Refused { .. } => "nats_refused",
            Self::Unreachable { .. } => "nats_unreachable",
            Self::NotNats { .. } => "nats_not_nats",
            Self::TooOld { .. } => "nats_too_old",
            Self::NoJetStream { .. } => "nats_no_jetstream",
            Self::JetStreamSilent { .. } => "nats_jetstream_silent",
            Self::Unauthorized { .. } => "nats_unauthorized",
            Self::Denied { .. } => "nats_denied",
            Self::Tls { .. } => "nats_tls",
            Self::Stopped => "stopped",
        }
    }

    /// Whether waiting cannot mend it: the fault is in our own configuration.
    pub fn is_permanent(&self) -> bool {
        matches!(
            self,
            Self::BadUrl { .. }
                | Self::File { .. }
                | Self::BadCredentials { .. }
                | Self::HalfCertificate
                | Self::UnknownContext { .. }
                | Self::BadContext { .. }
                | Self::Stopped
        )
    }
}

fn choices(known: &[String]) -> String {
    if known.is_empty() {
        "there are none; make one with `nats context add`, or give the URL".to_owned()
    } else {
        format!("there are {}", known.join(", "))
    }
}

fn where_off(whole_server: &bool, server: &str) -> String {
    if *whole_server {
        format!("in the server at {server}")
    } else {
        format!("for this account at {server}")
    }
}

fn how_on(whole_server: &bool) -> &'static str {
    if *whole_server {
        "`jetstream { store_dir: … }` in its configuration, or `nats-server -js`"
    } else {
        "`jetstream: enabled` in the account's configuration, or its JWT's limits"
    }
}

/// A URL, or several with commas, without what stands before an `@`.
pub(crate) fn shown(urls: &str) -> String {
    let one = |url: &str| {
        let (scheme, rest) =
            url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
        let rest = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
        if scheme.is_empty() { rest.to_owned() } else { format!("{scheme}://{rest}") }
    };
    // A comma inside a password would end a part early: everything before the last @ goes.
    match urls.rsplit_once('@') {
        Some((secret, host)) if secret.contains(',') && !secret.contains('@') => {
            let scheme = secret.split_once("://").map_or("", |(scheme, _)| scheme);
            if scheme.is_empty() { host.to_owned() } else { format!("{scheme}://{host}") }
        }
        _ => urls.split(',').map(|url| one(url.trim())).collect::<Vec<_>>().join(","),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_url_is_shown_without_its_secrets() {
        for (url, seen) in [
            ("nats://127.0.0.1:4222", "nats://127.0.0.1:4222"),
            ("nats://bob:secret@host:4222", "nats://host:4222"),
            ("bob:se@cret@host", "host"),
            ("tls://token@a,tls://token@b", "tls://a,tls://b"),
            ("nats://bob:sec,ret@host", "nats://host"),
        ] {
            assert_eq!(shown(url), seen);
        }
    }
}
