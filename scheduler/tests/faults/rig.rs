//! An installation under test: nats-servers, nodes and executors in this process, a history.

use std::collections::BTreeSet;
use std::sync::OnceLock;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use taskparty_common::job::{Job, JobSpec, Paused, Unknown};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::{Cluster, ClusterConfig, Search, Server, ServerConfig, find};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::TopologyConfig;
use taskparty_scheduler::store::Store;
use taskparty_scheduler::{Node, NodeConfig, Role};
use tempfile::TempDir;
use tokio::sync::{OnceCell, Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::shop::Ledger;

/// How long anything is waited for. Long: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The lease in these tests.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// What runs at once: a cluster counts twice. More would make everything late on two cores.
static ROOM: Semaphore = Semaphore::const_new(4);

pub(crate) const ALL: [Role; 3] = [Role::Scheduler, Role::LogWriter, Role::Api];

/// The nats-servers of a test.
pub(crate) enum Servers {
    Single(Server),
    Cluster(Cluster),
}

pub(crate) struct Site {
    pub(crate) servers: Servers,
    /// A connection of the test's own.
    pub(crate) nats: Nats,
    pub(crate) buckets: Buckets,
    pub(crate) clock: Clock,
    /// What the handlers themselves wrote down.
    pub(crate) ledger: Ledger,
    pub(crate) dir: TempDir,
    pub(crate) topology: TopologyConfig,
    store: OnceCell<Store>,
    _room: SemaphorePermit<'static>,
}

/// A node in this process.
pub(crate) struct Running {
    pub(crate) node: Node,
    shutdown: CancellationToken,
}

impl Running {
    /// Ends it as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        within("the node's end", self.node.ended()).await;
    }
}

fn binary() -> std::path::PathBuf {
    find(&Search::from_env()).unwrap().path
}

impl Site {
    /// A single nats-server with its default settings: fsync every two minutes.
    pub(crate) async fn single() -> Self {
        Self::single_with(ServerConfig::new(binary())).await
    }

    pub(crate) async fn single_limited(max_store: u64) -> Self {
        Self::single_with(ServerConfig { max_store, ..ServerConfig::new(binary()) }).await
    }

    /// A single nats-server with its files in `dir`.
    pub(crate) async fn single_in(dir: std::path::PathBuf) -> Self {
        Self::single_with(ServerConfig { dir: Some(dir), ..ServerConfig::new(binary()) }).await
    }

    async fn single_with(config: ServerConfig) -> Self {
        let room = room(1).await;
        let server = Server::start(config).await.unwrap();
        let url = server.url();
        Self::on(Servers::Single(server), &url, room).await
    }

    /// Three nats-servers; everything is stored three times.
    pub(crate) async fn cluster() -> Self {
        let room = room(2).await;
        let cluster = Cluster::start(ClusterConfig::new(binary())).await.unwrap();
        let url = cluster.url();
        Self::on(Servers::Cluster(cluster), &url, room).await
    }

    async fn on(servers: Servers, url: &str, room: SemaphorePermit<'static>) -> Self {
        let nats = connect(&config(url)).await.unwrap();
        let publisher = Publisher::start(nats.client()).await.unwrap();
        let buckets = Buckets::new(nats.clone(), publisher);
        let topology = TopologyConfig {
            lease: LEASE,
            results_bytes: 256 << 20,
            dispatch_bytes: 64 << 20,
            logs_bytes: 16 << 20,
            ..TopologyConfig::default()
        };
        Self {
            servers,
            nats,
            buckets,
            clock: Clock::system(),
            ledger: Ledger::default(),
            dir: tempfile::tempdir().unwrap(),
            topology,
            store: OnceCell::new(),
            _room: room,
        }
    }

    pub(crate) fn server(&mut self) -> &mut Server {
        match &mut self.servers {
            Servers::Single(server) => server,
            Servers::Cluster(_) => panic!("it is a cluster"),
        }
    }

    pub(crate) fn cluster_nodes(&mut self) -> &mut Cluster {
        match &mut self.servers {
            Servers::Cluster(cluster) => cluster,
            Servers::Single(_) => panic!("it is a single server"),
        }
    }

    pub(crate) fn url(&self) -> String {
        match &self.servers {
            Servers::Single(server) => server.url(),
            Servers::Cluster(cluster) => cluster.url(),
        }
    }

    /// Where a proxy forwards to.
    pub(crate) fn address(&self) -> String {
        match &self.servers {
            Servers::Single(server) => server.address(),
            Servers::Cluster(cluster) => cluster.nodes()[0].address(),
        }
    }

    /// A node with all roles.
    pub(crate) async fn node(&self) -> Running {
        self.node_at(&self.url(), &ALL).await
    }

