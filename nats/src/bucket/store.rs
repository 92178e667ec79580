//! Writing and reading single keys.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::{BucketError, Change, Entry, Watch};
use crate::connect::Nats;
use crate::history::{ASK_DEADLINE, ReadError, last_by_subject, purge_subject};
use crate::publish::{Draft, Publisher};
use crate::subject::Bucket;

/// The buckets of an installation. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Buckets {
    pub(super) nats: Nats,
    pub(super) publisher: Publisher,
}

impl Buckets {
    /// The buckets that `nats` names, written through `publisher`.
    pub fn new(nats: Nats, publisher: Publisher) -> Self {
        Self { nats, publisher }
    }

    /// Writes `value`, whatever the key holds; with `ttl` (whole seconds, rounded up) it expires.
    /// Returns the revision.
    ///
    /// # Errors
    /// [`BucketError`]; unless it [`is_definite`](BucketError::is_definite) it may be written.
    pub async fn put(
        &self,
        bucket: Bucket,
        key: &str,
        value: impl Into<Bytes>,
        ttl: Option<Duration>,
    ) -> Result<u64, BucketError> {
        let mut draft = self.draft(bucket, key, value);
        if let Some(ttl) = ttl {
            draft = draft.ttl(ttl);
        }
        Ok(self.publisher.publish(draft).await?.seq)
    }

    /// The key as the leader has it; none when it was never written, or nothing is left of it.
    /// A deleted key is an entry without a value.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn get_leader(&self, bucket: Bucket, key: &str) -> Result<Option<Entry>, ReadError> {
        let names = self.nats.names();
        let (stream, subject) = (names.bucket_stream(bucket), names.key(bucket, key));
        let found = last_by_subject(self.nats.js(), &stream, &subject).await?;
        Ok(found.and_then(|record| Entry::of(record, &names.key(bucket, ""))))
    }

    /// Deletes the key: watchers see it, its history stays. Returns the deletion's revision.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn delete(&self, bucket: Bucket, key: &str) -> Result<u64, BucketError> {
        let draft = self.draft(bucket, key, Bytes::new()).header("KV-Operation", "DEL");
        Ok(self.publisher.publish(draft).await?.seq)
    }

    /// Deletes the key with its history: watchers see it. Returns the purge's revision.
    ///
    /// # Errors
    /// [`BucketError`].
    pub async fn purge(&self, bucket: Bucket, key: &str) -> Result<u64, BucketError> {
        let draft = self
            .draft(bucket, key, Bytes::new())
            .header("KV-Operation", "PURGE")
            .header("Nats-Rollup", "sub");
        Ok(self.publisher.publish(draft).await?.seq)
    }

    /// Removes every trace of the keys that match `filter`, without a word to watchers (they
    /// notice only at their next rebuild). For keys that nobody watches.
    ///
    /// # Errors
    /// [`ReadError`].
    pub async fn forget(&self, bucket: Bucket, filter: &str) -> Result<u64, ReadError> {
        let names = self.nats.names();
        purge_subject(self.nats.js(), &names.bucket_stream(bucket), &names.key(bucket, filter))
            .await
    }

    /// The keys that match `filter` (`>`: all) and have a value, each as it is now, by key.
    ///
    /// Through a watch, not through [`read`](crate::history::read): a key that is written again
    /// meanwhile has no old value left to read, and must not be missing. Holds all of them in
    /// memory: for buckets of a bounded size.
    ///
    /// # Errors
    /// [`ReadError::Unanswered`] when they could not be read in time.
    pub async fn entries(&self, bucket: Bucket, filter: &str) -> Result<Vec<Entry>, ReadError> {
        let mut watch = Watch::start(self, bucket, filter, &CancellationToken::new());
        let mut entries = BTreeMap::new();
        let end = Instant::now() + ASK_DEADLINE;
        loop {
            match timeout_at(end, watch.next()).await {
                Ok(Some(Change::Entry(entry))) if entry.value.is_some() => {
                    entries.insert(entry.key.clone(), entry);
                }
                Ok(Some(Change::Entry(entry))) => {
                    entries.remove(&entry.key);
                }
                Ok(Some(Change::Ready)) => return Ok(entries.into_values().collect()),
                Ok(None) => return Err(ReadError::Unanswered("the connection is closed".into())),
                Err(_) => return Err(ReadError::Unanswered("not all keys came".into())),
            }
        }
    }

    /// The publisher that writes go through.
    pub fn publisher(&self) -> &Publisher {
        &self.publisher
    }

    /// The connection and its names.
    pub fn nats(&self) -> &Nats {
        &self.nats
    }

    pub(super) fn draft(&self, bucket: Bucket, key: &str, value: impl Into<Bytes>) -> Draft {
        Draft::new(self.nats.names().key(bucket, key), value)
    }
}
