//! A node: the parts that run in one process, started together and ended in order.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use taskparty_common::name::Instance;
use taskparty_nats::bucket::{Buckets, Change, Watch};
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::Nats;
use taskparty_nats::history::{self, ReadError};
use taskparty_nats::join::{JoinConfig, Joiner};
use taskparty_nats::lock::Locks;
use taskparty_nats::publish::{AskError, Publisher};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::{Topology, TopologyConfig, TopologyError};
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use crate::alarm::Alarms;
use crate::api::{self, ApiError, ApiParts, History};
use crate::consumers;
use crate::cursor::{self, Keeper, Own};
use crate::engine::{Engine, Members, Ties};
use crate::fire::{Firing, Looks, Records, Waiting};
use crate::jobs::Jobs;
use crate::log_writer::{LogWriter, LogWriterConfig, LogWriterError};
use crate::membership::{Membership, Standing};
use crate::overlap::Queues;
use crate::registry::Registry;
use crate::release::Releases;
use crate::route::Router;
use crate::store::{Store, StoreError};
use crate::trigger::{RETRIES, Triggers};
use crate::upkeep::Upkeep;

/// What a node does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Decides when jobs are due and dispatches them.
    Scheduler,
    /// Writes what happened into SQL, and decides what follows.
    LogWriter,
    /// Answers requests on the NATS service.
    Api,
}

/// How a node is set up.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// What it does.
    pub roles: BTreeSet<Role>,
    /// Streams, buckets and consumers; and with them the lease of a dispatch.
    pub topology: TopologyConfig,
    /// The SQL store, as `sqlite:taskparty.db`. Only the log writer and the API use it.
    pub store: String,
    /// The machine's name, for people.
    pub host: String,
    /// How long fires that are under way may take when the node ends.
    pub drain: Duration,
    /// How far this machine's clock may be from the NATS server's; past it the scheduler does not
    /// fire, and says so. Nothing: however far.
    pub clock_tolerance: Option<Duration>,
}

/// The clock tolerance of a node that is not told otherwise.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(2);

