//! Fires against real nats-servers: on time, once, accounted for over stops and edits.
//! One binary: linking is what takes time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod edits;
mod lagging;
mod many;
mod members;
mod misfire;
mod on_time;
mod overlap;
mod priorities;
mod rate;
mod recovery;
mod rig;
mod routes;
mod triggers;
