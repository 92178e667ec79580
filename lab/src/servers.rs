//! The nats-server or the cluster of them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use taskparty_nats::server::{Cluster, ClusterConfig, Search, Server, ServerConfig, find};

/// Room for the streams that are reserved.
const STORE: u64 = 64 << 30;

/// What NATS is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One server.
    Single,
    /// Three, which store everything three times.
    Cluster,
}

/// How NATS is started.
#[derive(Debug, Clone)]
pub struct Shape {
    /// What it is.
    pub kind: Kind,
    /// More lines for each `jetstream` block, such as `sync_interval: always`.
    pub jetstream: String,
}

impl From<Kind> for Shape {
    fn from(kind: Kind) -> Self {
        Self { kind, jetstream: String::new() }
    }
}

/// The servers; ended when this is dropped.
#[derive(Debug)]
pub enum Servers {
    /// One.
    Single(Box<Server>),
    /// Three.
    Cluster(Box<Cluster>),
}

impl Servers {
    /// Starts them.
    ///
    /// # Errors
    /// When there is no nats-server, or it does not start.
    pub async fn start(shape: &Shape) -> Result<Self> {
        let binary = find(&Search::from_env())?.path;
        let jetstream_extra = shape.jetstream.clone();
        Ok(match shape.kind {
            Kind::Single => {
                let config =
                    ServerConfig { max_store: STORE, jetstream_extra, ..ServerConfig::new(binary) };
                Self::Single(Box::new(Server::start(config).await?))
            }
            Kind::Cluster => {
                let config = ClusterConfig {
                    // Else clients learn the nodes' own addresses, and pass by their proxies.
                    cluster_extra: "  no_advertise: true".into(),
                    start_deadline: Duration::from_secs(60),
                    jetstream_extra,
                    ..ClusterConfig::new(binary)
                };
                Self::Cluster(Box::new(Cluster::start(config).await?))
            }
        })
    }

    /// The nodes, by index.
    pub fn nodes(&self) -> &[Server] {
        match self {
            Self::Single(server) => std::slice::from_ref(server),
            Self::Cluster(cluster) => cluster.nodes(),
        }
    }

    /// One node, to stop, kill or freeze it.
    pub fn node(&mut self, index: usize) -> &mut Server {
        match self {
            Self::Single(server) => server,
            Self::Cluster(cluster) => cluster.node(index),
        }
    }

    /// All URLs, with commas.
    pub fn url(&self) -> String {
        self.nodes().iter().map(Server::url).collect::<Vec<_>>().join(",")
    }

    /// Starts a node again, when it is stopped or killed, and waits until all are in step.
    ///
    /// # Errors
    /// When they are not in time.
    pub async fn restart(&mut self, index: usize) -> Result<()> {
        match self {
            Self::Single(server) => server.restart().await?,
            Self::Cluster(cluster) => cluster.restart(index).await?,
        }
        self.in_step().await
    }

    /// Starts all nodes again.
    ///
    /// # Errors
    /// When they are not in step in time.
    pub async fn restart_all(&mut self) -> Result<()> {
        match self {
            Self::Single(server) => Ok(server.restart().await?),
            Self::Cluster(cluster) => Ok(cluster.restart_all().await?),
        }
    }

    /// Waits until all nodes are in step.
    ///
    /// # Errors
    /// When they are not in time.
    pub async fn in_step(&mut self) -> Result<()> {
        match self {
            Self::Single(server) => Ok(server.wait_ready().await?),
            Self::Cluster(cluster) => Ok(cluster.wait_ready().await?),
        }
    }

    /// Adds what a node has said so far to a file in `dir`: its own log begins anew at each start.
    ///
    /// # Errors
    /// When that cannot be written.
    pub fn keep_log(&self, index: usize, dir: &Path) -> Result<PathBuf> {
        use std::io::Write;
        let kept = dir.join(format!("nats-{index}.log"));
        let log = std::fs::read(self.nodes()[index].log_file()).unwrap_or_default();
        let mut file = std::fs::File::options().create(true).append(true).open(&kept)?;
        file.write_all(&log).with_context(|| kept.display().to_string())?;
        Ok(kept)
    }
}
