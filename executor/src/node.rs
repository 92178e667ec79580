//! What all parts of a running executor share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::Serialize;
use taskparty_common::dispatch::{ExecutorEntry, HandlerEntry};
use taskparty_common::name::{App, Handler, Instance};
use taskparty_common::priority::Priority;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::Nats;
use taskparty_nats::join::Joiner;
use taskparty_nats::lease::Renewer;
use taskparty_nats::publish::Publisher;
use tokio::sync::{Notify, Semaphore, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::handler::ErasedHandler;
use crate::live::Live;
use crate::logs::Logs;

/// A running executor, for its parts.
pub(crate) struct Node {
    pub(crate) app: App,
    pub(crate) instance: Instance,
    pub(crate) handlers: BTreeMap<Handler, Desk>,
    pub(crate) about: About,
    pub(crate) nats: Nats,
    pub(crate) publisher: Publisher,
    pub(crate) joiner: Joiner,
    pub(crate) clock: Clock,
    pub(crate) live: Live,
    /// Keeps leases until all is abandoned.
    pub(crate) renewer: Renewer,
    pub(crate) logs: Logs,
    /// The registry's entry is not true any more and is to be put before its time.
    pub(crate) changed: Notify,
    /// Attempts, and the small messages that they send on their way.
    pub(crate) attempts: TaskTracker,
    pub(crate) phase: Phase,
}

/// One handler with its slots.
#[derive(Debug, Clone)]
pub(crate) struct Desk {
    pub(crate) function: ErasedHandler,
    pub(crate) slots: u32,
    /// A permit a free slot.
    pub(crate) room: Arc<Semaphore>,
    /// Work that is for this instance alone is here and needs one.
    pub(crate) wanted: Arc<Notify>,
    /// The priorities whose work it looks for: the default, and what a scheduler told it of.
    pub(crate) priorities: watch::Sender<BTreeSet<Priority>>,
}

/// What the registry says of the process.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) version: String,
    pub(crate) host: String,
    pub(crate) started_at: chrono::DateTime<chrono::Utc>,
}

/// How far the executor's end is. Each step is taken once, in this order; none is taken back.
#[derive(Debug, Clone, Default)]
pub(crate) struct Phase {
    /// No more work is taken.
    pub(crate) draining: CancellationToken,
    /// The drain time is over: handlers are stopped and their work is handed back.
    pub(crate) drained: CancellationToken,
    /// Nothing is done any more, nothing reported: as a crash.
    pub(crate) abandoned: CancellationToken,
}

impl Node {
    /// Sends `record` on its way to `subject` without waiting for it. It may get lost.
    pub(crate) fn tell(&self, subject: String, record: &impl Serialize) {
        let line = match serde_json::to_vec(record) {
            Ok(line) => line,
            Err(error) => {
                return tracing::error!(%subject, %error, "A record could not be written as JSON.");
            }
        };
        let joiner = self.joiner.clone();
        let abandoned = self.phase.abandoned.clone();
        self.attempts.spawn(async move {
            let sent = abandoned.run_until_cancelled(joiner.send(&subject, line)).await;
            if let Some(Err(error)) = sent {
                tracing::debug!(%subject, %error, "A record was not stored.");
            }
        });
    }

    /// What the registry says now.
    pub(crate) fn entry(&self) -> ExecutorEntry {
        let handlers = self.handlers.iter().map(|(name, desk)| {
            let running = self.live.jobs_of(name);
            let priorities = desk.priorities.borrow();
            let others = priorities.iter().copied().filter(|priority| !priority.is_default());
            let priorities = Some(others.collect());
            (name.clone(), HandlerEntry { slots: desk.slots, running, priorities })
        });
        ExecutorEntry {
            v: 1,
            app: self.app.clone(),
            instance: self.instance.clone(),
            handlers: handlers.collect(),
            version: self.about.version.clone(),
            host: self.about.host.clone(),
            pid: std::process::id(),
            started_at: self.about.started_at,
            draining: self.phase.draining.is_cancelled(),
        }
    }
}
