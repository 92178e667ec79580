//! The log writer: what happened, from RESULTS into SQL, and what follows from it.
//!
//! It takes fired, started, progress and result records in batches, in any order, and writes each
//! batch in one transaction together with the decisions that follow: a retry, an alert, the next
//! run of a fixed delay. Then it acks, and publishes the decisions. A sweep ends what never
//! started or never reported.
//!
//! *Invariants.* One log writer is active at a time, and one store belongs to an installation
//! (`term`). Firing never waits for it: while it or SQL is down, results wait in NATS.
//!
//! | file | holds |
//! | --- | --- |
//! | `transition` | the pure core: run and event to run and decisions |
//! | `event`, `batch` | messages to events; a batch in one transaction |
//! | `unfinished`, `recent` | what the next batch need not read |
//! | `consume`, `halves` | pulling, holding while SQL is down, acking; what waits for the rest of its run |
//! | `outbox` | publishing decisions |
//! | `stop` | runs that are to stop, asked again until they have |
//! | `follow` | jobs that follow on a success, pauses after failures |
//! | `sweep` | what never started, never reported, never came |
//! | `term` | who writes, and into which store |

mod batch;
mod consume;
mod event;
mod follow;
mod halves;
mod ids;
mod outage;
mod outbox;
pub mod policy;
mod recent;
mod status;
mod stop;
mod sweep;
mod term;
pub mod transition;
mod unfinished;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use taskparty_common::name::{Instance, JobId};
use taskparty_nats::bucket::{BucketError, Buckets};
use taskparty_nats::clock::Clock;
use taskparty_nats::room::Room;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

use self::batch::Writer;
use self::term::{Candidate, Term};
use crate::alarm::Alarms;
use crate::overlap::Queues;
use crate::registry::Registry;
use crate::store::Store;

pub use status::{LogWriterStatus, Standing, StatusHandle};
pub(crate) use term::{StoreClaim, store_claim};

/// How a log writer behaves.
#[derive(Debug, Clone)]
pub struct LogWriterConfig {
    /// This process, for others to see who writes.
    pub instance: Instance,
    /// The lease of a dispatch: the consumers' ack-wait.
    pub lease: Duration,
    /// How often to look for what never started or never reported. Default 1 s.
    pub sweep_every: Duration,
    /// Events of one transaction, about. Default 1000.
    pub batch_events: usize,
    /// How long a batch waits for more after its first message. Default 5 ms.
    pub batch_wait: Duration,
    /// How long a fixed-delay chain may be without a run before it is started again. Default 60 s.
    pub chain_grace: Duration,
    /// Bytes of triggers that may wait in NATS; past it retries and next runs wait in the history.
    /// Default 1 GiB.
    pub triggers_bytes: u64,
}

impl LogWriterConfig {
    /// The defaults, for this process and this lease.
    pub fn new(instance: Instance, lease: Duration) -> Self {
        Self {
            instance,
            lease,
            sweep_every: Duration::from_secs(1),
            batch_events: 1000,
            batch_wait: Duration::from_millis(5),
            chain_grace: Duration::from_secs(60),
            triggers_bytes: 1024 << 20,
        }
    }
}

/// A job with a fixed delay, whose chain of runs must not break off.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// The job.
    pub job: JobId,
    /// The start of its past.
    pub since: DateTime<Utc>,
    /// From the end of a run to the next.
    pub delay: Duration,
}

/// Who knows which jobs have a fixed delay.
pub trait JobSource: Send + Sync + 'static {
    /// Those jobs; a paused one is not among them.
    fn chains(&self) -> Vec<Chain>;
}

impl<F: Fn() -> Vec<Chain> + Send + Sync + 'static> JobSource for F {
    fn chains(&self) -> Vec<Chain> {
        self()
    }
}

/// Why a log writer does not begin.
#[derive(Debug, thiserror::Error)]
pub enum LogWriterError {
    /// The installation's history is elsewhere.
    #[error(
        "the history of this installation is in another store ({found}); ours is {ours}. Start the \
         log writer with that store; or, if it is gone for good, run `{remove}` and start again: \
         what happened until now is then missing from the history"
    )]
    OtherStore {
        /// The id of the other store.
        found: String,
        /// The id of ours.
        ours: Uuid,
        /// The command that forgets the other store.
        remove: String,
    },
    /// NATS did not say which store it is.
    #[error("it cannot be found out which store holds the history: {0}")]
    Bucket(#[from] BucketError),
}

