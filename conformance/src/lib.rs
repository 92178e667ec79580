//! The conformance driver: what an executor must do, in whatever language it is written.
//!
//! A [`subject::Subject`] is a command that starts an executor with the handlers of the table
//! below. Each function in [`cases`] gives it a real nats-server of its own ([`site::Site`]),
//! plays scheduler and log writer there, and judges what it sees on the wire; it never looks
//! into the process. What must not be in here: anything that only one language can pass.
//!
//! | handler | slots | does |
//! | --- | --- | --- |
//! | `echo` | 4 | logs `echo`, returns `{params, key, shard, attempt, delivery}` |
//! | `sleep` | 2 | takes `{ms}`, waits so long, returns `{delivery}` |
//! | `fail` | 1 | fails with a message that ends in its params |
//! | `fatal` | 1 | the same, and says that no other attempt will do better |
//! | `panic` | 1 | panics, or throws what it did not mean to |
//! | `deaf` | 1 | takes `{ms}`, waits so long whatever it is told, and cannot be stopped |
//!
//! The command gets `NATS_URL`, `TASKPARTY_APP` and `TASKPARTY_DRAIN` (seconds) from its
//! environment and drains at SIGTERM.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::missing_panics_doc,
    reason = "what helps tests is a test: what goes wrong has failed"
)]

pub mod cases;
pub mod process;
pub mod site;
pub mod subject;
