//! The whole of it, end to end: the real binary in processes of its own, a real nats-server, a
//! SQLite file, and executors made with the SDK. What is killed here is really killed.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what helps tests is a test")]

#[path = "../support/mod.rs"]
mod support;

mod asked;
mod backfill;
mod chaos;
mod crash;
mod decisions;
mod executors;
mod facts;
mod follow;
mod frozen;
mod many;
mod outage;
mod outcome;
mod overlap;
mod process;
mod rate;
mod readme;
mod restarts;
mod retry;
mod shop;
mod site;
