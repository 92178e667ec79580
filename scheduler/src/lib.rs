//! When and who: the scheduler; and what runs beside it by default: the log writer and the API.
//!
//! [`Node`] starts these parts in one process. They talk to each other, and to executors, through
//! NATS only, so that each can also run alone.

mod alarm;
pub mod api;
pub mod audit;
mod backfill;
mod consumers;
mod cursor;
mod definition;
mod engine;
mod fire;
mod jobs;
mod kept;
pub mod log_writer;
mod membership;
mod node;
mod overlap;
mod pending;
mod recover;
pub mod registry;
mod release;
mod rendezvous;
mod route;
pub mod store;
mod told;
mod trigger;
mod upkeep;

pub use jobs::Jobs;
pub use node::{CLOCK_TOLERANCE, Node, NodeConfig, NodeError, Role};
