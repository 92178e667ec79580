//! The executor's life: connect, serve, drain, end.
//!
//! *Invariant: dropping the future of [`Executor::run`] ends everything that it started*, as a
//! crash of the process would: handlers are dropped, nothing is reported, and what was in hand is
//! delivered again when its lease ends.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use taskparty_common::name::Instance;
use taskparty_common::priority::Priority;
use taskparty_nats::connect::{Nats, connect_when_up};
use taskparty_nats::consume::ConsumeError;
use taskparty_nats::join::{JoinConfig, Joiner};
use taskparty_nats::lease::Renewer;
use taskparty_nats::publish::Publisher;
use tokio::sync::{Notify, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::builder::{Connection, Executor};
use crate::error::RunError;
use crate::live::Live;
use crate::logs::{self, Carrier};
use crate::node::{About, Desk, Node, Phase};
use crate::{cancel, pinned, pull, registry};

/// How long a result is tried in one go. Short: in between, the lease is looked at.
const RESULT_DEADLINE: Duration = Duration::from_secs(5);

/// How long work has to be handed back once the drain time is over, besides what handlers take to
/// tidy up.
const HAND_BACK: Duration = Duration::from_secs(3);

/// How long each of the last steps may take: results and logs on their way, the registry's entry.
const LAST_STEP: Duration = Duration::from_secs(3);

impl Executor {
    /// Runs until `shutdown` is ready, then drains and ends.
    ///
    /// It waits for a NATS that is down and for a scheduler that has not made the app's consumers
    /// yet. It installs no signal handlers: give it `tokio::signal::ctrl_c()`, or what your
    /// service has for its own shutdown.
    ///
    /// # Errors
    /// [`RunError`]: it was built wrong, the connection's settings are wrong, or the connection
    /// was closed for good. What handlers do is never an error of the executor.
    pub async fn run(mut self, shutdown: impl Future) -> Result<(), RunError> {
        let instance = self.check()?;
        let mut shutdown = pin!(shutdown);
        let (nats, ours) = match &self.connection {
            Connection::Given(nats) => (nats.clone(), false),
            Connection::Make(config) => {
                let never = CancellationToken::new();
                tokio::select! {
                    nats = connect_when_up(config, &never) => (nats?, true),
                    _ = &mut shutdown => return Ok(()),
                }
            }
        };
        let drain = self.drain;
        let mut running = Running::start(self, instance, nats.clone()).await?;
        let closed = tokio::select! {
            _ = &mut shutdown => false,
            ConsumeError::Closed = running.broken() => true,
        };
        running.end(drain).await;
        if ours {
            nats.close(LAST_STEP).await;
        }
        if closed { Err(RunError::Closed { while_doing: "it pulled work" }) } else { Ok(()) }
    }
}

/// An executor at work. Dropping it abandons all of it.
struct Running {
    node: Arc<Node>,
    pulls: JoinSet<Result<(), ConsumeError>>,
    /// Cancels, probes, logs: ended when no attempt is left.
    helpers: TaskTracker,
    helpers_end: CancellationToken,
    /// The registry's entry: ended last.
    registry: TaskTracker,
    registry_end: CancellationToken,
    _abandon: tokio_util::sync::DropGuard,
}

impl Running {
    async fn start(executor: Executor, instance: Instance, nats: Nats) -> Result<Self, RunError> {
        let publisher = Publisher::start(nats.client()).await.map_err(|_| closed())?;
        let config = JoinConfig { deadline: RESULT_DEADLINE, ..JoinConfig::default() };
        let joiner = Joiner::new(publisher.clone(), config);
        let (logs, carrier) = logs::buffer();
        let names = nats.names();
        // Before any work can come: a request to cancel that follows it must be heard.
        let cancels = subscribe(&nats, names.cancels(&executor.app)).await?;
        let probes = subscribe(&nats, names.probe(&executor.app, &instance)).await?;
        let desks = executor.handlers.into_iter().map(|(name, (function, slots))| {
            let room = Arc::new(Semaphore::new(slots as usize));
            let priorities = watch::Sender::new(BTreeSet::from([Priority::default()]));
            (name, Desk { function, slots, room, wanted: Arc::default(), priorities })
        });
        let about = About {
            version: executor.version,
            host: executor.host,
            started_at: executor.clock.now(),
        };
        let phase = Phase::default();
        let abandon = phase.abandoned.clone().drop_guard();
        let renewer = Renewer::start(publisher.clone(), &phase.abandoned);
        let node = Arc::new(Node {
            app: executor.app,
            instance,
            handlers: desks.collect(),
            about,
            nats,
            publisher,
            joiner,
            clock: executor.clock,
            live: Live::default(),
            renewer,
            logs,
            changed: Notify::new(),
            attempts: TaskTracker::new(),
            phase,
        });
        let mut running = Self {
            node,
            pulls: JoinSet::new(),
            helpers: TaskTracker::new(),
            helpers_end: CancellationToken::new(),
            registry: TaskTracker::new(),
            registry_end: CancellationToken::new(),
            _abandon: abandon,
        };
        running.spawn_helpers(cancels, probes, carrier);
        running.spawn_pulls();
        tracing::info!(app = %running.node.app, instance = %running.node.instance, "The executor takes work.");
        Ok(running)
    }

    fn spawn_helpers(&self, cancels: Subscriber, probes: Subscriber, carrier: Carrier) {
        let node = &self.node;
        let (publisher, names) = (node.publisher.clone(), node.nats.names().clone());
        let lines = carrier.run(publisher, names, node.app.clone(), self.helpers_end.clone());
        spawn(&self.helpers, node, lines);
        spawn(&self.helpers, node, cancel::listen(node.clone(), cancels, self.helpers_end.clone()));
        spawn(
            &self.helpers,
            node,
            registry::answer_probes(node.clone(), probes, self.helpers_end.clone()),
        );
        spawn(&self.registry, node, registry::keep(node.clone(), self.registry_end.clone()));
    }

    fn spawn_pulls(&mut self) {
        for (handler, desk) in &self.node.handlers {
            self.pulls.spawn(pull::pull(self.node.clone(), handler.clone(), desk.clone()));
        }
        self.pulls.spawn(pinned::pull(self.node.clone()));
    }

    /// Waits until no work can come any more.
    async fn broken(&mut self) -> ConsumeError {
        while let Some(ended) = self.pulls.join_next().await {
            if let Ok(Err(error)) = ended {
                return error;
            }
        }
        ConsumeError::Closed
    }

    /// Ends it in order: no new work; running handlers finish; what is left is handed back; what
    /// is on its way arrives; the registry forgets the instance.
    async fn end(mut self, drain: Duration) {
        let node = &self.node;
        tracing::info!(instance = %node.instance, drain_ms = drain.as_millis(), "The executor drains.");
        node.phase.draining.cancel();
        node.attempts.close();
        let drained = timeout(drain, async {
            while self.pulls.join_next().await.is_some() {}
            node.attempts.wait().await;
        });
        if drained.await.is_err() {
            tracing::warn!(instance = %node.instance, "The drain time is over: handlers are stopped, their work is handed back.");
            node.phase.drained.cancel();
            let tidy_up = node.handlers.values().map(|desk| desk.function.tidy_up.asked).max();
            let handed_back = timeout(HAND_BACK + tidy_up.unwrap_or_default(), async {
                while self.pulls.join_next().await.is_some() {}
                node.attempts.wait().await;
            });
            if handed_back.await.is_err() {
                tracing::warn!(instance = %node.instance, "Some work was not handed back; it is delivered again when its lease ends.");
            }
        }
        node.joiner.finish(LAST_STEP).await;
        finish(&self.helpers, &self.helpers_end).await;
        finish(&self.registry, &self.registry_end).await;
        tracing::info!(instance = %node.instance, "The executor has ended.");
    }
}

async fn finish(tasks: &TaskTracker, end: &CancellationToken) {
    end.cancel();
    tasks.close();
    let _ = timeout(LAST_STEP, tasks.wait()).await;
}

/// Spawns `task`, to end at the latest when the executor is abandoned.
fn spawn(tasks: &TaskTracker, node: &Node, task: impl Future<Output = ()> + Send + 'static) {
    let abandoned = node.phase.abandoned.clone();
    tasks.spawn(async move {
        abandoned.run_until_cancelled(task).await;
    });
}

async fn subscribe(nats: &Nats, subject: String) -> Result<Subscriber, RunError> {
    nats.client().subscribe(subject).await.map_err(|_| closed())
}

fn closed() -> RunError {
    RunError::Closed { while_doing: "it started" }
}
