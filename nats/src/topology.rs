//! The streams, buckets and consumers that TaskParty needs: made when missing, compared, changed
//! only on demand.
//!
//! They are described once, in `nats/topology/*.json`, in the form that `nats stream add --config`
//! and `nats consumer add --config` take. Here the files are read with the configured prefix,
//! sizes and replicas. What must never be in here: deleting a stream, or changing one that exists
//! outside [`Topology::apply`].

mod api;
mod apply;
mod compare;
mod definition;
mod error;
mod instance;
mod priority;
mod upkeep;

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskparty_common::name::{App, Handler, Instance};
use tokio::sync::watch;
use tokio::time::Instant;

pub use apply::{Applied, Outcome};
pub use compare::Difference;
pub use definition::{Definition, Kind};
pub use error::TopologyError;
pub use upkeep::Missing;

use crate::connect::Nats;
use crate::room::Room;
use api::Api;

/// What an operator can choose about the streams.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopologyConfig {
    /// How often everything is stored. Default: three times in a cluster, once on a single server.
    pub replicas: Option<usize>,
    /// How long an executor may hold work without a sign of life. Default: 30 s.
    pub lease: Duration,
    /// Bytes of waiting work, for each app; past it a dispatch is refused. Default: 256 MiB.
    pub dispatch_bytes: i64,
    /// Bytes of what happened in the last 7 days; past it a result is refused. Default: 2 GiB.
    pub results_bytes: i64,
    /// Bytes of handlers' log lines; past it the oldest go. Default: 512 MiB.
    pub logs_bytes: i64,
    /// Bytes of triggers that wait, delayed ones and retries too; past it publishers refuse.
    /// Default: 1 GiB. The stream itself has no limit: it would drop the oldest (see
    /// [`crate::room`]).
    pub triggers_bytes: u64,
    /// Bytes of alerts; past it the oldest go. Default: 32 MiB.
    pub alerts_bytes: i64,
    /// How long one stream or consumer may take to be there: an election can be going on.
    /// Default: 10 s.
    pub deadline: Duration,
}

impl Default for TopologyConfig {
    fn default() -> Self {
        const MIB: i64 = 1 << 20;
        Self {
            replicas: None,
            lease: Duration::from_secs(30),
            dispatch_bytes: 256 * MIB,
            results_bytes: 2048 * MIB,
            logs_bytes: 512 * MIB,
            triggers_bytes: 1024 << 20,
            alerts_bytes: 32 * MIB,
            deadline: Duration::from_secs(10),
        }
    }
}

/// The streams, buckets and consumers of one installation. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Topology(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nats: Nats,
    config: TopologyConfig,
    api: Api,
    /// Handlers whose stream and consumer the server has confirmed.
    confirmed: Mutex<HashSet<(App, Handler)>>,
    /// Instances whose stream and consumer the server has confirmed.
    instances: Mutex<HashSet<(App, Instance)>>,
    /// Lines of work of a priority whose stream and consumer the server has confirmed.
    lines: Mutex<HashSet<priority::Line>>,
    new_lines: watch::Sender<()>,
    /// What was there once, by name; of streams, the last sequence that was seen.
    seen: Mutex<HashMap<String, u64>>,
    /// What was made again and not yet asked for.
    made_again: Mutex<Vec<String>>,
    /// Held while something that was deleted is made again, so that one does it and says so: when each
    /// was last found, or made.
    remaking: tokio::sync::Mutex<HashMap<String, tokio::time::Instant>>,
    triggers_room: Room,
}

/// By how much a stream that is made again begins after the last sequence that was seen of the one
/// that was deleted. Far more than can have been stored between the last look and the deletion.
const GAP: u64 = 1_000_000_000;

impl Topology {
    /// For this connection; nothing is asked yet.
    pub fn new(nats: Nats, config: TopologyConfig) -> Self {
        let api = Api::new(nats.clone());
        let triggers_room =
            Room::new(nats.clone(), nats.names().triggers_stream(), config.triggers_bytes);
        Self(Arc::new(Inner {
            nats,
            config,
            api,
            confirmed: Mutex::default(),
            instances: Mutex::default(),
            lines: Mutex::default(),
            new_lines: watch::Sender::new(()),
            seen: Mutex::default(),
            made_again: Mutex::default(),
            remaking: tokio::sync::Mutex::default(),
            triggers_room,
        }))
    }

    /// What must be there whatever jobs there are: all but the streams of apps.
    pub fn expected(&self) -> Vec<Definition> {
        definition::fixed(self.0.nats.names(), &self.0.config, self.replicas())
    }

