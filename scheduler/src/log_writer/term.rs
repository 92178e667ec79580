//! One active writer: a lease key in the cursors bucket.
//!
//! The active one renews the key each second by compare-and-set; a standby takes over when the
//! key's revision has not moved for 6 s on its own clock, or at once when it was released.
//! *Invariant: an active writer that could not renew for 4 s stops writing*, so two write at once
//! only if clocks run 1.5 times apart; and even then each transaction reads what it changes.
//!
//! A second key names the store. *Invariant: a writer with another store does not begin*: two
//! histories would each have a part of the results.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskparty_common::name::Instance;
use taskparty_nats::bucket::{BucketError, Buckets, Entry, Swap};
use taskparty_nats::history::ReadError;
use taskparty_nats::lease::Uptime;
use taskparty_nats::subject::Bucket;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::LogWriterError;

/// The key of the lease.
const LEASE_KEY: &str = "log-writer";

/// The key that names the store.
const STORE_KEY: &str = "log-writer-store";

const RENEW_EVERY: Duration = Duration::from_secs(1);
const WRITES_FOR: Duration = Duration::from_secs(4);
const TAKEN_AFTER: Duration = Duration::from_secs(6);

/// What the lease key holds.
#[derive(Debug, Serialize, Deserialize)]
struct Holder {
    v: u32,
    instance: Instance,
    store: Uuid,
    #[serde(default)]
    released: bool,
}

/// Who asks for the lease, and where.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) buckets: Buckets,
    pub(super) instance: Instance,
    pub(super) store: Uuid,
}

/// A time in which this process is the one that writes.
#[derive(Debug)]
pub(super) struct Term {
    revision: u64,
    until: Uptime,
}

/// Whose history a store holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoreClaim {
    /// No log writer has been here yet.
    Nobody,
    /// This installation's.
    Ours,
    /// This installation's history is in the store with this id.
    Other(String),
}

/// Looks at which store holds this installation's history; claims nothing.
pub(crate) async fn store_claim(buckets: &Buckets, ours: Uuid) -> Result<StoreClaim, ReadError> {
    let entry = buckets.get_leader(Bucket::Cursors, STORE_KEY).await?;
    let Some(found) = entry.and_then(|entry| entry.value) else { return Ok(StoreClaim::Nobody) };
    Ok(if found.as_ref() == ours.to_string().as_bytes() {
        StoreClaim::Ours
    } else {
        StoreClaim::Other(shown(&found))
    })
}

/// An id that somebody may have written by hand.
fn shown(id: &[u8]) -> String {
    String::from_utf8_lossy(id).chars().take(64).collect()
}

impl Candidate {
    /// Makes sure that this installation's history is in our store; a store is named by the first
    /// that comes.
    pub(super) async fn claim_store(&self) -> Result<(), LogWriterError> {
        let ours = self.store.to_string();
        let swap = self.buckets.create(Bucket::Cursors, STORE_KEY, ours.clone(), None).await?;
        let Swap::Lost { current } = swap else { return Ok(()) };
        let found = current.and_then(|entry| entry.value).unwrap_or_default();
        if found.as_ref() == ours.as_bytes() {
            return Ok(());
        }
        let bucket = self.buckets.nats().names().bucket(Bucket::Cursors);
        Err(LogWriterError::OtherStore {
            found: shown(&found),
            ours: self.store,
            remove: format!("nats kv del {bucket} {STORE_KEY}"),
        })
    }

    /// Waits until this process is the one that writes; none after `shutdown`.
    pub(super) async fn elected(&self, shutdown: &CancellationToken) -> Option<Term> {
        let mut seen: Option<(u64, Instant)> = None;
        let mut ticks = interval(RENEW_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut said = false;
        loop {
            shutdown.run_until_cancelled(ticks.tick()).await?;
            match self.stand(&mut seen).await {
                Ok(Some(term)) => return Some(term),
                Ok(None) if !said => {
                    said = true;
                    tracing::info!(instance = %self.instance, "Another log writer is active; this one stands by.");
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "The log writer's lease could not be looked at.")
                }
            }
        }
    }

    /// Looks at the lease once, and takes it when it is free.
    async fn stand(&self, seen: &mut Option<(u64, Instant)>) -> Result<Option<Term>, BucketError> {
        let entry = self.buckets.get_leader(Bucket::Cursors, LEASE_KEY).await?;
        let revision = entry.as_ref().map_or(0, |entry| entry.revision);
        if !entry.as_ref().is_none_or(|entry| self.is_free(entry, seen)) {
            return Ok(None);
        }
        let asked = Uptime::now();
        let swap = self.buckets.put_if(Bucket::Cursors, LEASE_KEY, revision, self.holder(), None);
        Ok(match swap.await? {
            Swap::Done { revision } => Some(Term { revision, until: asked.plus(WRITES_FOR) }),
            Swap::Lost { .. } => None,
        })
    }

    fn is_free(&self, entry: &Entry, seen: &mut Option<(u64, Instant)>) -> bool {
        let holder = entry.value.as_ref().and_then(|v| serde_json::from_slice::<Holder>(v).ok());
        let Some(holder) = holder else { return true };
        if holder.released || holder.instance == self.instance {
            return true;
        }
        match *seen {
            Some((revision, since)) if revision == entry.revision => since.elapsed() >= TAKEN_AFTER,
            _ => {
                *seen = Some((entry.revision, Instant::now()));
                false
            }
        }
    }

    /// Keeps the lease until `over`, then releases it; cancels `lost` when it cannot be kept.
    pub(super) async fn keep(
        &self,
        mut term: Term,
        lost: &CancellationToken,
        over: &CancellationToken,
    ) {
        let mut ticks = interval(RENEW_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        while over.run_until_cancelled(ticks.tick()).await.is_some() {
            if !self.renew(&mut term).await {
                lost.cancel();
                return;
            }
        }
        self.release(term).await;
    }

    /// Renews once, or tries until the lease is over; false: it is lost.
    async fn renew(&self, term: &mut Term) -> bool {
        loop {
            let asked = Uptime::now();
            let put =
                self.buckets.put_if(Bucket::Cursors, LEASE_KEY, term.revision, self.holder(), None);
            let error = match timeout(term.until.left(), put).await {
                Ok(Ok(Swap::Done { revision })) => {
                    *term = Term { revision, until: asked.plus(WRITES_FOR) };
                    return true;
                }
                Ok(Ok(Swap::Lost { current })) => {
                    tracing::warn!(instance = %self.instance, ?current, "Another log writer has taken over; this one stops.");
                    return false;
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer".into(),
            };
            if term.until.left().is_zero() {
                tracing::warn!(instance = %self.instance, error, "The log writer could not renew its lease; it stops writing.");
                return false;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    async fn release(&self, term: Term) {
        let value = self.value(true);
        let put = self.buckets.put_if(Bucket::Cursors, LEASE_KEY, term.revision, value, None);
        if !matches!(timeout(Duration::from_secs(2), put).await, Ok(Ok(Swap::Done { .. }))) {
            tracing::debug!("The log writer's lease was not released; it lapses.");
        }
    }

    fn holder(&self) -> Vec<u8> {
        self.value(false)
    }

    fn value(&self, released: bool) -> Vec<u8> {
        let (instance, store) = (self.instance.clone(), self.store);
        serde_json::to_vec(&Holder { v: 1, instance, store, released }).unwrap_or_default()
    }
}
