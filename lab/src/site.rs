//! An installation: NATS, schedulers, executors, and a connection of our own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::proxy::Proxy;
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::Server;
use taskparty_scheduler::store::Store;
use tokio::sync::Mutex;

use crate::journal::Journal;
use crate::process::Spec;
use crate::seat::Seat;
use crate::servers::{Servers, Shape};

/// How long something may take that should take a moment.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// The programs that are started.
#[derive(Debug, Clone)]
pub struct Programs {
    /// `taskparty`.
    pub node: PathBuf,
    /// An executor's program, and the arguments before `--url` and `--starts`.
    pub executor: (PathBuf, Vec<String>),
}

/// How each process reaches NATS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ways {
    /// By itself.
    Direct,
    /// Through a proxy of its own to each node.
    Proxied,
}

/// What an installation is made of.
#[derive(Debug, Clone)]
pub struct Parts {
    /// How NATS is started.
    pub nats: Shape,
    /// The roles of each node; the first has the scheduler's.
    pub nodes: Vec<&'static str>,
    /// What nodes log.
    pub log: &'static str,
    /// The lease of a dispatch.
    pub lease: Duration,
    /// How many executors there are.
    pub executors: usize,
    /// Whether executors write down each start.
    pub starts: Starts,
    /// How they reach NATS.
    pub ways: Ways,
}

/// Whether executors write down each start of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Starts {
    /// Into a file each.
    Written,
    /// Not.
    NotWritten,
}

/// A node.
#[derive(Debug)]
struct Node {
    /// It has the scheduler's role.
    fires: bool,
    seat: Seat,
}

/// An installation; everything ends when it is dropped.
#[derive(Debug)]
pub struct Site {
    /// Where logs, history and the starts are.
    pub dir: PathBuf,
    /// What the harness says.
    pub journal: Journal,
    /// A connection of our own, through no proxy.
    pub nats: Nats,
    /// The buckets.
    pub buckets: Buckets,
    /// The nodes, by number; the first has the scheduler's role.
    nodes: Vec<Node>,
    /// The executors, by number.
    pub executors: Vec<Seat>,
    /// The files of the executors' starts.
    pub starts: Vec<PathBuf>,
    /// NATS. Dropped last: everything else needs it.
    pub servers: Mutex<Servers>,
}

