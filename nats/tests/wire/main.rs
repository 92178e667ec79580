//! Publishes, joins, locks, leases, pulls, watches and reads against real servers and a bad
//! network. One binary: linking is what takes time.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod bucket;
mod cluster;
mod consume;
mod history;
mod join;
mod lease;
mod lines;
mod lock;
mod publish;
mod support;
