//! The executor against real nats-servers. The tests are its scheduler: they make streams and
//! consumers, put dispatches by hand, and read what comes back.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod client;
mod lease;
mod outcome;
mod priority;
mod process;
mod registry;
mod rig;
mod shutdown;
mod slots;
mod words;
