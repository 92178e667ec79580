//! The log writer on a real nats-server and a real SQLite file.
//! One binary: linking is what takes time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod cancel;
mod crowd;
mod decisions;
mod follows;
mod outage;
mod rig;
mod sweep;
mod writers;
