//! A backfill: instants of the past that somebody wants to run, one after the other.
//!
//! It is a trigger that carries what is left of it. Whoever takes it fires the first instant and puts
//! the rest back for later, so that at most one message a backfill waits. *Invariant: an instant's
//! identity is the job, the instant, and how many backfills it had had before*: a step that is made
//! twice, or a backfill that is asked for twice at once, fires it once.

use serde::{Deserialize, Serialize};

/// The most instants of one backfill: it travels whole.
pub const MAX_INSTANTS: usize = 2_000;

/// What is left of a backfill.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backfill {
    /// Its own id.
    pub id: String,
    /// The instants, in milliseconds since 1970, in order, each with how many runs of a backfill it
    /// had had before.
    pub left: Vec<(i64, u32)>,
}

impl Backfill {
    /// The id of the trigger that runs one of its instants: no user's key can be equal to it.
    pub fn trigger_id((at, before): (i64, u32)) -> String {
        format!("backfill.{at}.{before}")
    }
}
