//! A node on a real server, and what asks it.

use std::path::Path;
use std::time::Duration;

use async_nats::Message;
use serde_json::{Value, json};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::topology::TopologyConfig;
use taskparty_scheduler::{Node, NodeConfig, NodeError, Role};
use tokio_util::sync::CancellationToken;

pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Rig {
    pub(crate) nats: Nats,
    node: Node,
    shutdown: CancellationToken,
    _server: Server,
    dir: tempfile::TempDir,
}

impl Rig {
    pub(crate) async fn start(roles: &[Role]) -> Self {
        let binary = find(&Search::from_env()).expect("nats/install.sh has been run").path;
        let server =
            Server::start(ServerConfig { max_store: 64 << 30, ..ServerConfig::new(binary) })
                .await
                .unwrap();
        let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let shutdown = CancellationToken::new();
        let config = config(roles, dir.path(), "history.db");
        let node =
            Node::start(config, nats.clone(), Clock::system(), shutdown.clone()).await.unwrap();
        Self { nats, node, shutdown, _server: server, dir }
    }

    /// A second node, with a file of its own.
    pub(crate) async fn beside(&self, roles: &[Role], file: &str) -> Result<Node, NodeError> {
        let config = config(roles, self.dir.path(), file);
        let shutdown = self.shutdown.child_token();
        Node::start(config, self.nats.clone(), Clock::system(), shutdown).await
    }

    pub(crate) async fn send(
        &self,
        noun: &str,
        verb: &str,
        body: impl Into<bytes::Bytes>,
    ) -> Message {
        let subject = self.nats.names().api(noun, verb);
        let request = async_nats::Request::new().payload(body.into()).timeout(Some(PATIENCE));
        self.nats.client().send_request(subject, request).await.unwrap()
    }

    /// The answer; an error's document where it is one.
    pub(crate) async fn ask(&self, noun: &str, verb: &str, body: Value) -> Result<Value, Value> {
        let message = self.send(noun, verb, body.to_string()).await;
        let body: Value = serde_json::from_slice(&message.payload).unwrap();
        let code =
            message.headers.and_then(|headers| headers.get("Nats-Service-Error-Code").cloned());
        if code.is_some() { Err(body) } else { Ok(body) }
    }

    /// The run, as soon as it is in `state`.
    pub(crate) async fn run_in_state(&self, run: &Value, state: &str) -> Value {
        let look = async {
            loop {
                match self.ask("run", "get", json!({"run": run})).await {
                    Ok(found) if found["state"] == state => return found,
                    Ok(_) => {}
                    Err(problem) => assert_eq!(problem["code"], "not_found", "{problem}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("the run comes to this state")
    }

    pub(crate) async fn buckets(&self) -> Buckets {
        Buckets::new(self.nats.clone(), Publisher::start(self.nats.client()).await.unwrap())
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.node.ended()).await.unwrap();
    }
}

fn config(roles: &[Role], dir: &Path, file: &str) -> NodeConfig {
    NodeConfig {
        roles: roles.iter().copied().collect(),
        topology: TopologyConfig::default(),
        store: format!("sqlite:{}", dir.join(file).display()),
        host: "test".into(),
        drain: Duration::from_secs(5),
        clock_tolerance: None,
    }
}

pub(crate) fn spec(id: &str) -> Value {
    json!({"id": id, "app": "order-service", "handler": "settle", "overlap": "allow"})
}
