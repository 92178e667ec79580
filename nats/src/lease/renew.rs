//! Keeping leases while work goes on.
//!
//! Most work ends long before its lease is to be renewed. So a lease costs a row of a table that one
//! task looks at; only one that is renewed has a task of its own, from then on.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{AckError, Answer, Delivery, Uptime, once};
use crate::publish::Publisher;

/// Renews leases by `+WPI` at a third of their length. Cheap to clone; its tasks end when all its clones
/// and leases are gone.
#[derive(Debug, Clone)]
pub struct Renewer {
    shared: Arc<Shared>,
    _ends_tasks: Arc<DropGuard>,
}

/// A lease that is kept for as long as this value lives.
///
/// Dropping it stops the renewals, but for one that is under way; the message itself must then be acked
/// or handed back.
#[derive(Debug)]
pub struct Lease {
    /// When it ends; renewals set it.
    end: Arc<Mutex<Uptime>>,
    renewer: Renewer,
    /// Its row, as long as it was not renewed.
    key: Key,
}

/// When a lease is to be renewed first, and its number.
type Key = (Uptime, u64);

#[derive(Debug)]
struct Shared {
    publisher: Publisher,
    stop: CancellationToken,
    young: Mutex<Young>,
    /// A lease is to be renewed before the task would look.
    sooner: Notify,
}

/// Leases that were not renewed yet.
#[derive(Debug, Default)]
struct Young {
    leases: BTreeMap<Key, Kept>,
    last_number: u64,
    /// When the task looks next; none: when it is told to.
    looks_at: Option<Uptime>,
}

/// A lease as whoever renews it knows it.
#[derive(Debug)]
struct Kept {
    delivery: Delivery,
    length: Duration,
    /// Gone when the lease was dropped: then nothing renews it.
    end: Weak<Mutex<Uptime>>,
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Renewer {
    /// One that renews through `publisher`.
    ///
    /// `shutdown` ends the renewals: give it a token that outlasts the drain time, so that handlers
    /// which still run keep their leases.
    pub fn start(publisher: Publisher, shutdown: &CancellationToken) -> Self {
        let stop = shutdown.child_token();
        let shared = Arc::new(Shared {
            publisher,
            stop: stop.clone(),
            young: Mutex::default(),
            sooner: Notify::new(),
        });
        let looking = shared.clone();
        tokio::spawn(async move { looking.stop.run_until_cancelled(looking.look()).await });
        Self { shared, _ends_tasks: Arc::new(stop.drop_guard()) }
    }

    /// Keeps the lease of `delivery`, of `length` (the consumer's ack-wait), received just now.
    pub fn keep(&self, delivery: Delivery, length: Duration) -> Lease {
        self.keep_since(delivery, length, Uptime::now())
    }

    /// As [`Renewer::keep`], for a message that was not sent before `received`. Lost from the start
    /// when that is longer ago than the lease.
    pub fn keep_since(&self, delivery: Delivery, length: Duration, received: Uptime) -> Lease {
        let ends = received.plus(length);
        let end = Arc::new(Mutex::new(ends));
        // Some of it may be over already.
        let wait = period(length).min(ends.left() / 3);
        let mut young = lock(&self.shared.young);
        young.last_number += 1;
        let key = (Uptime::now().plus(wait), young.last_number);
        young.leases.insert(key, Kept { delivery, length, end: Arc::downgrade(&end) });
        if young.looks_at.is_none_or(|at| key.0 < at) {
            self.shared.sooner.notify_one();
        }
        drop(young);
        Lease { end, renewer: self.clone(), key }
    }
}

impl Lease {
    /// When the lease ends unless it is renewed.
    pub fn ends(&self) -> Uptime {
        *lock(&self.end)
    }

    /// Whether the lease has ended.
    pub fn is_lost(&self) -> bool {
        self.ends().left().is_zero()
    }

    /// Waits until the lease has ended: stop at once and report nothing (decision 22).
    pub async fn lost(&self) {
        loop {
            let end = self.ends();
            end.reached().await;
            if self.ends() == end {
                return;
            }
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        lock(&self.renewer.shared.young).leases.remove(&self.key);
    }
}

impl Shared {
    /// Waits for leases that are to be renewed, and gives each a task.
    async fn look(self: &Arc<Self>) {
        loop {
            let next = self.renew_due();
            let sooner = self.sooner.notified();
            match next {
                Some(at) => tokio::select! {
                    () = at.reached() => {}
                    () = sooner => {}
                },
                None => sooner.await,
            }
        }
    }

    /// Gives each lease that is due a task that renews it; returns when the next one is due.
    fn renew_due(self: &Arc<Self>) -> Option<Uptime> {
        let now = Uptime::now();
        let mut young = lock(&self.young);
        while let Some(first) = young.leases.first_entry().filter(|first| first.key().0 <= now) {
            let (renewer, kept) = (self.clone(), first.remove());
            tokio::spawn(
                async move { renewer.stop.run_until_cancelled(renewer.renew(kept)).await },
            );
        }
        young.looks_at = young.leases.first_key_value().map(|((at, _), _)| *at);
        young.looks_at
    }

    /// Renews a lease for as long as it lives.
    async fn renew(&self, Kept { delivery, length, end }: Kept) {
        let period = period(length);
        while let Some(ends) = end.upgrade().map(|end| *lock(&end)) {
            if ends.left().is_zero() {
                return;
            }
            let sent = Uptime::now();
            let renewed = once(&self.publisher, &delivery, Answer::Progress, period).await;
            let wait = match renewed {
                Ok(()) => {
                    let Some(end) = end.upgrade() else { return };
                    let mut end = lock(&end);
                    // A lease that has ended stays ended: another may hold the message by now.
                    if end.left().is_zero() {
                        return;
                    }
                    *end = sent.plus(length);
                    period
                }
                Err(error) => {
                    let stream = &delivery.stream;
                    tracing::warn!(%stream, seq = delivery.stream_seq, %error, "A lease was not renewed; trying again.");
                    match error {
                        AckError::Unconfirmed(_) => (period / 10).min(Duration::from_millis(500)),
                        AckError::Refused(_) => period,
                    }
                }
            };
            Uptime::now().plus(wait).reached().await;
        }
    }
}

/// How often a lease of `length` is renewed.
fn period(length: Duration) -> Duration {
    (length / 3).max(Duration::from_millis(50))
}
