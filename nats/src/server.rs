//! Real nats-servers as child processes: for `taskparty dev` and for tests.
//!
//! A [`Server`] has its own port, its own JetStream store and its own log, and it never outlives
//! the process that started it, however that one ends. A [`Cluster`] is three or more of them.
//! What must never be in here: a connection to a server that someone else runs; that is
//! [`crate::connect`].
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use taskparty_nats::server::{Search, Server, ServerConfig, find};
//!
//! let binary = find(&Search::from_env())?;
//! let server = Server::start(ServerConfig::new(binary.path)).await?;
//! println!("{}", server.url());
//! # Ok(()) }
//! ```

mod binary;
mod cluster;
mod config;
mod error;
mod guard;
mod port;
mod probe;
mod process;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

pub(crate) use binary::new_enough;
pub use binary::{Binary, FindError, OLDEST, Search, Source, find};
pub use cluster::{Cluster, ClusterConfig};
pub use config::{JetStream, Port, ServerConfig};
pub use error::ServerError;
pub use guard::Guarded;

use config::{Home, Place};
use process::Process;

/// How many ports are tried before a start is given up, when the port is ours to choose.
const PORT_ATTEMPTS: usize = 8;

/// One nats-server, ended when this is dropped.
#[derive(Debug)]
pub struct Server {
    config: ServerConfig,
    /// Where the store, the log and the configuration are; removed at drop when it is ours.
    home: Home,
    /// Fixed by the first start, so that a restart is found where it was.
    place: Place,
    /// None between `stop` or `kill` and `restart`.
    process: Option<Process>,
}

impl Server {
    /// Starts a server and waits until it answers: until JetStream is up, where it is wanted.
    ///
    /// # Errors
    /// When the binary does not run, the given port is taken, the configuration is refused, or
    /// nothing answers inside [`ServerConfig::start_deadline`]. The error carries the log's end.
    pub async fn start(config: ServerConfig) -> Result<Self, ServerError> {
        let mut server = Self::launch(config).await?;
        if let Err(error) = server.wait_ready().await {
            server.kill();
            return Err(error);
        }
        Ok(server)
    }

    /// Starts a server and waits only until its port answers: a cluster's node is of no use
    /// before its peers are there.
    pub(crate) async fn launch(config: ServerConfig) -> Result<Self, ServerError> {
        let home = Home::prepare(&config)?;
        let deadline = Instant::now() + config.start_deadline;
        let mut attempt = 1;
        loop {
            let place = Place::choose(&config)?;
            let mut server =
                Self { config: config.clone(), home: home.clone(), place, process: None };
            match server.spawn(deadline).await {
                Err(ServerError::PortTaken { .. })
                    if config.port == Port::Free && attempt < PORT_ATTEMPTS =>
                {
                    attempt += 1;
                }
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
    }

    async fn spawn(&mut self, deadline: Instant) -> Result<(), ServerError> {
        let conf = self.home.write(&self.config, &self.place)?;
        let mut process = Process::spawn(&self.config.binary, &conf, &self.home.log())?;
        match probe::wait_for_port(&mut process, &self.place, &self.config.name, deadline).await {
            Ok(()) => {
                self.process = Some(process);
                Ok(())
            }
            Err(error) => Err(error.explain(&self.place, &self.home.log())),
        }
    }

    /// Waits until JetStream answers, and in a cluster until this node has caught up.
    ///
    /// # Errors
    /// When the server ends meanwhile, or the deadline of [`ServerConfig::start_deadline`] passes.
    pub async fn wait_ready(&mut self) -> Result<(), ServerError> {
        let deadline = Instant::now() + self.config.start_deadline;
        let Some(process) = self.process.as_mut() else {
            return Err(ServerError::NotRunning);
        };
        probe::wait_for_health(process, &self.place, self.config.jetstream, deadline)
            .await
            .map_err(|error| error.explain(&self.place, &self.home.log()))
    }

    /// Where clients connect, without credentials.
    pub fn url(&self) -> String {
        format!("nats://{}", self.address())
    }

    /// Host and port for clients.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.place.client)
    }

    /// Where the server answers questions about itself over HTTP (`/varz`, `/jsz`, `/healthz`).
    pub fn monitor_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.place.monitor)
    }

    /// The folder with the store, the log and the configuration.
    pub fn dir(&self) -> &Path {
        self.home.dir()
    }

    /// The log file.
    pub fn log_file(&self) -> PathBuf {
        self.home.log()
    }

    /// The server's process id, while one runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Asks the server to end and waits for it; after 10 s it is killed. Safe twice.
    pub async fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.stop(Duration::from_secs(10)).await;
        }
    }

    /// Ends the server at once, as a crash would: nothing is flushed. Safe twice.
    pub fn kill(&mut self) {
        self.process.take();
    }

    /// Freezes the server: connections stay open and nothing answers. Undone by [`Self::resume`].
    ///
    /// # Errors
    /// [`ServerError::NotRunning`].
    pub fn pause(&self) -> Result<(), ServerError> {
        self.process.as_ref().ok_or(ServerError::NotRunning)?.pause()
    }

    /// Lets a frozen server go on.
    ///
    /// # Errors
    /// [`ServerError::NotRunning`].
    pub fn resume(&self) -> Result<(), ServerError> {
        self.process.as_ref().ok_or(ServerError::NotRunning)?.resume()
    }

    /// Starts the server again where it was (same port, same store), stopping it first when it
    /// still runs, and waits until it answers.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub async fn restart(&mut self) -> Result<(), ServerError> {
        self.relaunch().await?;
        self.wait_ready().await
    }

    /// [`Self::restart`] without waiting for JetStream.
    pub(crate) async fn relaunch(&mut self) -> Result<(), ServerError> {
        self.stop().await;
        let deadline = Instant::now() + self.config.start_deadline;
        self.spawn(deadline).await
    }

    /// Which ports it has.
    pub(crate) fn place(&self) -> &Place {
        &self.place
    }
}
