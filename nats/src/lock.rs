//! The lock per fire time: a key that exactly one of many writes.
//!
//! The value is the whole intent of the fire, so whoever comes later can complete it. Nothing is
//! ever unlocked: a lock ends with its TTL.
//!
//! *Invariant: of all that take one key within its TTL, exactly one call gets
//! [`Take::Taken`]*, however many answers are lost; a call that cannot tell returns an error, and
//! the lock may be its own: read it and compare the intent.
//!
//! What is left of an expired lock (the server's mark, or nothing) means free. For fire times
//! this is safe because they do not come again within the TTL, and what lies further back is
//! covered by the fired records; for a user's trigger key it is the point: the same key triggers
//! again once its lock has expired.

use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};

use crate::bucket::{BucketError, Buckets, Entry, Swap};
use crate::history::ReadError;
use crate::publish::PublishError;
use crate::subject::Bucket;

/// The shortest life of a lock.
pub const SHORTEST: Duration = Duration::from_secs(10 * 60);

/// The longest life of a lock: as long as fired records are kept.
pub const LONGEST: Duration = Duration::from_secs(7 * 24 * 3600);

/// How long a lock lives when the next fire is `until_next` away (none: there is none): twice
/// that, from 10 minutes to 7 days.
pub fn life(until_next: Option<Duration>) -> Duration {
    let twice = until_next.map_or(LONGEST, |time| time.saturating_mul(2));
    twice.clamp(SHORTEST, LONGEST)
}

/// A lock that is held.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// The intent that its holder wrote.
    pub value: Bytes,
    /// When it was taken, by the server's clock.
    pub stored_at: DateTime<Utc>,
    /// Its sequence in the bucket's stream.
    pub seq: u64,
}

impl Held {
    fn of(entry: Entry) -> Option<Self> {
        let Entry { revision, value, created, .. } = entry;
        Some(Self { value: value?, stored_at: created, seq: revision })
    }
}

/// What became of trying to take a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Take {
    /// It is ours, and nobody else's.
    Taken {
        /// Its sequence in the bucket's stream.
        seq: u64,
    },
    /// It is another's, or an earlier call's of our own: the intent tells.
    Held(Held),
}

/// The locks of an installation, in bucket `fires`. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Locks {
    buckets: Buckets,
}

impl Locks {
    /// The locks in `buckets`.
    pub fn new(buckets: Buckets) -> Self {
        Self { buckets }
    }

    /// Takes the lock `key` with the intent `value` for `ttl` (see [`life`]; whole seconds,
    /// rounded up).
    ///
    /// # Errors
    /// [`BucketError`]; unless it [`is_definite`](BucketError::is_definite) the lock may be ours,
    /// now or in a moment.
    pub async fn take(
        &self,
        key: &str,
        value: impl Into<Bytes>,
        ttl: Duration,
    ) -> Result<Take, BucketError> {
        match self.buckets.create(Bucket::Fires, key, value, Some(ttl)).await? {
            Swap::Done { revision } => Ok(Take::Taken { seq: revision }),
            Swap::Lost { current } => match current.and_then(Held::of) {
                Some(held) => Ok(Take::Held(held)),
                None => {
                    let text = "the lock's mark changed each time it was looked at";
                    Err(PublishError::Unconfirmed(text.into()).into())
                }
            },
        }
    }

    /// Who holds `key`, by the leader's word; none when it is free.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn read(&self, key: &str) -> Result<Option<Held>, ReadError> {
        Ok(self.buckets.get_leader(Bucket::Fires, key).await?.and_then(Held::of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_outlives_twice_the_way_to_the_next_fire() {
        let minutes = |n: u64| Duration::from_secs(n * 60);
        assert_eq!(life(Some(minutes(1))), minutes(10));
        assert_eq!(life(Some(minutes(60))), minutes(120));
        assert_eq!(life(Some(minutes(60 * 24 * 30))), LONGEST);
        assert_eq!(life(None), LONGEST);
    }
}