/// Writes history, when it is its turn.
pub struct LogWriter {
    parts: Arc<Parts>,
    candidate: Candidate,
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LogWriter")
            .field("instance", &self.candidate.instance)
            .finish_non_exhaustive()
    }
}

/// What the parts of a log writer share.
struct Parts {
    config: LogWriterConfig,
    buckets: Buckets,
    queues: Queues,
    store: Store,
    writer: Writer,
    registry: Registry,
    clock: Clock,
    jobs: Arc<dyn JobSource>,
    status: StatusHandle,
    triggers_room: Room,
    alarms: Alarms,
    retired: sweep::Retired,
    /// Something waits in the outbox.
    decided: Notify,
    /// Somebody may have asked for a run to stop.
    asked: Notify,
}

impl LogWriter {
    /// A log writer that will write into `store`, once it has made sure that the installation's
    /// history belongs there.
    ///
    /// # Errors
    /// [`LogWriterError`]; then nothing is changed.
    pub async fn new(
        config: LogWriterConfig,
        buckets: Buckets,
        store: Store,
        registry: Registry,
        clock: Clock,
        jobs: Arc<dyn JobSource>,
    ) -> Result<Self, LogWriterError> {
        let candidate = Candidate {
            buckets: buckets.clone(),
            instance: config.instance.clone(),
            store: store.id(),
        };
        candidate.claim_store().await?;
        let writer = Writer::new(store.clone(), config.lease);
        let nats = buckets.nats().clone();
        let triggers = nats.names().triggers_stream();
        let parts = Parts {
            triggers_room: Room::new(nats, triggers, config.triggers_bytes),
            alarms: Alarms::new(buckets.clone(), clock.clone()),
            config,
            queues: Queues::new(buckets.clone(), clock.clone()),
            buckets,
            store,
            writer,
            registry,
            clock,
            jobs,
            status: StatusHandle::default(),
            retired: sweep::Retired::default(),
            decided: Notify::new(),
            asked: Notify::new(),
        };
        Ok(Self { parts: Arc::new(parts), candidate })
    }

    /// How it is; can be asked while it runs.
    pub fn status(&self) -> StatusHandle {
        self.parts.status.clone()
    }

    /// Writes whenever it is this process's turn, until `shutdown`; then finishes the batch under
    /// way (a SQL outage gives it up, unacked) and lets another take over at once.
    pub async fn run(self, shutdown: CancellationToken) {
        let standing = |standing| self.parts.status.update(|status| status.standing = standing);
        while !shutdown.is_cancelled() {
            standing(Standing::Standby);
            let Some(term) = self.candidate.elected(&shutdown).await else { break };
            match self.candidate.claim_store().await {
                Ok(()) => {
                    standing(Standing::Active);
                    tracing::info!(instance = %self.candidate.instance, "This log writer is active.");
                    self.serve(term, &shutdown).await;
                }
                Err(error) => {
                    tracing::error!(%error, "The log writer does not write.");
                    let wait = tokio::time::sleep(Duration::from_secs(10));
                    let _ = shutdown.run_until_cancelled(wait).await;
                }
            }
        }
        standing(Standing::Stopped);
    }

    /// One term: from the election until `shutdown` or the loss of the lease.
    async fn serve(&self, term: Term, shutdown: &CancellationToken) {
        let stop = shutdown.child_token();
        let over = CancellationToken::new();
        let tasks = TaskTracker::new();
        let (parts, stops) = (self.parts.clone(), stop.clone());
        tasks.spawn(async move { consume::run(&parts, &stops).await });
        let (parts, stops) = (self.parts.clone(), stop.clone());
        tasks.spawn(async move { outbox::run(&parts, &stops).await });
        let (parts, stops) = (self.parts.clone(), stop.clone());
        tasks.spawn(async move { sweep::run(&parts, &stops).await });
        let (parts, stops) = (self.parts.clone(), stop.clone());
        tasks.spawn(async move { stop::run(&parts, &stops).await });
        tasks.close();
        let work = async {
            tasks.wait().await;
            over.cancel();
        };
        tokio::join!(self.candidate.keep(term, &stop, &over), work);
    }
}
