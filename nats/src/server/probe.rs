//! Asking a starting server how far it is.
//!
//! By its monitoring port, never through a client: a server with users or with TLS can so be
//! waited for by someone who has neither credentials nor certificates.

use std::net::Ipv4Addr;
use std::time::Duration;

use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout};

use super::config::{JetStream, Place};
use super::error::Trouble;
use super::process::Process;

const ASK_AGAIN: Duration = Duration::from_millis(10);
const ANSWER: Duration = Duration::from_secs(2);
/// The longest answer that is read.
const ANSWER_BYTES: u64 = 1 << 20;

/// What `/varz` says, as far as it matters here.
#[derive(Deserialize)]
struct Varz {
    #[serde(default)]
    server_name: String,
}

/// What `/jsz` says of the cluster.
#[derive(Debug, Deserialize)]
pub(crate) struct Jsz {
    pub(crate) meta_cluster: Option<Meta>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Meta {
    /// The leader's name; empty during an election.
    #[serde(default)]
    pub(crate) leader: String,
    /// The other nodes; only the leader lists them.
    #[serde(default)]
    pub(crate) replicas: Vec<Peer>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Peer {
    #[serde(default)]
    pub(crate) current: bool,
    #[serde(default)]
    pub(crate) offline: bool,
}

/// Asks only whether the server takes connections.
const ACCEPTS: &str = "/healthz?js-server-only=true";

/// Waits until the server under the name that we gave it takes connections. Another program on
/// the port makes ours end.
pub(crate) async fn wait_for_port(
    process: &mut Process,
    place: &Place,
    name: &str,
    deadline: Instant,
) -> Result<(), Trouble> {
    loop {
        if let Some(status) = process.ended() {
            return Err(Trouble::Ended(status));
        }
        let accepts = get(place.monitor, ACCEPTS).await.is_some_and(|answer| answer.status == 200);
        if accepts && server_name(place).await.as_deref() == Some(name) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(Trouble::NotReady("its port did not open".to_owned()));
        }
        sleep(ASK_AGAIN).await;
    }
}

async fn server_name(place: &Place) -> Option<String> {
    let answer = get(place.monitor, "/varz").await?;
    serde_json::from_str::<Varz>(&answer.body).ok().map(|varz| varz.server_name)
}

/// Waits until the server calls itself healthy: JetStream recovered and, in a cluster, in step.
pub(crate) async fn wait_for_health(
    process: &mut Process,
    place: &Place,
    jetstream: JetStream,
    deadline: Instant,
) -> Result<(), Trouble> {
    let path = match jetstream {
        JetStream::On => "/healthz",
        JetStream::Off => ACCEPTS,
    };
    loop {
        if let Some(status) = process.ended() {
            return Err(Trouble::Ended(status));
        }
        let answer = get(place.monitor, path).await;
        if answer.as_ref().is_some_and(|answer| answer.status == 200) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            let said = answer.map_or_else(|| "no answer".to_owned(), |answer| answer.body);
            return Err(Trouble::NotReady(format!("it is not healthy: {}", said.trim())));
        }
        sleep(ASK_AGAIN).await;
    }
}

/// What the server knows about the cluster's leader.
pub(crate) async fn meta(place: &Place) -> Option<Meta> {
    let answer = get(place.monitor, "/jsz").await?;
    serde_json::from_str::<Jsz>(&answer.body).ok()?.meta_cluster
}

struct Answer {
    status: u16,
    body: String,
}

/// A GET over HTTP/1.0: one connection, the body until its end.
async fn get(port: u16, path: &str) -> Option<Answer> {
    let ask = async {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.ok()?;
        stream
            .write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes())
            .await
            .ok()?;
        let mut text = String::new();
        stream.take(ANSWER_BYTES).read_to_string(&mut text).await.ok()?;
        let (head, body) = text.split_once("\r\n\r\n")?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some(Answer { status, body: body.to_owned() })
    };
    timeout(ANSWER, ask).await.ok()?
}
