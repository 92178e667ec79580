//! The handler `http`: one request, whose status decides.
//!
//! *Invariant: a connection is made only to an address that the operator's list allows*, looked at
//! after the name has been resolved: the client gets the very addresses that were checked, and asks
//! nobody again. Redirects are not followed, and no proxy is used, as both would reach elsewhere.

mod allow;
mod params;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use reqwest::redirect::Policy;
use reqwest::{Client, Response, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use serde_json::value::RawValue;
use taskparty_common::dispatch::MAX_OUTPUT;
use taskparty_nats::connect::Secret;
use tokio::time::timeout;

use super::config::{HttpConfig, ScriptError};
use crate::context::Context;
use crate::handler::{Failure, HandlerError, Returned, TidyUp};
use crate::report::Output;
pub use allow::{AllowList, BadRule};
use params::Params;

/// A request needs no time to tidy up: dropping it ends it.
pub(super) const TIDY_UP: TidyUp = TidyUp { asked: Duration::ZERO, timeout: Duration::ZERO };

/// How much of an answer gets into the message of a failed run, in bytes.
const MAX_QUOTE: usize = 1024;

/// How much of an answer is read: a little more than fits, so that it is known not to fit.
const MAX_BODY: usize = MAX_OUTPUT + 1024;

/// What all requests share.
pub(super) struct Requests {
    config: HttpConfig,
    tls: ClientConfig,
}

impl Requests {
    pub(super) fn new(config: &HttpConfig) -> Result<Self, ScriptError> {
        if config.allow.is_empty() {
            return Err(ScriptError::Nothing);
        }
        Ok(Self { config: config.clone(), tls: tls(config)? })
    }

    /// Sends what `json` describes.
    pub(super) async fn run(&self, context: &Context, json: &RawValue) -> Returned {
        let mut params = Params::read(json, &self.config.secrets).map_err(Failure::BadParams)?;
        params.add_default("idempotency-key", context.idempotency_key());
        params.add_default("taskparty-run", &context.run().to_string());
        params.add_default("taskparty-shard-index", &context.shard_index().to_string());
        params.add_default("taskparty-shard-total", &context.shard_total().to_string());
        params.add_default("taskparty-attempt", &context.attempt().to_string());
        let what = format!("{} {}", params.method, params.url.origin().ascii_serialization());
        let time = params.timeout;
        let Ok(answer) = timeout(time, self.exchange(params, &what, context)).await else {
            let text = format!("{what}: no whole answer within {time:?}");
            return Err(Failure::Handler(HandlerError::retry(text)));
        };
        answer
    }

    async fn exchange(&self, params: Params, what: &str, context: &Context) -> Returned {
        let addresses = self.addresses(&params.url, what).await?;
        let Params { method, url, headers, secrets, body, expected, .. } = params;
        let broken = |error: reqwest::Error| {
            // The URL may hold what nobody else should see.
            let text = hidden(HandlerError::from(error.without_url()).message(), &secrets);
            Failure::Handler(HandlerError::retry(format!("{what}: {text}")))
        };
        let client = self.client(addresses).map_err(broken)?;
        let mut request = client.request(method, url).headers(headers.into_iter().collect());
        if let Some(body) = body {
            request = request.body(body);
        }
        let response = request.send().await.map_err(broken)?;
        let status = response.status();
        let body = hidden(&read(response).await.map_err(broken)?, &secrets);
        context.info(format!("{what}: {status}, {} bytes", body.len()));
        if expected.has(status) {
            return output(body);
        }
        let quote = &body[..body.floor_char_boundary(MAX_QUOTE)];
        let quote = if quote.is_empty() { String::new() } else { format!(": {quote}") };
        let text = format!("{what}: the status is {status}{quote}");
        Err(Failure::Handler(if params::may_change(status) {
            HandlerError::retry(text)
        } else {
            HandlerError::fatal(text)
        }))
    }

    /// The addresses of the URL's host, all of them allowed.
    async fn addresses(&self, url: &Url, what: &str) -> Result<Vec<SocketAddr>, Failure> {
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err(Failure::BadParams(format!("{what}: the url has no host")));
        };
        let allow = &self.config.allow;
        let host = host.trim_matches(['[', ']']);
        let found: Vec<SocketAddr> = match host.parse::<IpAddr>() {
            Ok(ip) => vec![SocketAddr::new(ip, port)],
            Err(_) if !allow.may_look_up(host, port) => {
                let why = allow::Denied::Unlisted;
                return Err(Failure::BadParams(format!(
                    "url: {host}:{port} is not reached: {why}"
                )));
            }
            Err(_) => match tokio::net::lookup_host((host, port)).await {
                Ok(found) => found.collect(),
                Err(error) => {
                    let text = format!("{what}: the host cannot be found: {error}");
                    return Err(Failure::Handler(HandlerError::retry(text)));
                }
            },
        };
        // One bad address among good ones is a name that somebody plays with.
        for address in &found {
            allow.check(host, *address).map_err(|why| {
                Failure::BadParams(format!("url: {host} is not reached at {address}: {why}"))
            })?;
        }
        Ok(found)
    }

    /// A client for one request, which knows these addresses only.
    fn client(&self, addresses: Vec<SocketAddr>) -> reqwest::Result<Client> {
        Client::builder()
            .tls_backend_preconfigured(self.tls.clone())
            .dns_resolver(Arc::new(Checked(addresses)))
            .redirect(Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .referer(false)
            .user_agent(concat!("taskparty/", env!("CARGO_PKG_VERSION")))
            .pool_max_idle_per_host(0)
            .build()
    }
}

/// Answers every question with the addresses that were checked.
struct Checked(Vec<SocketAddr>);

impl Resolve for Checked {
    fn resolve(&self, _: Name) -> Resolving {
        let addresses: Addrs = Box::new(self.0.clone().into_iter());
        Box::pin(std::future::ready(Ok(addresses)))
    }
}

/// The beginning of the body, and all of it where it fits.
async fn read(mut response: Response) -> reqwest::Result<String> {
    let mut body = Vec::new();
    while body.len() < MAX_BODY
        && let Some(chunk) = response.chunk().await?
    {
        let room = MAX_BODY - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// `text` without the secrets that it echoes.
fn hidden(text: &str, secrets: &[Secret]) -> String {
    let secrets = secrets.iter().map(Secret::expose).filter(|secret| !secret.is_empty());
    secrets.fold(text.to_owned(), |text, secret| text.replace(secret, "(hidden)"))
}

/// The body, as JSON if it is that.
fn output(body: String) -> Returned {
    let written = match RawValue::from_string(body.clone()) {
        Ok(json) => Output::of(&json),
        Err(_) if body.trim().is_empty() => Ok(Output::default()),
        Err(_) => Output::of(&body),
    };
    written.map_err(|error| Failure::Handler(HandlerError::fatal(error)))
}

/// TLS with the one provider of the tree, which is handed over and never installed.
fn tls(config: &HttpConfig) -> Result<ClientConfig, ScriptError> {
    let mut roots = RootCertStore::empty();
    let system = rustls_native_certs::load_native_certs();
    for error in &system.errors {
        tracing::warn!(%error, "Some of the system's certificates cannot be read.");
    }
    roots.add_parsable_certificates(system.certs);
    if let Some(path) = &config.ca {
        let bad = |problem: String| ScriptError::Certificates { path: path.clone(), problem };
        let pem = std::fs::read(path).map_err(|error| bad(error.to_string()))?;
        let more: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
        let more = more.map_err(|error| bad(error.to_string()))?;
        if roots.add_parsable_certificates(more).0 == 0 {
            return Err(bad("there is none".into()));
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| ScriptError::Tls(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}
