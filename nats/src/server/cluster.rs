//! Several servers as one cluster, each of which can be stopped, killed and frozen by itself.

use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::config::{Port, ServerConfig};
use super::error::ServerError;
use super::port::free_port;
use super::probe;
use super::{PORT_ATTEMPTS, Server};

/// How to start a cluster.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// The program; [`super::find`] finds one.
    pub binary: PathBuf,
    /// How many nodes. Default: 3.
    pub nodes: usize,
    /// More lines for each node's configuration file.
    pub extra: String,
    /// More lines for each node's `cluster` block, such as `no_advertise: true`, without which
    /// clients learn the nodes' own addresses and pass by a proxy.
    pub cluster_extra: String,
    /// More lines for each node's `jetstream` block.
    pub jetstream_extra: String,
    /// How long the start of all of it may take. Default: 40 s.
    pub start_deadline: Duration,
}

impl ClusterConfig {
    /// Three nodes of this program.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        Self {
            binary: binary.into(),
            nodes: 3,
            extra: String::new(),
            cluster_extra: String::new(),
            jetstream_extra: String::new(),
            start_deadline: Duration::from_secs(40),
        }
    }
}

/// A cluster of nats-servers with JetStream, ended when this is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    start_deadline: Duration,
}

impl Cluster {
    /// Starts all nodes and waits until they have a leader that sees every one of them.
    ///
    /// # Errors
    /// As [`Server::start`]; and [`ServerError::ClusterSize`].
    pub async fn start(config: ClusterConfig) -> Result<Self, ServerError> {
        if !(3..=7).contains(&config.nodes) {
            return Err(ServerError::ClusterSize { nodes: config.nodes });
        }
        let mut attempt = 1;
        loop {
            match Self::start_once(&config).await {
                // Ports can be taken between our look and the server's bind.
                Err(ServerError::PortTaken { .. }) if attempt < PORT_ATTEMPTS => attempt += 1,
                outcome => return outcome,
            }
        }
    }

    async fn start_once(config: &ClusterConfig) -> Result<Self, ServerError> {
        let mut routes = Vec::new();
        while routes.len() < config.nodes {
            let port = free_port().ok_or(ServerError::PortTaken { port: 0 })?;
            if !routes.contains(&port) {
                routes.push(port);
            }
        }
        let urls: Vec<String> =
            routes.iter().map(|port| format!("\"nats://127.0.0.1:{port}\"")).collect();
        let name = format!("taskparty-{}", uuid::Uuid::new_v4());
        let mut nodes = Vec::new();
        for (index, port) in routes.iter().enumerate() {
            let cluster = format!(
                "cluster {{\n  name: \"{name}\"\n  listen: \"127.0.0.1:{port}\"\n  routes: [{}]\n{}\n}}\n",
                urls.join(", "),
                config.cluster_extra
            );
            let node = ServerConfig {
                name: format!("{name}-{}", index + 1),
                port: Port::Free,
                extra: format!("{cluster}{}", config.extra),
                jetstream_extra: config.jetstream_extra.clone(),
                start_deadline: config.start_deadline,
                ..ServerConfig::new(&config.binary)
            };
            nodes.push(Server::launch(node).await?);
        }
        let mut cluster = Self { nodes, start_deadline: config.start_deadline };
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    /// Waits until there is a leader, every node knows it, every peer is in step and every node
    /// is healthy.
    ///
    /// # Errors
    /// When a node is stopped, ends meanwhile, or the deadline passes.
    pub async fn wait_ready(&mut self) -> Result<(), ServerError> {
        let deadline = Instant::now() + self.start_deadline;
        while !self.in_step().await {
            if Instant::now() >= deadline {
                return Err(ServerError::NotReady {
                    waited_for: "the cluster has no leader that sees all nodes".to_owned(),
                    log: self.nodes[0].log_file(),
                    tail: String::new(),
                });
            }
            sleep(Duration::from_millis(20)).await;
        }
        for node in &mut self.nodes {
            node.wait_ready().await?;
        }
        Ok(())
    }

    async fn in_step(&self) -> bool {
        let mut leaders = Vec::new();
        let mut complete = false;
        for node in &self.nodes {
            let Some(meta) = probe::meta(node.place()).await else {
                return false;
            };
            complete |= meta.replicas.len() + 1 == self.nodes.len()
                && meta.replicas.iter().all(|peer| peer.current && !peer.offline);
            leaders.push(meta.leader);
        }
        complete && leaders.iter().all(|leader| !leader.is_empty() && *leader == leaders[0])
    }

    /// The index of the node that leads the cluster, as the nodes that run see it.
    pub async fn leader(&self) -> Option<usize> {
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            if let Some(meta) = probe::meta(node.place()).await
                && let Some(index) =
                    self.nodes.iter().position(|node| node.config.name == meta.leader)
            {
                return Some(index);
            }
        }
        None
    }

    /// All nodes' URLs, with commas, as a client takes them.
    pub fn url(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Server::url).collect();
        urls.join(",")
    }

    /// The nodes, by index.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// One node: to stop, kill or freeze it.
    ///
    /// # Panics
    /// When there is no such node.
    pub fn node(&mut self, index: usize) -> &mut Server {
        &mut self.nodes[index]
    }

    /// Starts a stopped node where it was and waits until it is in step with the others. With a
    /// majority down this cannot be: start the others first with [`Self::restart_all`].
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn restart(&mut self, index: usize) -> Result<(), ServerError> {
        self.nodes[index].restart().await
    }

    /// Starts every node again and waits until they are in step.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub async fn restart_all(&mut self) -> Result<(), ServerError> {
        for node in &mut self.nodes {
            node.stop().await;
        }
        for node in &mut self.nodes {
            node.relaunch().await?;
        }
        self.wait_ready().await
    }
}