/// Why a node could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// Streams, buckets or consumers.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// What is in NATS could not be read.
    #[error("the past cannot be read from NATS: {0}")]
    Read(#[from] ReadError),
    /// The connection took no request.
    #[error("NATS takes no requests: {0}")]
    Ask(#[from] AskError),
    /// The SQL store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The log writer.
    #[error(transparent)]
    LogWriter(#[from] LogWriterError),
    /// The NATS service.
    #[error(transparent)]
    Api(#[from] ApiError),
}

/// A running node.
#[derive(Debug)]
pub struct Node {
    instance: Instance,
    store: Option<Store>,
    jobs: Jobs,
    registry: Registry,
    /// Ends what decides; then, when that is over, what records.
    shutdown: CancellationToken,
    deciding: TaskTracker,
    recording_shutdown: CancellationToken,
    recording: TaskTracker,
    joiner: Joiner,
    drain: Duration,
}

impl Node {
    /// Makes what is missing in NATS, and starts the parts of the node. They end with `shutdown`;
    /// [`Node::ended`] waits for that.
    ///
    /// # Errors
    /// [`NodeError`]; then nothing runs.
    pub async fn start(
        config: NodeConfig,
        nats: Nats,
        clock: Clock,
        shutdown: CancellationToken,
    ) -> Result<Self, NodeError> {
        let (lease, triggers_bytes) = (config.topology.lease, config.topology.triggers_bytes);
        let topology = Topology::new(nats.clone(), config.topology);
        topology.create_missing().await?;
        let publisher = Publisher::start(nats.client()).await?;
        let buckets = Buckets::new(nats.clone(), publisher.clone());
        let needs_store =
            config.roles.contains(&Role::LogWriter) || config.roles.contains(&Role::Api);
        let store = if needs_store { Some(Store::open(&config.store).await?) } else { None };
        let node = Self {
            instance: Instance::fresh(&config.host, Uuid::new_v4()),
            store,
            jobs: Jobs::default(),
            registry: Registry::default(),
            shutdown,
            deciding: TaskTracker::new(),
            recording_shutdown: CancellationToken::new(),
            recording: TaskTracker::new(),
            joiner: Joiner::new(publisher, JoinConfig::default()),
            drain: config.drain,
        };
        let clock_tolerance = config.clock_tolerance;
        let host = config.host;
        let parts =
            Parts { buckets, topology, triggers_bytes, clock, clock_tolerance, lease, host };
        let started = node.start_roles(&config.roles, &parts).await;
        if let Err(error) = started {
            node.shutdown.cancel();
            node.ended().await;
            return Err(error);
        }
        Ok(node)
    }

    async fn start_roles(&self, roles: &BTreeSet<Role>, parts: &Parts) -> Result<(), NodeError> {
        let registry =
            self.registry.clone().run(parts.buckets.clone(), self.recording_shutdown.clone());
        self.recording.spawn(registry);
        if roles.contains(&Role::LogWriter)
            && let Some(store) = &self.store
        {
            self.start_log_writer(parts, store.clone()).await?;
        }
        // Before the scheduler, so that a node that cannot start never fires.
        let history = match &self.store {
            Some(store) if roles.contains(&Role::Api) => {
                Some(History::open(parts.buckets.clone(), store.clone()).await?)
            }
            _ => None,
        };
        if roles.contains(&Role::Scheduler) {
            self.start_scheduler(parts).await?;
        } else if roles.contains(&Role::LogWriter) {
            self.follow_jobs(parts);
        }
        if let Some(history) = history {
            self.start_api(parts, history).await?;
        }
        Ok(())
    }

    async fn start_scheduler(&self, parts: &Parts) -> Result<(), NodeError> {
        let Parts { buckets, topology, clock, clock_tolerance, lease, host, .. } = parts;
        let nats = buckets.nats();
        let jobs_stream = nats.names().bucket_stream(Bucket::Jobs);
        let jobs_revision = history::stream_info(nats.js(), &jobs_stream).await?.last_seq;
        let marks = cursor::all(buckets).await?;
        let start = marks.values().map(|mark| mark.handled).min();
        self.registry.ready().await;
        let alarms = Alarms::new(buckets.clone(), clock.clone());
        let firing = Firing {
            buckets: buckets.clone(),
            joiner: self.joiner.clone(),
            locks: Locks::new(buckets.clone()),
            queues: Queues::new(buckets.clone(), clock.clone()),
            topology: topology.clone(),
            looks: Looks::default(),
            records: Records::default(),
            waiting: Waiting::default(),
            retries: Arc::new(Semaphore::new(RETRIES)),
            alarms: alarms.clone(),
            registry: self.registry.clone(),
            router: Router::new(self.registry.clone(), buckets.clone()),
            clock: clock.clone(),
            instance: self.instance.clone(),
            lease: *lease,
            shutdown: self.shutdown.clone(),
        };
        let (report, progress) = watch::channel(None);
        let (walk, walked) = watch::channel(BTreeSet::new());
        let (confirm, stored) = watch::channel(None);
        let (see, members) = watch::channel(Members::default());
        let standing = Standing::new();
        let releases = Releases {
            queues: firing.queues.clone(),
            jobs: self.jobs.clone(),
            members: members.clone(),
            instance: self.instance.clone(),
        };
        let keeper = Keeper {
            revision: 0,
            unsure: false,
            buckets: buckets.clone(),
            instance: self.instance.clone(),
            progress: progress.clone(),
            walked,
            confirmed: confirm,
            own: Own::default(),
            leaving: self.shutdown.clone(),
        };
        let membership = Membership {
            buckets: buckets.clone(),
            instance: self.instance.clone(),
            host: host.clone(),
            started_at: clock.now(),
            clock: clock.clone(),
            clock_tolerance: *clock_tolerance,
            progress,
            stored: stored.clone(),
            members: see,
            standing: standing.clone(),
        };
        let ties = Ties { progress: report, walked: walk, stored, members, standing };
        // The watch outlives the shutdown: the engine ends it.
        let jobs = Watch::start(buckets, Bucket::Jobs, ">", &self.recording_shutdown);
        let overlap = Watch::start(buckets, Bucket::Overlap, "*", &self.recording_shutdown);
        let start = start.unwrap_or_else(|| clock.now());
        let engine = Engine::new(firing.clone(), self.jobs.clone(), jobs_revision, start, ties);
        let consumers = consumers::run(
            nats.clone(),
            topology.clone(),
            self.registry.clone(),
            self.shutdown.clone(),
        );
        let upkeep = Upkeep::new(firing.clone(), self.jobs.clone(), alarms);
        self.deciding.spawn(upkeep.run(self.shutdown.clone()));
        self.deciding.spawn(engine.run(jobs, overlap, self.drain));
        self.deciding.spawn(Triggers { firing, jobs: self.jobs.clone() }.run());
        self.deciding.spawn(membership.run(self.shutdown.clone()));
        self.deciding.spawn(consumers);
        self.deciding.spawn(releases.run(nats.clone(), self.shutdown.clone()));
        // After the engine has ended: the last watermark says how far it came.
        self.recording.spawn(keeper.run(self.recording_shutdown.clone()));
        Ok(())
    }

    async fn start_log_writer(&self, parts: &Parts, store: Store) -> Result<(), NodeError> {
        let jobs = self.jobs.clone();
        let writer = LogWriter::new(
            LogWriterConfig {
                triggers_bytes: parts.triggers_bytes,
                ..LogWriterConfig::new(self.instance.clone(), parts.lease)
            },
            parts.buckets.clone(),
            store,
            self.registry.clone(),
            parts.clock.clone(),
            Arc::new(move || jobs.chains()),
        );
        self.recording.spawn(writer.await?.run(self.recording_shutdown.clone()));
        Ok(())
    }

    /// Keeps the jobs known to a log writer that has no scheduler beside it.
    fn follow_jobs(&self, parts: &Parts) {
        let mut watch = Watch::start(&parts.buckets, Bucket::Jobs, ">", &self.recording_shutdown);
        let jobs = self.jobs.clone();
        self.recording.spawn(async move {
            while let Some(change) = watch.next().await {
                if let Change::Entry(entry) = change {
                    jobs.take_in(&entry.key, entry.revision, entry.value.as_ref(), |_| ());
                }
            }
        });
    }

    async fn start_api(&self, parts: &Parts, history: History) -> Result<(), NodeError> {
        let Parts { buckets, topology, clock, .. } = parts;
        let (buckets, topology, clock) = (buckets.clone(), topology.clone(), clock.clone());
        let parts = ApiParts { buckets, topology, history, clock };
        Ok(api::start(parts, self.shutdown.clone(), &self.deciding).await?)
    }

    /// The id under which this node takes part.
    pub fn instance(&self) -> &Instance {
        &self.instance
    }

    /// The jobs that this node fires; empty without the scheduler's role.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// The live executors.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The history, for a node that has it.
    pub fn store(&self) -> Option<&Store> {
        self.store.as_ref()
    }

    /// Waits for the shutdown and then until every part has ended: first what decides, then what
    /// records.
    pub async fn ended(self) {
        self.shutdown.cancelled().await;
        self.deciding.close();
        self.deciding.wait().await;
        self.joiner.finish(self.drain).await;
        self.recording_shutdown.cancel();
        self.recording.close();
        self.recording.wait().await;
        if let Some(store) = self.store {
            store.close().await;
        }
    }
}

/// What the parts of a node share.
struct Parts {
    buckets: Buckets,
    topology: Topology,
    triggers_bytes: u64,
    clock: Clock,
    clock_tolerance: Option<Duration>,
    lease: Duration,
    host: String,
}