    /// A node with these roles, connected to `url`.
    pub(crate) async fn node_at(&self, url: &str, roles: &[Role]) -> Running {
        let nats = connect(&config(url)).await.unwrap();
        let shutdown = CancellationToken::new();
        let config = NodeConfig {
            roles: BTreeSet::from_iter(roles.iter().copied()),
            topology: self.topology.clone(),
            store: self.store_url(),
            host: "test".into(),
            drain: Duration::from_secs(10),
            clock_tolerance: None,
        };
        let node = Node::start(config, nats, self.clock.clone(), shutdown.clone()).await.unwrap();
        Running { node, shutdown }
    }

    pub(crate) fn history(&self) -> std::path::PathBuf {
        self.dir.path().join("history").join("history.db")
    }

    pub(crate) fn store_url(&self) -> String {
        format!("sqlite:{}", self.history().display())
    }

    /// The history, for reading.
    pub(crate) async fn store(&self) -> &Store {
        // The log writer may hold it locked for longer than an opening waits.
        let open = async || Store::open(&self.store_url()).await.ok();
        self.store.get_or_init(async || until("the history", open).await).await
    }

    /// Saves a job as of now.
    pub(crate) async fn save(&self, spec: Value) -> Job {
        self.save_as_of(self.clock.now(), spec).await
    }

    async fn save_as_of(&self, at: DateTime<Utc>, spec: Value) -> Job {
        let spec = JobSpec::from_json(&spec, Unknown::Refuse).unwrap();
        let job = Job::new(spec, at, "test");
        self.put(&job).await;
        job
    }

    /// Saves so many jobs that are due each second, evenly over the second.
    pub(crate) async fn each_second(&self, count: usize, handler: &str, more: Value) -> Vec<Job> {
        let (mut jobs, now) = (Vec::new(), self.clock.now());
        for n in 0..count {
            let mut more = more.clone();
            more["schedule"] = json!({ "fixed_rate": "1s" });
            let at = now + TimeDelta::milliseconds((1000 * n / count).try_into().unwrap());
            jobs.push(self.save_as_of(at, job(&format!("{handler}-{n}"), handler, more)).await);
        }
        jobs
    }

    async fn put(&self, job: &Job) -> u64 {
        let value = serde_json::to_vec(&job.to_json()).unwrap();
        self.buckets.put(Bucket::Jobs, job.spec.id.as_str(), value, None).await.unwrap()
    }

    /// Pauses the jobs; when this returns, no scheduler fires them any more, and each has handled
    /// all that was due before.
    pub(crate) async fn pause(&self, jobs: &[Job]) {
        let now = self.clock.now();
        let mut revision = 0;
        for job in jobs {
            let paused = Paused { at: now, by: "test".into(), reason: String::new(), until: None };
            revision = self.put(&job.with_pause(Some(paused), now, "test")).await;
        }
        until("the pause is seen", async || {
            let live = self.buckets.entries(Bucket::Schedulers, ">").await.ok()?;
            let shown = |value: &[u8]| {
                serde_json::from_slice::<Value>(value).unwrap()["jobs_revision"].as_u64()
            };
            let all = live.iter().all(|e| shown(e.value.as_ref().unwrap()) >= Some(revision));
            (all && !live.is_empty()).then_some(())
        })
        .await;
        // A lock may have been asked for in vain while NATS was away: it is asked for again.
        let seen = self.clock.now();
        until("everything due before the pause is handled", async || {
            let live = self.buckets.entries(Bucket::Schedulers, ">").await.ok()?;
            for scheduler in live {
                let handled = self.watermark(&scheduler.key).await?;
                (handled >= seen).then_some(())?;
            }
            Some(())
        })
        .await;
    }

    /// Up to when this scheduler has handled everything.
    pub(crate) async fn watermark(&self, scheduler: &str) -> Option<DateTime<Utc>> {
        let key = format!("scheduler.{scheduler}");
        let mark = self.buckets.entries(Bucket::Cursors, &key).await.ok()?.into_iter().next()?;
        let mark: Value = serde_json::from_slice(mark.value.as_deref()?).unwrap();
        mark["handled"].as_str()?.parse().ok()
    }
}

/// Waits for room on the machine.
async fn room(weight: u32) -> SemaphorePermit<'static> {
    static LOGS: OnceLock<()> = OnceLock::new();
    LOGS.get_or_init(|| {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().init();
    });
    ROOM.acquire_many(weight).await.unwrap()
}

pub(crate) fn config(url: &str) -> ConnectConfig {
    ConnectConfig::new(url)
}

/// A job of the shop, every instant of which is to run, however late.
pub(crate) fn job(id: &str, handler: &str, more: Value) -> Value {
    let mut job = json!({
        "id": id, "app": "shop", "handler": handler, "overlap": "allow",
        "misfire": { "policy": "all", "grace": "1m" }, "redeliveries": 10,
    });
    for (field, value) in more.as_object().unwrap() {
        job[field] = value.clone();
    }
    job
}

/// Waits until `look` finds something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Waits for `event`.
pub(crate) async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}
