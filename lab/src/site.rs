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
use crate::servers::{Kind, Servers};

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
    /// What NATS is.
    pub nats: Kind,
    /// The roles of each node.
    pub nodes: Vec<&'static str>,
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
    /// The nodes with the scheduler's role and others, by number.
    pub schedulers: Vec<Seat>,
    /// The executors, by number.
    pub executors: Vec<Seat>,
    /// The files of the executors' starts.
    pub starts: Vec<PathBuf>,
    /// NATS. Dropped last: everything else needs it.
    pub servers: Mutex<Servers>,
}

impl Site {
    /// Starts all of it and waits until every scheduler is a member and every executor is known.
    ///
    /// # Errors
    /// When something does not start.
    pub async fn start(
        parts: &Parts,
        programs: &Programs,
        dir: &Path,
        journal: &Journal,
    ) -> Result<Self> {
        let servers = Servers::start(parts.nats).await.context("starting NATS")?;
        let nats = connect(&ConnectConfig::new(servers.url())).await?;
        let buckets = Buckets::new(nats.clone(), Publisher::start(nats.client()).await?);
        let mut site = Self {
            dir: dir.to_owned(),
            journal: journal.clone(),
            nats,
            buckets,
            schedulers: Vec::new(),
            executors: Vec::new(),
            starts: Vec::new(),
            servers: Mutex::new(servers),
        };
        for (number, roles) in parts.nodes.iter().enumerate() {
            let (url, proxies) = site.way(parts.ways).await?;
            let store = site.store_url();
            let args = ["serve", "--roles", roles, "--store-url", &store, "--nats-url", &url];
            let lease = format!("{}ms", parts.lease.as_millis());
            let name = format!("scheduler-{number}");
            let env = [
                ("TASKPARTY_LEASE", lease.as_str()),
                ("HOSTNAME", &name),
                ("TASKPARTY_LOG", "info,async_nats=warn"),
            ];
            let spec = site.spec(&programs.node, &args, &env, &name);
            site.schedulers.push(Seat::new(name, spec, proxies));
        }
        for number in 0..parts.executors {
            let (url, proxies) = site.way(parts.ways).await?;
            let name = format!("executor-{number}");
            let starts = dir.join(format!("{name}.starts.ndjson"));
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
        // The first alone: it makes what is missing in NATS and in SQL.
        site.schedulers[0].start().await?;
        site.members(1).await?;
        for seat in site.schedulers.iter().skip(1).chain(&site.executors) {
            seat.start().await?;
        }
        let schedulers = parts.nodes.iter().filter(|roles| roles.contains("scheduler")).count();
        site.members(schedulers).await?;
        Ok(site)
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
        self.schedulers.iter().chain(&self.executors)
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
        for seat in self.executors.iter().chain(&self.schedulers) {
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
