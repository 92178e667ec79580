//! Everything in TaskParty that touches NATS, and nothing else.
//!
//! The modules wrap what NATS gives with what TaskParty needs of it: publishes that are
//! confirmed, locks that are taken once, leases that end on time, pulls that do not stall,
//! watches that survive a reconnect. What must never be in here: a decision about a job.

pub mod acl;
pub mod bucket;
pub mod clock;
pub mod connect;
pub mod consume;
pub mod failpoint;
pub mod history;
pub mod join;
pub mod lease;
pub mod lock;
pub mod proxy;
pub mod publish;
pub mod room;
pub mod server;
pub mod subject;
pub mod topology;
