//! `dev`: everything on this machine, on loopback, with nothing to configure.
//!
//! *Invariant: nothing outlives it*: the server, the node and, without `--data`, the folder end
//! with the process, in the order in which they need each other.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, DEFAULT_URL, Nats, connect};
use taskparty_nats::server::{Port, Server, ServerConfig, ServerError, find};
use taskparty_nats::topology::TopologyConfig;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Outcome;
use crate::args::DevArgs;
use crate::config::Config;
use crate::demo::Demo;
use crate::events::{Event, Events, line};
use crate::failure::{Exit, Failure};
use crate::node::{self, Plan};
use crate::output::Output;
use crate::signals::cancel_on_signal;

/// Where clients look when nothing is configured.
const USUAL_PORT: u16 = 4222;

/// The room that streams may reserve; it is taken only as they fill.
const MAX_STORE: u64 = 64 << 30;

/// What to do when everything of the demo has been seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterDemo {
    /// Go on until Ctrl-C.
    GoOn,
    /// End: 0 when all was well, 1 when not.
    End,
}

impl From<bool> for AfterDemo {
    fn from(end: bool) -> Self {
        if end { Self::End } else { Self::GoOn }
    }
}

/// Runs everything until Ctrl-C.
pub(crate) async fn run(
    args: DevArgs,
    after: AfterDemo,
    config: &Config,
    output: Output,
    clock: &Clock,
) -> Outcome {
    let stop = cancel_on_signal()?;
    let folder = Folder::prepare(args.data.as_deref())?;
    let mut server = start_server(args.port, &folder.path, config, output).await?;
    let outcome = with_server(&server, &args, after, config, &folder, (output, clock), stop).await;
    server.stop().await;
    outcome
}

async fn with_server(
    server: &Server,
    args: &DevArgs,
    after: AfterDemo,
    config: &Config,
    folder: &Folder,
    (output, clock): (Output, &Clock),
    stop: CancellationToken,
) -> Outcome {
    let nats = connect(&ConnectConfig {
        prefix: config.nats.prefix.clone(),
        ..ConnectConfig::new(server.url())
    })
    .await?;
    let mut events = Events::listen(&nats).await?;
    let shutdown = CancellationToken::new();
    let plan = Plan {
        roles: node::ALL.into(),
        store_url: format!("sqlite:{}", folder.path.join("history.db").display()),
        host: config.host.clone(),
        // There is one server.
        topology: TopologyConfig { replicas: None, ..config.topology.clone() },
    };
    let node = node::start(plan, nats.clone(), clock.clone(), shutdown.clone()).await?;
    greet(server, folder, &nats, output);
    let outcome = if args.demo {
        demo(&mut events, after, config, folder, (output, clock), (&nats, &server.url(), &stop))
            .await
    } else {
        tokio::select! {
            () = watch(&mut events, output) => {}
            () = stop.cancelled() => {}
        }
        Ok(Exit::Done)
    };
    output.note("stopping: what is under way is finished first");
    shutdown.cancel();
    let ended = node::ended(node).await;
    nats.close(Duration::from_secs(2)).await;
    let exit = outcome?;
    ended.map(|()| exit)
}

/// Prints events until the connection is closed.
async fn watch(events: &mut Events, output: Output) {
    while let Some(event) = events.next().await {
        say(&event, output);
    }
}

fn say(event: &Event, output: Output) {
    // What happens is what this command is for: it goes to stdout.
    let _ = writeln!(std::io::stdout().lock(), "{}", line(event, output.colour()));
}

