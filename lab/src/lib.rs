//! An installation of real processes on this machine: nats-servers, nodes and executors, each
//! with a log of its own, started, killed, frozen and asked from here.
//!
//! For the fault harness and the benchmarks. Nothing in here decides whether what happens is
//! right, and nothing outlives the process that started it, however that one ends.

pub mod ask;
pub mod facts;
pub mod journal;
pub mod process;
pub mod seat;
pub mod servers;
pub mod site;
