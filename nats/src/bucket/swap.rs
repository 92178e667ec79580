//! Compare-and-set that knows its own writes.
//!
//! After a lost PubAck the key is not what was expected *because of this very write*. Each call
//! therefore writes an id of its own into the message's headers, reads the key from the leader
//! when in doubt, and recognises itself.

use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;
use uuid::Uuid;

use super::{BucketError, Buckets, Entry};
use crate::history::{Record, last_by_subject};
use crate::publish::{Draft, PublishError, pause};
use crate::subject::Bucket;

/// How long a compare-and-set is tried.
const DEADLINE: Duration = Duration::from_secs(10);

/// What became of a compare-and-set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Swap {
    /// It is written.
    Done {
        /// The key's new revision.
        revision: u64,
    },
    /// The key is not at the expected revision: nothing is written. (Or it was, its PubAck was
    /// lost, and another has replaced it since: the same for whoever tries again from `current`.)
    Lost {
        /// What the key holds, by the leader's word; none: nothing.
        current: Option<Entry>,
    },
}

impl Buckets {
    /// Writes `value` if the key's revision is `expected` (0: nothing was ever written, or
    /// nothing is left of it). With `ttl` (whole seconds, rounded up) the value expires.
    ///
    /// # Errors
    /// [`BucketError`]; unless it [`is_definite`](BucketError::is_definite) it may be written,
    /// now or in a moment.
    pub async fn put_if(
        &self,
        bucket: Bucket,
        key: &str,
        expected: u64,
        value: impl Into<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Swap, BucketError> {
        let mut draft = self.draft(bucket, key, value);
        if let Some(ttl) = ttl {
            draft = draft.ttl(ttl);
        }
        self.swap(bucket, key, expected, draft).await
    }

    /// Deletes the key if its revision is `expected`: watchers see it.
    ///
    /// # Errors
    /// As [`Buckets::put_if`].
    pub async fn delete_if(
        &self,
        bucket: Bucket,
        key: &str,
        expected: u64,
    ) -> Result<Swap, BucketError> {
        let draft = self.draft(bucket, key, Bytes::new()).header("KV-Operation", "DEL");
        self.swap(bucket, key, expected, draft).await
    }

    async fn swap(
        &self,
        bucket: Bucket,
        key: &str,
        expected: u64,
        draft: Draft,
    ) -> Result<Swap, BucketError> {
        let id = Uuid::new_v4().simple().to_string();
        let draft = draft.id(&id).expect_last(expected);
        let end = Instant::now() + DEADLINE;
        for attempt in 0_u32.. {
            let left = end.saturating_duration_since(Instant::now());
            let error = match self.publisher.publish_within(draft.clone(), left).await {
                Ok(stored) => return Ok(Swap::Done { revision: stored.seq }),
                Err(error) => error,
            };
            match error {
                PublishError::WrongLastSequence { .. } | PublishError::Unconfirmed(_) => {}
                error => return Err(error.into()),
            }
            // Boxed: what is rarely needed makes no future larger.
            let found = Box::pin(self.last(bucket, key)).await?;
            if let Some(own) = found.as_ref().filter(|record| record.id() == Some(id.as_str())) {
                return Ok(Swap::Done { revision: own.seq });
            }
            let revision = found.as_ref().map_or(0, |record| record.seq);
            if revision != expected {
                let prefix = self.nats.names().key(bucket, "");
                let current = found.and_then(|record| Entry::of(record, &prefix));
                return Ok(Swap::Lost { current });
            }
            // Another write of this key is on its way through a cluster, or ours is.
            if Instant::now() >= end {
                return Err(error.into());
            }
            pause(attempt).await;
        }
        Err(PublishError::Unconfirmed("the attempts are used up".into()).into())
    }

    /// Writes `value` if the key has none: also over the mark of a deleted or expired value.
    /// With `ttl` (whole seconds, rounded up) it expires.
    ///
    /// # Errors
    /// As [`Buckets::put_if`].
    pub async fn create(
        &self,
        bucket: Bucket,
        key: &str,
        value: impl Into<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<Swap, BucketError> {
        let value = value.into();
        let end = Instant::now() + DEADLINE;
        let mut expected = 0;
        loop {
            match self.put_if(bucket, key, expected, value.clone(), ttl).await? {
                // A mark says that the key is free; and a mark can go while we look at it.
                Swap::Lost { current: Some(Entry { value: None, revision, .. }) }
                    if Instant::now() < end =>
                {
                    expected = revision;
                }
                Swap::Lost { current: None } if Instant::now() < end => expected = 0,
                settled => return Ok(settled),
            }
        }
    }

    async fn last(&self, bucket: Bucket, key: &str) -> Result<Option<Record>, BucketError> {
        let names = self.nats.names();
        let (stream, subject) = (names.bucket_stream(bucket), names.key(bucket, key));
        Ok(last_by_subject(self.nats.js(), &stream, &subject).await?)
    }
}
