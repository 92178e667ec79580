//! The API: the NATS service `<prefix>`, endpoints `<prefix>.api.<noun>.<verb>`, JSON in and out.
//!
//! Everything that the command line can do is a request to it, and `nats req` can do the same.
//! Errors are a [`wire::Problem`] in the body, and in the service error headers. It decides
//! nothing about fires: it changes definitions and puts triggers into their stream.
//!
//! Any number of nodes may serve it; each request goes to one of them.

mod apply;
mod ask;
mod audit;
mod backfill;
mod confirm;
mod definitions;
mod diff;
mod doctor;
mod edit;
mod history;
mod jobs;
mod live;
mod logs;
mod problem;
mod runs;
mod service;
mod then;
mod topology;
mod trigger;
mod waits;
pub mod wire;

use std::sync::Arc;

use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::Nats;
use taskparty_nats::history::ReadError;
use taskparty_nats::publish::Publisher;
use taskparty_nats::topology::Topology;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::definitions::Definitions;
pub use self::history::History;
pub use self::service::{DEADLINE, ENDPOINTS};
use crate::alarm::Alarms;

/// The service could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It could not be registered.
    #[error("the NATS service could not be started: {0}")]
    Service(String),
    /// The installation's history is in another store than ours; a sentence that says what to do.
    #[error("{0}")]
    OtherStore(String),
    /// NATS did not say in which store the history is.
    #[error("it cannot be found out which store holds the history: {0}")]
    Read(#[from] ReadError),
}

/// What the service works with.
#[derive(Debug)]
pub struct ApiParts {
    /// The buckets, and through them the connection.
    pub buckets: Buckets,
    /// Streams, buckets and consumers.
    pub topology: Topology,
    /// History.
    pub history: History,
    /// The wall clock.
    pub clock: Clock,
}

/// What the endpoints work with.
struct Api {
    nats: Nats,
    publisher: Publisher,
    buckets: Buckets,
    definitions: Definitions,
    topology: Topology,
    clock: Clock,
    history: History,
    alarms: Alarms,
}

/// Registers the service and answers requests, in tasks of `tasks`, until `shutdown`; then those
/// that are begun get 5 s to end.
///
/// # Errors
/// [`ApiError`] when the service cannot be registered; then nothing runs.
pub async fn start(
    parts: ApiParts,
    shutdown: CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), ApiError> {
    let ApiParts { buckets, topology, history, clock } = parts;
    let alarms = Alarms::new(buckets.clone(), clock.clone());
    let api = Api {
        alarms,
        nats: buckets.nats().clone(),
        publisher: buckets.publisher().clone(),
        definitions: Definitions::new(buckets.clone()),
        buckets,
        topology,
        clock,
        history,
    };
    service::start(Arc::new(api), shutdown, tasks).await
}
