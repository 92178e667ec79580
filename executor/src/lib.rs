//! The TaskParty SDK: make a service an executor of jobs.
//!
//! A service names its app and its functions, and runs; the scheduler finds it by itself.
//!
//! ```no_run
//! use taskparty_executor::{Context, Executor, HandlerError};
//!
//! #[derive(serde::Deserialize)]
//! struct Settle {
//!     day: String,
//! }
//!
//! async fn daily_settlement(ctx: Context, params: Settle) -> Result<u64, HandlerError> {
//!     ctx.info(format!("settling {} ({})", params.day, ctx.idempotency_key()));
//!     Ok(42)
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     Executor::new("order-service")?
//!         .handler("dailySettlement", daily_settlement)
//!         .run(tokio::signal::ctrl_c())
//!         .await?;
//!     Ok(())
//! }
//! ```
//!
//! What to know:
//!
//! - **At least once.** An executor that dies in the middle of a run leaves it to another, which
//!   starts from the beginning. [`Context::idempotency_key`] is the same each time: give it to
//!   whatever must happen only once.
//! - **Errors.** `?` makes any error a [`HandlerError`] that is tried again as the job's policy
//!   says; [`HandlerError::fatal`] ends the run. A panic is a failed run with the panic's text.
//! - **Stopping.** A handler is dropped at its timeout, when its run is cancelled, and when its
//!   lease is lost. Dropping a future stops it at its next `.await`; for threads and tasks of the
//!   handler's own there is [`Context::cancelled`].
//! - **Blocking.** A handler that blocks its thread holds up whatever else that thread has to do,
//!   and cannot be stopped: use [`tokio::task::spawn_blocking`], and the multi-threaded runtime.
//! - **Shutdown.** [`Executor::run`] takes the shutdown as a future. It stops taking work, lets
//!   running handlers finish inside [`Executor::drain`], and hands back what is left.
//!
//! [`Client`] triggers jobs from a service.

mod builder;
mod cancel;
mod client;
mod context;
mod error;
mod handler;
mod live;
mod logs;
mod node;
mod pinned;
mod progress;
mod pull;
mod registry;
mod report;
mod run;
pub mod script;
mod service;
mod settle;

pub use builder::{DEFAULT_DRAIN, Executor};
pub use client::{Client, Trigger};
pub use context::Context;
pub use error::{BuildError, ClientError, RunError};
pub use handler::{DEFAULT_SLOTS, HandlerError, HandlerOptions, MAX_SLOTS, slots};
pub use logs::Level;
pub use taskparty_common::name::{App, Instance, Prefix};
pub use taskparty_nats::connect::{
    ConnectConfig, ConnectError, Handshake, Nats, Secret, Tls, connect,
};
pub use tokio_util::sync::CancellationToken;

// What the README and the page about executors show is compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../docs/executors.md")]
struct ExecutorsPage;
