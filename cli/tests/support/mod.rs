//! The real binary against real servers: what all tests of the command line share.
#![allow(dead_code, unreachable_pub, reason = "each test file uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what helps tests is a test")]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::topology::TopologyConfig;
use taskparty_scheduler::{Node, NodeConfig, Role};
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

/// How long a command may take before the test has failed.
const PATIENCE: Duration = Duration::from_secs(90);

/// The nats-server to test with.
pub fn binary() -> PathBuf {
    find(&Search::from_env()).expect("nats/install.sh has been run").path
}

/// A server with room for the streams that are reserved.
pub fn server_config() -> ServerConfig {
    ServerConfig { max_store: 64 << 30, ..ServerConfig::new(binary()) }
}

/// What a command did.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// It ended with `code`.
    #[track_caller]
    pub fn exits(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Its stdout as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Its stderr as a problem document.
    #[track_caller]
    pub fn problem(&self) -> Value {
        serde_json::from_str(&self.stderr).unwrap_or_else(|error| panic!("{error}: {self:#?}"))
    }

    /// Its stderr holds `text`.
    #[track_caller]
    pub fn says(self, text: &str) -> Self {
        assert!(self.stderr.contains(text), "{text:?} is missing: {self:#?}");
        self
    }
}

/// A folder, with the binary at work in it, and nothing of this machine's environment.
pub struct Desk {
    pub dir: tempfile::TempDir,
    url: Option<String>,
    inbox: Option<String>,
}

impl Desk {
    pub fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap(), url: None, inbox: None }
    }

    pub fn with_url(url: impl Into<String>) -> Self {
        Self { url: Some(url.into()), ..Self::new() }
    }

    /// From now on with inboxes of this prefix.
    pub fn inbox(&mut self, prefix: &str) {
        self.inbox = Some(prefix.into());
    }

    /// Writes a file into the folder.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).unwrap();
        }
        std::fs::write(&path, text).unwrap();
        name.to_owned()
    }

    /// The command, ready to be run.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_taskparty"));
        command.args(args).current_dir(self.dir.path()).env_clear();
        for kept in ["PATH", "TASKPARTY_NATS_SERVER"] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command.env("HOME", self.dir.path()).env("USER", "ada").env("HOSTNAME", "desk");
        if let Some(url) = &self.url {
            command.env("NATS_URL", url);
        }
        if let Some(prefix) = &self.inbox {
            command.env("TASKPARTY_NATS_INBOX_PREFIX", prefix);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs the binary to its end.
    pub async fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, "").await
    }

    /// Runs the binary with `stdin`.
    pub async fn run_with(&self, args: &[&str], stdin: &str) -> Ran {
        let mut command = self.command(args);
        if !stdin.is_empty() {
            let path = self.dir.path().join(".stdin");
            std::fs::write(&path, stdin).unwrap();
            command.stdin(std::fs::File::open(path).unwrap());
        }
        let output = tokio::time::timeout(PATIENCE, command.output())
            .await
            .expect("it ends in time")
            .unwrap();
        Ran {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

/// A server with a node, and a desk that finds them.
pub struct Rig {
    pub desk: Desk,
    pub nats: Nats,
    node: Node,
    shutdown: CancellationToken,
    server: Server,
}

impl Rig {
    /// A whole installation.
    pub async fn start() -> Self {
        Self::start_with(&[Role::Scheduler, Role::LogWriter, Role::Api]).await
    }

    pub async fn start_with(roles: &[Role]) -> Self {
        Self::start_on(server_config(), "", roles).await
    }

    /// An installation on a server of this kind, the node as `user`, as `name:password`.
    pub async fn start_on(server: ServerConfig, user: &str, roles: &[Role]) -> Self {
        let server = Server::start(server).await.unwrap();
        let url = with_user(&server, user);
        let desk = Desk::with_url(&url);
        let inbox_prefix = user.split_once(':').map(|(name, _)| format!("_INBOX_{name}"));
        let config = ConnectConfig { inbox_prefix, ..ConnectConfig::new(url) };
        let nats = connect(&config).await.unwrap();
        let config = NodeConfig {
            roles: roles.iter().copied().collect(),
            topology: TopologyConfig::default(),
            store: store_url(desk.dir.path()),
            host: "test".into(),
            drain: Duration::from_secs(5),
            clock_tolerance: None,
        };
        let shutdown = CancellationToken::new();
        let node =
            Node::start(config, nats.clone(), Clock::system(), shutdown.clone()).await.unwrap();
        Self { desk, nats, node, shutdown, server }
    }

    pub async fn run(&self, args: &[&str]) -> Ran {
        self.desk.run(args).await
    }

    /// The server's URL for `user`, as `name:password`.
    pub fn url(&self, user: &str) -> String {
        with_user(&self.server, user)
    }

    /// The last revision of the bucket of jobs.
    pub async fn jobs_revision(&self) -> u64 {
        let stream = self.nats.names().bucket_stream(taskparty_nats::subject::Bucket::Jobs);
        taskparty_nats::history::stream_info(self.nats.js(), &stream).await.unwrap().last_seq
    }

    /// Ends all of it, in order.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.node.ended()).await.expect("the node ends in time");
        self.server.stop().await;
    }
}

fn with_user(server: &Server, user: &str) -> String {
    let who = if user.is_empty() { String::new() } else { format!("{user}@") };
    server.url().replace("nats://", &format!("nats://{who}"))
}

fn store_url(dir: &Path) -> String {
    format!("sqlite:{}", dir.join("history.db").display())
}

/// What `look` finds, as soon as it finds something.
pub async fn until<T>(look: impl AsyncFn() -> Option<T>) -> T {
    let found = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("it happens in time")
}

/// A job file with one job on demand.
pub fn job(id: &str, more: &str) -> String {
    format!("id: {id}\napp: order-service\nhandler: settle\noverlap: allow\n{more}")
}