    /// The stream of an app's work.
    pub fn expected_app(&self, app: &App) -> Definition {
        definition::dispatch(self.0.nats.names(), &self.0.config, self.replicas(), app)
    }

    /// The consumer of a handler's work.
    pub fn expected_handler(&self, app: &App, handler: &Handler) -> Definition {
        definition::handler(self.0.nats.names(), &self.0.config, app, handler)
    }

    /// Whether another trigger may be published.
    pub fn triggers_room(&self) -> &Room {
        &self.0.triggers_room
    }

    fn replicas(&self) -> usize {
        self.0.config.replicas.unwrap_or_else(|| self.0.nats.replicas())
    }

    /// Makes what is missing of [`Self::expected`] and leaves the rest as it is. Safe to call
    /// again, and from many nodes at once. Gives back what it made.
    ///
    /// # Errors
    /// See [`TopologyError`]; what was made before stays.
    pub async fn create_missing(&self) -> Result<Vec<Definition>, TopologyError> {
        let mut made = Vec::new();
        for definition in self.expected() {
            if self.ensure(&definition).await? {
                tracing::info!(kind = %definition.kind, name = %definition.name, "created in NATS");
                made.push(definition);
            }
        }
        Ok(made)
    }

    /// Makes the stream of `app` and the consumer of `handler` when they are missing. Asks the
    /// server once for each; afterwards it is free.
    ///
    /// *Invariant: nothing is dispatched to a handler before this has returned `Ok`*: what a work
    /// queue holds without a consumer, nobody sees.
    ///
    /// # Errors
    /// See [`TopologyError`]; nothing is remembered then.
    pub async fn ensure_handler(&self, app: &App, handler: &Handler) -> Result<(), TopologyError> {
        let key = (app.clone(), handler.clone());
        if self.confirmed().contains(&key) {
            return Ok(());
        }
        self.ensure(&self.expected_app(app)).await?;
        self.ensure(&self.expected_handler(app, handler)).await?;
        self.confirmed().insert(key);
        Ok(())
    }

    /// Forgets that an app's stream was confirmed: for when a dispatch finds no stream, because
    /// someone has deleted it.
    pub fn forget(&self, app: &App) {
        self.confirmed().retain(|(known, _)| known != app);
        self.instances().retain(|(known, _)| known != app);
        self.lines().retain(|(known, _, _)| known != app);
    }

    fn confirmed(&self) -> std::sync::MutexGuard<'_, HashSet<(App, Handler)>> {
        self.0.confirmed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn made_again(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.0.made_again.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, HashMap<String, u64>> {
        self.0.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True when it was missing and we made it. Boxed: every fire asks for its consumers, and nearly
    /// none comes to here.
    async fn ensure(&self, definition: &Definition) -> Result<bool, TopologyError> {
        Box::pin(self.look_or_make(definition)).await
    }

    async fn look_or_make(&self, definition: &Definition) -> Result<bool, TopologyError> {
        let was_there = self.seen().contains_key(&definition.name);
        match self.look(definition, self.deadline()).await? {
            true => Ok(false),
            false if was_there => self.find_gone(definition).await,
            false => self.make(definition).await,
        }
    }

    /// *Invariant: a stream that is made again gives out no sequence a second time.* Executors may
    /// still ack what they had from the one that was deleted, and compare-and-sets may still expect
    /// its revisions: such an ack would remove another's work.
    async fn make(&self, definition: &Definition) -> Result<bool, TopologyError> {
        let before = self.seen().get(&definition.name).copied();
        let mut definition = definition.clone();
        if let Some(last) = before.filter(|_| definition.kind != Kind::Consumer) {
            definition.config["first_seq"] = serde_json::json!(last + GAP);
        }
        let made = self.0.api.create(&definition, self.deadline()).await?;
        if made && before.is_some() {
            tracing::error!(
                kind = %definition.kind, name = %definition.name,
                "Something that TaskParty needs in NATS was deleted while it ran; it is made again. What was in it is lost. Nobody but TaskParty should delete it."
            );
            self.made_again().push(definition.name.clone());
        }
        self.seen().entry(definition.name).or_default();
        Ok(made)
    }

    /// Whether it is there; remembers that it was.
    async fn look(
        &self,
        definition: &Definition,
        deadline: Instant,
    ) -> Result<bool, TopologyError> {
        let found = self.0.api.find(definition, deadline).await?;
        if let Some(found) = &found {
            let mut seen = self.seen();
            let last = seen.entry(definition.name.clone()).or_default();
            *last = found.last_seq.max(*last);
        }
        Ok(found.is_some())
    }
}
