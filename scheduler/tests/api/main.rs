//! The NATS service against a real server: whatever is sent, the right answer and no harm.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what helps tests is a test")]

mod jobs;
mod rig;
mod runs;
mod service;
