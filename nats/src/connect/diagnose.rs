//! Finding out why a connection failed.
//!
//! The client says "timed out" or "IO error" for a dozen causes. After a failure, and only then,
//! the server's greeting is read once more by hand, and the cause is named.

use std::io;
use std::time::Duration;

use async_nats::jetstream::context::RequestErrorKind;
use async_nats::{ConnectErrorKind, ServerAddr};
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::Nats;
use super::config::{ConnectConfig, Handshake};
use super::error::{ConnectError, shown};

/// A NATS server greets at once; who is silent for this long waits for us to speak.
const GREETING: Duration = Duration::from_millis(700);
const REACH: Duration = Duration::from_secs(2);
/// How many of the given servers are asked.
const ASKED: usize = 3;

#[derive(Debug)]
enum Answer {
    Nats(Greeting),
    Http,
    /// It hangs up on whoever does not begin with TLS.
    Tls,
    /// It spoke, but no protocol that we know.
    Stranger,
    Silent,
    Refused,
    UnknownHost,
    Unreachable(String),
}

#[derive(Debug, Deserialize)]
#[serde(default)]
#[derive(Default)]
struct Greeting {
    tls_required: bool,
    tls_available: bool,
    tls_verify: bool,
    version: String,
}

/// Names the cause. Asks the servers in turn and reports on the first that answered anything.
pub(crate) async fn failed_connect(
    config: &ConnectConfig,
    servers: &[ServerAddr],
    error: Option<&async_nats::ConnectError>,
) -> ConnectError {
    let mut refused = None;
    for addr in servers.iter().take(ASKED) {
        let answer = ask(addr).await;
        let gone = matches!(answer, Answer::Refused | Answer::UnknownHost | Answer::Unreachable(_));
        let named = explain(config, addr, answer, error);
        if !gone {
            return named;
        }
        refused.get_or_insert(named);
    }
    refused.unwrap_or_else(|| ConnectError::BadUrl {
        url: config.shown_url(),
        reason: "it is empty".to_owned(),
    })
}

fn explain(
    config: &ConnectConfig,
    addr: &ServerAddr,
    answer: Answer,
    error: Option<&async_nats::ConnectError>,
) -> ConnectError {
    let server = shown(addr.as_url_str());
    let unreachable = |reason: &str| ConnectError::Unreachable {
        server: server.clone(),
        reason: reason.to_owned(),
    };
    let tls = |reason: String| ConnectError::Tls { server: server.clone(), reason };
    let greeting = match answer {
        Answer::Nats(greeting) => greeting,
        Answer::Http => return ConnectError::NotNats { server, what: "an HTTP server" },
        Answer::Stranger => {
            return ConnectError::NotNats { server, what: "a server of another kind" };
        }
        Answer::Tls if config.tls.handshake == Handshake::AfterGreeting => {
            return tls("it greets nobody who does not begin with TLS: if it is a nats-server with handshake_first, turn on TLS first, else give the port for clients".to_owned());
        }
        Answer::Tls => return tls(detail(error)),
        Answer::Silent => return unreachable("it takes the connection and says nothing"),
        Answer::Refused => return ConnectError::Refused { server },
        Answer::UnknownHost => return ConnectError::UnknownHost { server },
        Answer::Unreachable(reason) => return unreachable(&reason),
    };
    if !crate::server::new_enough(&greeting.version) {
        return ConnectError::TooOld { server, version: greeting.version };
    }
    let kind = error.map(async_nats::ConnectError::kind);
    if matches!(
        kind,
        Some(ConnectErrorKind::AuthorizationViolation | ConnectErrorKind::Authentication)
    ) {
        return ConnectError::Unauthorized { server, identity: config.shown_identity() };
    }
    let wanted = config.tls.is_wanted() || addr.tls_required();
    if wanted && !greeting.tls_required && !greeting.tls_available {
        return tls("we are to use TLS and the server has none: use a nats:// URL and no certificates, or set up TLS in the server".to_owned());
    }
    let text = detail(error);
    if wanted || greeting.tls_required || kind == Some(ConnectErrorKind::Tls) {
        if greeting.tls_verify && config.tls.cert.is_none() {
            return tls("the server asks for a client certificate and none is set: give the certificate and its key".to_owned());
        }
        let lower = text.to_lowercase();
        if lower.contains("certificate") || lower.contains("alert") || lower.contains("tls") {
            return tls(format!(
                "{text}; check the CA file, that the host's name is in the server's certificate, and our own certificate"
            ));
        }
    }
    if text.to_lowercase().contains("authentication")
        || text.to_lowercase().contains("authorization")
    {
        return ConnectError::Unauthorized { server, identity: config.shown_identity() };
    }
    unreachable(&text)
}

