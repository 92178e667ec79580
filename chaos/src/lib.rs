//! A fault harness: real schedulers, executors and nats-servers, killed, frozen, restarted and cut
//! off from each other by a seeded plan while jobs run; then all is healed, and audited.
//!
//! `make chaos` runs it; `make soak` runs what does nothing, many times, and judges whether each run
//! is there once and memory stays as it is. Short forms of both are among the tests. Nothing depends
//! on this crate.
//!
//! It judges by what each part wrote by itself (`taskparty_scheduler::audit`), and by what
//! executors wrote into files of their own before a handler began.

pub mod executor;
pub mod inflict;
pub mod load;
pub mod memory;
pub mod plan;
pub mod programs;
pub mod quiet;
pub mod run;
pub mod soak;
pub mod triggers;
