//! What a server is started with, and the files that are made from it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::error::ServerError;
use super::port::free_port;

/// How to start one server. All of it listens on loopback only.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// The program; [`super::find`] finds one.
    pub binary: PathBuf,
    /// The server's name; must be unique in a cluster. Default: one made of the process id and a count.
    pub name: String,
    /// The port for clients. Default: a free one.
    pub port: Port,
    /// The folder for store, log and configuration, made when missing and kept. Default: a new
    /// one in the system's temporary folder, removed with the server.
    pub dir: Option<PathBuf>,
    /// Whether JetStream is on. Default: on.
    pub jetstream: JetStream,
    /// Bytes that JetStream may use on disk. Default: 16 GiB, a limit that reserves nothing.
    pub max_store: u64,
    /// More lines for the configuration file: users, limits. They must not repeat a block.
    pub extra: String,
    /// More lines for its `jetstream` block, such as `sync_interval: always`.
    pub jetstream_extra: String,
    /// How long a start may take before it has failed. Default: 20 s.
    pub start_deadline: Duration,
}

impl ServerConfig {
    /// The defaults, with this program.
    pub fn new(binary: impl Into<PathBuf>) -> Self {
        use std::sync::atomic::{AtomicU64, Ordering};
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Self {
            binary: binary.into(),
            name: format!("taskparty-{}-{count}", std::process::id()),
            port: Port::Free,
            dir: None,
            jetstream: JetStream::On,
            max_store: 16 << 30,
            extra: String::new(),
            jetstream_extra: String::new(),
            start_deadline: Duration::from_secs(20),
        }
    }
}

/// Which port a server gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// A free one; it stays the same over restarts.
    Free,
    /// This one.
    Fixed(u16),
}

/// Whether a server has JetStream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JetStream {
    /// It has.
    On,
    /// It has not: messages are not stored, and TaskParty cannot work there.
    Off,
}

/// The ports of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) client: u16,
    pub(crate) monitor: u16,
}

impl Place {
    pub(crate) fn choose(config: &ServerConfig) -> Result<Self, ServerError> {
        let free = || free_port().ok_or(ServerError::PortTaken { port: 0 });
        let client = match config.port {
            Port::Free => free()?,
            Port::Fixed(port) => port,
        };
        Ok(Self { client, monitor: free()? })
    }
}

/// The folder of one server. Cheap to clone; the last clone removes what is ours.
#[derive(Debug, Clone)]
pub(crate) struct Home(Arc<Folder>);

#[derive(Debug)]
struct Folder {
    dir: PathBuf,
    ours: bool,
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

impl Home {
    pub(crate) fn prepare(config: &ServerConfig) -> Result<Self, ServerError> {
        let (dir, ours) = match &config.dir {
            Some(dir) => (dir.clone(), false),
            None => (
                std::env::temp_dir().join(format!("taskparty-nats-{}", uuid::Uuid::new_v4())),
                true,
            ),
        };
        let home = Self(Arc::new(Folder { dir, ours }));
        let store = home.dir().join("store");
        std::fs::create_dir_all(&store)
            .map_err(|source| ServerError::Files { path: store, source })?;
        Ok(home)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.0.dir
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.dir().join("nats-server.log")
    }

    /// Writes the configuration file. A start has a log of its own.
    pub(crate) fn write(
        &self,
        config: &ServerConfig,
        place: &Place,
    ) -> Result<PathBuf, ServerError> {
        let store = self.dir().join("store");
        let mut text = String::new();
        let _ = writeln!(text, "server_name: {}", quoted(&config.name));
        let _ = writeln!(text, "listen: \"127.0.0.1:{}\"", place.client);
        let _ = writeln!(text, "http: \"127.0.0.1:{}\"", place.monitor);
        if config.jetstream == JetStream::On {
            let _ = writeln!(text, "jetstream {{");
            let _ = writeln!(text, "  store_dir: {}", quoted(&store.display().to_string()));
            let _ = writeln!(text, "  max_file_store: {}", config.max_store);
            let _ = writeln!(text, "{}\n}}", config.jetstream_extra);
        }
        text.push_str(&config.extra);
        text.push('\n');
        let conf = self.dir().join("nats-server.conf");
        std::fs::write(&conf, text)
            .map_err(|source| ServerError::Files { path: conf.clone(), source })?;
        let log = self.log();
        std::fs::write(&log, "").map_err(|source| ServerError::Files { path: log, source })?;
        Ok(conf)
    }
}

/// A string as the configuration file takes it.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}
