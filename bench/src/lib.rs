//! What `taskparty bench` measures.
//!
//! Each measurement starts an installation of its own on this machine, real processes all of it,
//! and says what it measured, how, and on what. Nothing here is asserted about time: the figures
//! are for people.

mod bed;
mod counts;
pub mod executor;
pub mod failover;
pub mod handlers;
pub mod history;
pub mod idle;
mod jobs;
pub mod lateness;
mod raw;
pub mod report;
pub mod throughput;
mod wire;

pub use bed::{Setting, Sync};
