//! Faults of NATS, of SQL and of executors: nothing is lost, nothing is doubled, everything ends.
//! One binary: linking is what takes time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod cluster;
mod deleted;
mod executors;
mod facts;
mod full;
mod network;
mod places;
mod priorities;
mod restart;
mod rig;
mod routes;
mod shop;
mod sql;