async fn demo(
    events: &mut Events,
    after: AfterDemo,
    config: &Config,
    folder: &Folder,
    (output, clock): (Output, &Clock),
    (nats, url, stop): (&Nats, &str, &CancellationToken),
) -> Outcome {
    let mut demo = tokio::select! {
        demo = Demo::start(nats.clone(), config.who.clone(), &folder.path, output, clock.clone()) => demo?,
        () = stop.cancelled() => return Ok(Exit::Done),
    };
    let mut exit = Exit::Done;
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            event = events.next() => match event {
                Some(event) => {
                    say(&event, output);
                    demo.seen(&event);
                }
                None => break,
            },
            () = demo.overdue() => {}
        }
        if let Some(summary) = demo.summary().await {
            let _ = writeln!(std::io::stdout().lock(), "{}", summary.text());
            if after == AfterDemo::End {
                exit = if summary.is_well() { Exit::Done } else { Exit::CouldNot };
                break;
            }
            output.note(&look(url));
        }
    }
    demo.stop().await;
    Ok(exit)
}

/// How to look at it, from another terminal.
fn look(url: &str) -> String {
    let (flag, nats) = flags(url);
    format!(
        "It goes on until Ctrl-C. Look at it from another terminal:
  taskparty{flag} run list                    what ran
  taskparty{flag} run list --job always-fails
  taskparty{flag} job list                    what fires next
  taskparty{flag} doctor                      is all well?
  nats{nats} stream ls -a                     the streams, with those behind the buckets
  nats{nats} kv ls taskparty_fires            a lock for each fire
  nats{nats} consumer report TASKPARTY_DISPATCH_order-service
  nats{nats} sub 'taskparty.>'                everything that is said
  nats{nats} service ls                       the API"
    )
}

/// What the clients need to be told to find the server: nothing at the usual place.
fn flags(url: &str) -> (String, String) {
    if url == DEFAULT_URL {
        Default::default()
    } else {
        (format!(" --nats-url {url}"), format!(" -s {url}"))
    }
}

fn greet(server: &Server, folder: &Folder, nats: &Nats, output: Output) {
    let kept = if folder.ours { "removed at the end; --data DIR keeps it" } else { "kept" };
    output.note(&format!("NATS      {} (nats-server {})", server.url(), nats.server().version));
    output.note(&format!("monitor   {}", server.monitor_url()));
    output.note(&format!("data      {} ({kept})", folder.path.display()));
    let (flag, _) = flags(&server.url());
    output.note(&format!(
        "Try, from another terminal:\n  taskparty{flag} job list\n  taskparty{flag} run list\n  taskparty{flag} doctor\nCtrl-C stops all of it."
    ));
}

async fn start_server(
    port: Option<u16>,
    folder: &Path,
    config: &Config,
    output: Output,
) -> Result<Server, Failure> {
    let binary =
        find(&config.nats_server).map_err(|error| Failure::could_not(error.to_string()))?;
    output.note(&format!("starting nats-server {} ({})", binary.version, binary.source));
    let with = |port| ServerConfig {
        port,
        dir: Some(folder.join("nats")),
        max_store: MAX_STORE,
        ..ServerConfig::new(&binary.path)
    };
    let first = Server::start(with(Port::Fixed(port.unwrap_or(USUAL_PORT)))).await;
    match (first, port) {
        (Err(ServerError::PortTaken { port: taken }), None) => {
            output.note(&format!(
                "port {taken} is taken: using a free one, so clients need --nats-url"
            ));
            Server::start(with(Port::Free)).await
        }
        (first, _) => first,
    }
    .map_err(|error| Failure::could_not(error.to_string()))
}

/// Where everything is; removed at the end when nobody asked to keep it.
#[derive(Debug)]
struct Folder {
    path: PathBuf,
    ours: bool,
}

impl Folder {
    fn prepare(data: Option<&Path>) -> Result<Self, Failure> {
        let (path, ours) = match data {
            Some(path) => (path.to_owned(), false),
            None => (
                std::env::temp_dir().join(format!("taskparty-dev-{}", Uuid::new_v4().simple())),
                true,
            ),
        };
        std::fs::create_dir_all(&path).map_err(|error| {
            Failure::could_not(format!("cannot make the folder {}: {error}", path.display()))
        })?;
        let path = std::path::absolute(&path).unwrap_or(path);
        Ok(Self { path, ours })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.ours {
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}
