//! The connection to NATS, and the handle that everything else takes.
//!
//! [`connect`] tries once, for a person who waits; [`connect_when_up`] waits for NATS for ever,
//! for a service. Both end in a [`Nats`], which reconnects by itself from then on. Every way in
//! which this goes wrong is one sentence that says which it was and what to do.
//!
//! What must never be in here: a password or a token in a log or an error.

mod config;
mod context;
mod diagnose;
mod error;
mod events;
mod secret;

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::ContextBuilder;
use async_nats::{Client, ConnectOptions, jetstream};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

pub use config::{ConnectConfig, DEFAULT_URL, Handshake, Tls};
pub use context::{read_context, selected_context};
pub use error::ConnectError;
pub use events::{Denied, Events};
pub use secret::Secret;

use crate::subject::Names;

/// A connection that hangs is noticed after two missed pings.
const PING: Duration = Duration::from_secs(3);
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MOST: Duration = Duration::from_secs(5);
const SAY_AGAIN_FIRST: Duration = Duration::from_secs(5);
const SAY_AGAIN_MOST: Duration = Duration::from_secs(300);

/// A connection with JetStream, and the names of this installation. Cheap to clone.
#[derive(Clone)]
pub struct Nats(Arc<Inner>);

struct Inner {
    client: Client,
    js: jetstream::Context,
    names: Names,
    events: Events,
    request_deadline: Duration,
    api_prefix: String,
}

impl std::fmt::Debug for Nats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nats").field("server", &self.server()).finish_non_exhaustive()
    }
}

impl Nats {
    /// The client, for what JetStream has no part in. Its requests end after
    /// [`Self::request_deadline`].
    pub fn client(&self) -> &Client {
        &self.0.client
    }

    /// JetStream, in the configured domain. Its requests end after [`Self::request_deadline`].
    pub fn js(&self) -> &jetstream::Context {
        &self.0.js
    }

    /// The names of subjects, streams and buckets, under the configured prefix.
    pub fn names(&self) -> &Names {
        &self.0.names
    }

    /// What the server has refused: a request that it refuses looks like one that timed out, and
    /// [`Events::denied_since`] tells them apart.
    pub fn events(&self) -> &Events {
        &self.0.events
    }

    /// What the subjects of JetStream's API begin with, usually `$JS.API`.
    pub fn api_prefix(&self) -> &str {
        &self.0.api_prefix
    }

    /// How long one call may wait for its answer.
    pub fn request_deadline(&self) -> Duration {
        self.0.request_deadline
    }

    /// What the server that we are connected to said of itself.
    pub fn server(&self) -> Server {
        let info = self.0.client.server_info();
        Server {
            name: info.server_name,
            version: info.version,
            cluster: info.cluster.filter(|name| !name.is_empty()),
            max_payload: info.max_payload,
        }
    }

    /// How often streams are stored where the configuration does not say: three times in a
    /// cluster, once on a single server.
    ///
    /// A node that is down just now must not lead to streams with a single copy, so the number of
    /// nodes that are up is not looked at.
    pub fn replicas(&self) -> usize {
        if self.server().cluster.is_some() { 3 } else { 1 }
    }

    /// Sends what is still buffered and ends the connection, for at most `patience`.
    pub async fn close(&self, patience: Duration) {
        if timeout(patience, self.0.client.drain()).await.is_err() {
            tracing::warn!("the connection to NATS could not be drained in time");
        }
    }
}

/// A server, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Server {
    /// Its name.
    pub name: String,
    /// Its version, such as `2.15.1`.
    pub version: String,
    /// The cluster's name, when it is in one.
    pub cluster: Option<String>,
    /// The largest message that it takes, in bytes.
    pub max_payload: usize,
}

/// Connects, or says why not, within about [`ConnectConfig::connect_deadline`]: each server is
/// tried once.
///
/// # Errors
/// See [`ConnectError`].
pub async fn connect(config: &ConnectConfig) -> Result<Nats, ConnectError> {
    let servers = config.servers()?;
    let events = Events::default();
    let options = options(config, &events).await?;
    let attempt = timeout(config.connect_deadline, options.connect(&servers[..])).await;
    let client = match attempt {
        Ok(Ok(client)) => client,
        Ok(Err(error)) => {
            return Err(diagnose::failed_connect(config, &servers, Some(&error)).await);
        }
        Err(_) => return Err(diagnose::failed_connect(config, &servers, None).await),
    };
    let info = client.server_info();
    if !crate::server::new_enough(&info.version) {
        return Err(ConnectError::TooOld { server: config.shown_url(), version: info.version });
    }
    let nats = Nats(Arc::new(Inner {
        js: jetstream(config, client.clone()),
        client,
        names: Names::new(config.prefix.clone()),
        events,
        request_deadline: config.request_deadline,
        api_prefix: config.api_prefix(),
    }));
    diagnose::check_jetstream(config, &nats).await?;
    Ok(nats)
}

/// Connects as soon as NATS is there: tries again for ever, until `shutdown`. It says at once why
/// it waits, and then at growing intervals.
///
/// # Errors
/// [`ConnectError::Stopped`] after `shutdown`; and what waiting cannot mend: a wrong URL or a
/// file that cannot be read.
pub async fn connect_when_up(
    config: &ConnectConfig,
    shutdown: &CancellationToken,
) -> Result<Nats, ConnectError> {
    let mut retry = RETRY_FIRST;
    let mut say_again = SAY_AGAIN_FIRST;
    let mut said: Option<Instant> = None;
    loop {
        let attempt =
            shutdown.run_until_cancelled(connect(config)).await.ok_or(ConnectError::Stopped)?;
        let error = match attempt {
            Ok(nats) => return Ok(nats),
            Err(error) if error.is_permanent() => return Err(error),
            Err(error) => error,
        };
        if said.is_none_or(|said| said.elapsed() >= say_again) {
            if said.is_some() {
                say_again = (say_again * 2).min(SAY_AGAIN_MOST);
            }
            said = Some(Instant::now());
            tracing::warn!(code = error.code(), %error, "cannot use NATS yet; trying again until it works");
        }
        let pause = jittered(retry);
        shutdown
            .run_until_cancelled(tokio::time::sleep(pause))
            .await
            .ok_or(ConnectError::Stopped)?;
        retry = (retry * 2).min(RETRY_MOST);
    }
}

/// Between half of it and all of it, so that a fleet does not come back as one.
fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..1.0))
}

fn jetstream(config: &ConnectConfig, client: Client) -> jetstream::Context {
    ContextBuilder::new()
        .timeout(config.request_deadline)
        .ack_timeout(config.request_deadline)
        .api_prefix(config.api_prefix())
        .build(client)
}

async fn options(config: &ConnectConfig, events: &Events) -> Result<ConnectOptions, ConnectError> {
    let recorder = events.clone();
    let mut options = config
        .authenticated(ConnectOptions::new())
        .await?
        .name(&config.name)
        .connection_timeout(config.connect_deadline.min(Duration::from_secs(2)))
        .request_timeout(Some(config.request_deadline))
        .ping_interval(PING)
        .reconnect_delay_callback(|attempts| match attempts {
            0 | 1 => Duration::ZERO,
            n => jittered(Duration::from_millis(20 << n.min(8)).min(RETRY_MOST)),
        })
        .event_callback(move |event| {
            let recorder = recorder.clone();
            async move { recorder.record(&event) }
        });
    if let Some(prefix) = &config.inbox_prefix {
        options = options.custom_inbox_prefix(prefix);
    }
    config.tls.apply(options).await
}