impl Site {
    /// Starts all of it, as [`Site::open`] and [`Site::begin`] do.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start(
        parts: &Parts,
        programs: &Programs,
        dir: &Path,
        journal: &Journal,
    ) -> Result<Self> {
        let site = Self::open(parts, programs, dir, journal).await?;
        site.begin().await?;
        Ok(site)
    }

    /// Starts NATS, and has a place for every other process.
    ///
    /// # Errors
    /// When NATS does not start.
    pub async fn open(
        parts: &Parts,
        programs: &Programs,
        dir: &Path,
        journal: &Journal,
    ) -> Result<Self> {
        let servers = Servers::start(&parts.nats).await.context("starting NATS")?;
        let nats = connect(&ConnectConfig::new(servers.url())).await?;
        let buckets = Buckets::new(nats.clone(), Publisher::start(nats.client()).await?);
        let mut site = Self {
            dir: dir.to_owned(),
            journal: journal.clone(),
            nats,
            buckets,
            nodes: Vec::new(),
            executors: Vec::new(),
            starts: Vec::new(),
            servers: Mutex::new(servers),
        };
        for (number, roles) in parts.nodes.iter().enumerate() {
            let (url, proxies) = site.way(parts.ways).await?;
            let store = site.store_url();
            let args = ["serve", "--roles", roles, "--store-url", &store, "--nats-url", &url];
            let lease = format!("{}ms", parts.lease.as_millis());
            let first = roles.split(',').next().unwrap_or_default();
            let name = format!("{first}-{number}");
            let env = [
                ("TASKPARTY_LEASE", lease.as_str()),
                ("HOSTNAME", &name),
                ("TASKPARTY_LOG", parts.log),
            ];
            let spec = site.spec(&programs.node, &args, &env, &name);
            site.nodes.push(Node {
                fires: roles.split(',').any(|role| role == "scheduler"),
                seat: Seat::new(name, spec, proxies),
            });
        }
        for number in 0..parts.executors {
            let (url, proxies) = site.way(parts.ways).await?;
            let name = format!("executor-{number}");
            let starts = dir.join(format!("{name}.starts"));
            let file = starts.display().to_string();
            let (program, first) = &programs.executor;
            let mut args: Vec<&str> = first.iter().map(String::as_str).collect();
            args.extend(["--url", &url]);
            if parts.starts == Starts::Written {
                std::fs::File::create(&starts)?;
                args.extend(["--starts", &file]);
                site.starts.push(starts);
            }
            let spec = site.spec(program, &args, &[], &name);
            site.executors.push(Seat::new(name, spec, proxies));
        }
        Ok(site)
    }

    /// Starts every process and waits until every scheduler is a member.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn begin(&self) -> Result<()> {
        // The first alone: it makes what is missing in NATS and in SQL.
        self.nodes[0].seat.start().await?;
        self.members(1).await?;
        for seat in self.seats().skip(1) {
            seat.start().await?;
        }
        self.members(self.schedulers().count()).await
    }

    async fn way(&self, ways: Ways) -> Result<(String, Vec<Proxy>)> {
        let servers = self.servers.lock().await;
        if ways == Ways::Direct {
            return Ok((servers.url(), Vec::new()));
        }
        let mut proxies = Vec::new();
        for address in servers.nodes().iter().map(Server::address) {
            proxies.push(Proxy::start(address).await?);
        }
        let urls: Vec<String> = proxies.iter().map(Proxy::url).collect();
        Ok((urls.join(","), proxies))
    }

    fn spec(&self, program: &Path, args: &[&str], env: &[(&str, &str)], name: &str) -> Spec {
        Spec {
            program: program.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            env: env.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
            dir: self.dir.clone(),
            log: self.dir.join(format!("{name}.log")),
        }
    }

    fn store_url(&self) -> String {
        format!("sqlite:{}", self.dir.join("history.db").display())
    }

    /// The history, for reading.
    ///
    /// # Errors
    /// When it cannot be opened.
    pub async fn store(&self) -> Result<Store> {
        Ok(Store::open(&self.store_url()).await?)
    }

    /// Every place of a process.
    pub fn seats(&self) -> impl Iterator<Item = &Seat> {
        self.nodes.iter().map(|node| &node.seat).chain(&self.executors)
    }

    /// The places of nodes that have the scheduler's role, by number.
    pub fn schedulers(&self) -> impl Iterator<Item = &Seat> {
        self.nodes.iter().filter(|node| node.fires).map(|node| &node.seat)
    }

    /// Waits until there are so many live schedulers.
    ///
    /// # Errors
    /// When there are not in time.
    pub async fn members(&self, count: usize) -> Result<()> {
        use taskparty_nats::subject::Bucket;
        wait(&format!("{count} live schedulers"), PATIENCE, async || {
            let found = self.buckets.entries(Bucket::Schedulers, ">").await.ok()?;
            (found.len() == count).then_some(())
        })
        .await
    }

    /// Ends every process in order.
    ///
    /// # Errors
    /// When one does not end well.
    pub async fn stop(&self) -> Result<()> {
        for seat in self.executors.iter().chain(self.nodes.iter().map(|node| &node.seat)) {
            let stopped = seat.stop(Duration::from_secs(60)).await;
            stopped.with_context(|| format!("the end of {}", seat.name))?;
        }
        Ok(())
    }
}

/// Waits until `look` finds something.
///
/// # Errors
/// When `patience` is over, with what was waited for.
pub async fn wait<T>(
    what: &str,
    patience: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T> {
    let end = tokio::time::Instant::now() + patience;
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        if tokio::time::Instant::now() >= end {
            bail!("waited {patience:?} in vain for {what}");
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
