//! Keeping a lease while work goes on.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{AckError, Answer, Delivery, Uptime, once};
use crate::publish::Publisher;

/// A lease that is kept by `+WPI` at a third of its length, for as long as this value lives.
///
/// Dropping it stops the renewals; the message itself must then be acked or handed back.
#[derive(Debug)]
pub struct Lease {
    end: watch::Receiver<Uptime>,
    _ends_keeper: DropGuard,
}

impl Lease {
    /// Keeps the lease of `delivery`, of `length` (the consumer's ack-wait), received just now.
    ///
    /// `shutdown` ends the renewals as dropping does: give it a token that outlasts the drain
    /// time, so that handlers which still run keep their leases.
    pub fn keep(
        publisher: Publisher,
        delivery: Delivery,
        length: Duration,
        shutdown: &CancellationToken,
    ) -> Self {
        Self::keep_since(publisher, delivery, length, Uptime::now(), shutdown)
    }

    /// As [`Lease::keep`], for a message that was not sent before `received`. Lost from the start
    /// when that is longer ago than the lease.
    pub fn keep_since(
        publisher: Publisher,
        delivery: Delivery,
        length: Duration,
        received: Uptime,
        shutdown: &CancellationToken,
    ) -> Self {
        let (sender, end) = watch::channel(received.plus(length));
        let stop = shutdown.child_token();
        let keeper = renew(publisher, delivery, length, sender);
        let stopped = stop.clone();
        tokio::spawn(async move { stopped.run_until_cancelled(keeper).await });
        Self { end, _ends_keeper: stop.drop_guard() }
    }

    /// When the lease ends unless it is renewed.
    pub fn ends(&self) -> Uptime {
        *self.end.borrow()
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

async fn renew(
    publisher: Publisher,
    delivery: Delivery,
    length: Duration,
    end: watch::Sender<Uptime>,
) {
    let period = (length / 3).max(Duration::from_millis(50));
    // Some of it may be over already.
    let mut wait = period.min(end.borrow().left() / 3);
    loop {
        Uptime::now().plus(wait).reached().await;
        let sent = Uptime::now();
        // On the heap, so that a lease which is never renewed is small: most are not.
        match Box::pin(once(&publisher, &delivery, Answer::Progress, period)).await {
            Ok(()) => {
                // A lease that has ended stays ended: another may hold the message by now.
                let kept = end.send_if_modified(|end| {
                    let alive = !end.left().is_zero();
                    if alive {
                        *end = sent.plus(length);
                    }
                    alive
                });
                if !kept {
                    return;
                }
                wait = period;
            }
            Err(error) => {
                if end.borrow().left().is_zero() {
                    return;
                }
                let stream = &delivery.stream;
                tracing::warn!(%stream, seq = delivery.stream_seq, %error, "A lease was not renewed; trying again.");
                wait = match error {
                    AckError::Unconfirmed(_) => (period / 10).min(Duration::from_millis(500)),
                    AckError::Refused(_) => period,
                };
            }
        }
    }
}
