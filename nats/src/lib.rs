//! Everything in TaskParty that touches NATS, and nothing else.
//!
//! The modules wrap what NATS gives with what TaskParty needs of it: publishes that are
//! confirmed, locks that are taken once, leases that end on time, pulls that do not stall,
//! watches that survive a reconnect. What must never be in here: a decision about a job.

pub mod clock;
pub mod server;
pub mod subject;
