//! `taskparty dev` and `taskparty serve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// The options of `dev`.
#[derive(Debug, Args)]
#[command(after_help = "Ctrl-C stops all of it.

Examples:
  taskparty dev --demo
  taskparty dev --data ./taskparty-data     keeps what happened for the next time")]
pub(crate) struct DevArgs {
    /// Where to keep NATS streams and history. Without it: a new folder, removed at the end.
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// The port for NATS clients. [default: 4222, or a free one]
    #[arg(long, value_name = "N")]
    pub(crate) port: Option<u16>,
    /// Also two executors of an order-service, and four jobs to watch.
    #[arg(long)]
    pub(crate) demo: bool,
    /// End with the demo's summary, with exit code 0 when all was well and 1 when not.
    #[arg(long, hide = true, requires = "demo")]
    pub(crate) demo_exit: bool,
}

/// The options of `serve`.
#[derive(Debug, Args)]
#[command(after_help = "Ends on SIGTERM or SIGINT, in order.

Examples:
  taskparty serve
  taskparty serve --roles scheduler --nats-url nats://nats-1:4222,nats://nats-2:4222
  taskparty serve --roles log-writer,api --store-url sqlite:/var/lib/taskparty/history.db
  taskparty serve --roles script --config /etc/taskparty/scripts.toml")]
pub(crate) struct ServeArgs {
    /// What this node does. [default: scheduler,log-writer,api]
    #[arg(long, value_enum, value_delimiter = ',', value_name = "ROLES")]
    pub(crate) roles: Vec<Role>,
    /// Where history is, as sqlite:PATH. [default: sqlite:taskparty.db]
    #[arg(long, value_name = "URL")]
    pub(crate) store_url: Option<String>,
}

/// A part of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// Fires jobs.
    Scheduler,
    /// Writes history, and decides what follows.
    LogWriter,
    /// Answers the command line.
    Api,
    /// Runs scripts, programs and HTTP requests, as far as the configuration allows.
    Script,
}

impl Role {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Scheduler => "scheduler",
            Self::LogWriter => "log-writer",
            Self::Api => "api",
            Self::Script => "script",
        }
    }
}
