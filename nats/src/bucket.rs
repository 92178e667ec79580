//! Key-value buckets: writes that are confirmed, reads that are right, watches that survive.
//!
//! async-nats's bucket type is not used: its reads may come from any replica (fact 2), its
//! creates lose TTLs and mistake an own write for another's (fact 1), its watch replays and gives
//! errors that are not the end, and no mark for an empty bucket (fact 7).
//!
//! *Invariant: a decision is made by compare-and-set or on the leader's word*, never on what a
//! watch shows.

mod store;
mod swap;
mod view;
mod watch;

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};

use crate::history::{ReadError, Record};
use crate::publish::PublishError;

pub use self::store::Buckets;
pub use self::swap::Swap;
pub use self::watch::{Change, Liveness, Watch};

/// A key of a bucket at one revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The key. Shared: what is kept of many keys holds each text once.
    pub key: Arc<str>,
    /// The sequence in the bucket's stream; grows over all keys.
    pub revision: u64,
    /// The value; none when the key was deleted, purged, or expired.
    pub value: Option<Bytes>,
    /// When it was stored, by the server's clock.
    pub created: DateTime<Utc>,
}

impl Entry {
    /// Reads what is stored; none when the subject is no key of the bucket with this prefix.
    fn of(record: Record, prefix: &str) -> Option<Self> {
        let key = record.subject.strip_prefix(prefix)?.into();
        let value = (!record.is_marker()).then_some(record.payload);
        Some(Self { key, revision: record.seq, value, created: record.stored_at })
    }
}

/// Why a bucket could not be written or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BucketError {
    /// The write was refused, or not confirmed.
    #[error("{0}")]
    Write(#[from] PublishError),
    /// The read failed, also the one that finds out what became of a write.
    #[error("{0}")]
    Read(#[from] ReadError),
}

impl BucketError {
    /// Whether it is certain that nothing was written.
    pub fn is_definite(&self) -> bool {
        match self {
            Self::Write(error) => error.is_definite(),
            Self::Read(_) => false,
        }
    }
}