/// The innermost cause, in its own words.
fn detail(error: Option<&async_nats::ConnectError>) -> String {
    let Some(error) = error else { return "it took too long".to_owned() };
    let mut inner: &dyn std::error::Error = error;
    while let Some(source) = inner.source() {
        inner = source;
    }
    inner.to_string()
}

async fn ask(addr: &ServerAddr) -> Answer {
    let mut stream = match timeout(REACH, TcpStream::connect((addr.host(), addr.port()))).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Answer::Refused;
        }
        // A name that does not resolve has no error kind of its own.
        Ok(Err(error)) if error.raw_os_error().is_none() => return Answer::UnknownHost,
        Ok(Err(error)) => return Answer::Unreachable(error.to_string()),
        Err(_) => return Answer::Unreachable("no connection within two seconds".to_owned()),
    };
    let (mut heard, mut ended) = hear(&mut stream).await;
    if heard.is_empty() && !ended {
        if stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.is_err() {
            return Answer::Silent;
        }
        (heard, ended) = hear(&mut stream).await;
    }
    if let Some(json) = heard.strip_prefix(b"INFO ") {
        let line = json.split(|byte| *byte == b'\r').next().unwrap_or_default();
        return serde_json::from_slice(line).map_or(Answer::Stranger, Answer::Nats);
    }
    match heard.first() {
        None if ended => Answer::Tls,
        None => Answer::Silent,
        Some(0x15 | 0x16) => Answer::Tls,
        Some(_) if heard.starts_with(b"HTTP/") => Answer::Http,
        Some(_) => Answer::Stranger,
    }
}

/// What comes until the end of a line, or until nothing more comes; and whether the other side
/// hung up.
async fn hear(stream: &mut TcpStream) -> (Vec<u8>, bool) {
    let mut heard = Vec::new();
    let mut chunk = [0; 4096];
    while heard.len() < 64 * 1024 && !heard.contains(&b'\n') {
        match timeout(GREETING, stream.read(&mut chunk)).await {
            Ok(Ok(0) | Err(_)) => return (heard, true),
            Ok(Ok(read)) => heard.extend_from_slice(&chunk[..read]),
            Err(_) => break,
        }
    }
    (heard, false)
}

#[derive(Deserialize)]
struct AccountAnswer {
    error: Option<ApiError>,
}

#[derive(Deserialize)]
struct ApiError {
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// JetStream is off in the whole server.
const OFF: u64 = 10076;
/// JetStream is off for this account.
const OFF_FOR_ACCOUNT: u64 = 10039;

/// Asks JetStream about our account, and names what is wrong with the answer.
pub(crate) async fn check_jetstream(
    config: &ConnectConfig,
    nats: &Nats,
) -> Result<(), ConnectError> {
    let server = config.shown_url();
    let asked = std::time::Instant::now();
    let answer: Result<AccountAnswer, _> = nats.js().request("INFO", &()).await;
    let silent = |reason: String| ConnectError::JetStreamSilent { server: server.clone(), reason };
    match answer {
        Ok(AccountAnswer { error: None }) => Ok(()),
        Ok(AccountAnswer { error: Some(error) }) => Err(match error.err_code {
            OFF => ConnectError::NoJetStream { server, whole_server: true },
            OFF_FOR_ACCOUNT => ConnectError::NoJetStream { server, whole_server: false },
            _ => silent(error.description),
        }),
        Err(error) if error.kind() == RequestErrorKind::NoResponders => {
            let whole_server = !nats.client().server_info().jetstream;
            Err(ConnectError::NoJetStream { server, whole_server })
        }
        Err(error) => {
            Err(match nats.events().denied_since(&format!("{}.INFO", nats.api_prefix()), asked) {
                Some(denied) => ConnectError::Denied {
                    server,
                    identity: config.shown_identity(),
                    action: denied.action,
                },
                None => silent(error.to_string()),
            })
        }
    }
}
