//! The shared language of TaskParty: jobs, schedules, fires, dispatches and outcomes.
//!
//! *Invariant: this crate is pure.* No I/O, no async, no reading of a clock or of the
//! environment. What is here can be tested with tables and properties, and the command line, the
//! API, the scheduler and the executors share it.

pub mod ask;
pub mod backfill;
pub mod backoff;
pub mod dispatch;
pub mod duration;
pub mod fire;
pub mod job;
pub mod name;
pub mod outcome;
pub mod overlap;
pub mod priority;
pub mod rate;
pub mod schedule;
