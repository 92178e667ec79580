//! One attempt of one shard: from its delivery to its end.
//!
//! *Invariant: whatever a handler does, the attempt ends*: by its return, its panic, its timeout,
//! a cancel, or the loss of its lease. *Invariant: two holders of one lease never run at once*:
//! when the lease ends the handler's future is dropped, and nothing is reported.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use taskparty_common::dispatch::{Dispatch, Started};
use taskparty_nats::consume::Received;
use taskparty_nats::fail_point;
use taskparty_nats::lease::{Delivery, Lease, Uptime};
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::Instrument;

use crate::context::{Context, ContextParts};
use crate::handler::{ErasedHandler, Failure, Returned, TidyUp};
use crate::live::{CancelRequest, Entered, Place};
use crate::logs::Writer;
use crate::node::Node;
use crate::pinned;
use crate::progress::{self, ProgressReader};
use crate::report::{Attempt, Ending, Reporter, Times};
use crate::settle;

/// A handler that runs longer than this is announced.
const STARTED_AFTER: Duration = Duration::from_millis(100);

/// The lease of a dispatch that cannot be read, or that names none.
const LEASE: Duration = Duration::from_secs(30);

/// By how much a lease is left early at most.
const LONGEST_MARGIN: Duration = Duration::from_secs(1);

/// How long a handler's code may take to let go, once its future is dropped, before its result says
/// that it does not.
const LET_GO: Duration = Duration::from_secs(1);

/// The shortest lease that can be kept.
const SHORTEST_LEASE: Duration = Duration::from_secs(1);

/// Where an attempt has its slot from.
#[derive(Debug)]
pub(crate) enum Slot {
    /// It was kept for it.
    Kept(OwnedSemaphorePermit),
    /// It is still to come: the work is for this instance, whether there is room or not. The permit is
    /// the work's place among those that wait.
    Awaited(OwnedSemaphorePermit),
}

/// Sees one delivery through. `slot` is given back when the handler's future is gone and the
/// delivery is settled, or nobody confirms its ack.
///
/// What it does is boxed: a future is moved whole on its way into its task, five times or so, and this
/// one weighs 3.5 KB, twice that unboxed.
pub(crate) async fn attempt(node: Arc<Node>, received: Received, slot: OwnedSemaphorePermit) {
    let abandoned = node.phase.abandoned.clone();
    let seen_through = Box::pin(see_through(node, received, Slot::Kept(slot)));
    abandoned.run_until_cancelled(seen_through).await;
}

/// Sees one delivery through that waits for its slot, in `place`.
pub(crate) async fn pinned(node: Arc<Node>, received: Received, place: OwnedSemaphorePermit) {
    let abandoned = node.phase.abandoned.clone();
    let seen_through = Box::pin(see_through(node, received, Slot::Awaited(place)));
    abandoned.run_until_cancelled(seen_through).await;
}

async fn see_through(node: Arc<Node>, received: Received, slot: Slot) {
    let Received { delivery, message, at } = received;
    let dispatch: Dispatch = match serde_json::from_slice(&message.payload) {
        Ok(dispatch) => dispatch,
        Err(error) => {
            return unreadable(&node, &delivery, at, (&message.payload, &error), slot).await;
        }
    };
    drop(message);
    let lease = keep(&node, &delivery, Duration::from_millis(dispatch.lease_ms), at);
    if lease.is_lost() {
        tracing::warn!(run = %dispatch.run, job = %dispatch.job, shard = dispatch.shard.index,
            "Work came when its lease may have ended, as after a standstill of this process: it is left to whoever gets it next.");
        return;
    }
    let slot = match slot {
        Slot::Kept(slot) => slot,
        Slot::Awaited(place) => match pinned::slot(&node, &dispatch.handler, &lease, place).await {
            Some(slot) => slot,
            None if lease.is_lost() => return,
            None => return settle::hand_back(&node, &delivery).await,
        },
    };
    let now = node.clock.now();
    let reporter = Reporter { instance: &node.instance, delivery: delivery.delivered };
    let desk = node.handlers.get(&dispatch.handler);
    let attempt = Attempt::from(&dispatch);
    let function = match (refusal(&dispatch, delivery.delivered, now), desk) {
        (None, Some(desk)) => desk.function.clone(),
        (refusal, _) => {
            let ending = refusal.unwrap_or_else(|| Ending::unknown_handler(&dispatch));
            let record = attempt.record(ending, reporter, Times { started: None, finished: now });
            return settle::report(&node, &delivery, &lease, record, slot).await;
        }
    };
    let place = match node.live.enter(&dispatch, delivery.delivered, slot) {
        Entered::Begun(place) => place,
        Entered::InHand => {
            tracing::warn!(run = %attempt.run, job = %attempt.job, shard = attempt.shard.index, delivery = delivery.delivered,
                "NATS sent a dispatch again that is in hand here; it is left to whoever has it.");
            return;
        }
        Entered::Reported => {
            tracing::warn!(run = %attempt.run, job = %attempt.job, shard = attempt.shard.index, delivery = delivery.delivered,
                "NATS sent a dispatch again whose result is stored; it is acked.");
            return settle::ack(&node, &delivery, attempt.run, ()).await;
        }
    };
    let place = Arc::new(place);
    let span = tracing::info_span!(
        "attempt", job = %attempt.job, run = %attempt.run, shard = attempt.shard.index, attempt = attempt.attempt,
    );
    let timeout_ms = dispatch.timeout_ms;
    let holder = Holder {
        node: &node,
        delivery: &delivery,
        lease: &lease,
        attempt: &attempt,
        started: now,
        timeout_ms,
    };
    let end = holder.hold(function, dispatch, &place).instrument(span).await;
    match end {
        End::Ended(ending) => {
            let times = Times { started: Some(now), finished: node.clock.now() };
            let record = attempt.clone().record(ending, reporter, times);
            settle::report(&node, &delivery, &lease, record, place).await;
        }
        End::LeaseLost => {
            tracing::warn!(run = %attempt.run, job = %attempt.job, shard = attempt.shard.index,
                "A lease was lost: the handler was stopped, and another executor gets the work.");
        }
        End::HandedBack => settle::hand_back(&node, &delivery).await,
    }
}

/// Keeps the lease, and counts it as a little shorter than the server does: it began a little
/// before the message came, and a busy machine is late to drop a handler.
fn keep(node: &Node, delivery: &Delivery, length: Duration, received: Uptime) -> Lease {
    let length = if length.is_zero() { LEASE } else { length.max(SHORTEST_LEASE) };
    let length = length - (length / 20).min(LONGEST_MARGIN);
    node.renewer.keep_since(delivery.clone(), length, received)
}

/// Why a dispatch is not started at all, if so.
fn refusal(dispatch: &Dispatch, delivered: u64, now: DateTime<Utc>) -> Option<Ending> {
    if delivered > dispatch.max_deliveries {
        return Some(Ending::lost(delivered, dispatch.max_deliveries));
    }
    (delivered == 1 && now > dispatch.start_by).then(|| Ending::too_late(dispatch.start_by, now))
}

/// A dispatch that cannot be read is a result where it says of what, and else is removed.
async fn unreadable(
    node: &Node,
    delivery: &Delivery,
    at: Uptime,
    (payload, error): (&[u8], &serde_json::Error),
    slot: Slot,
) {
    let Ok(attempt) = serde_json::from_slice::<Attempt>(payload) else {
        tracing::error!(stream = %delivery.stream, seq = delivery.stream_seq, %error,
            "A dispatch cannot be read and was removed; does something else publish to its subject?");
        return settle::discard(node, delivery).await;
    };
    let lease = keep(node, delivery, LEASE, at);
    let reporter = Reporter { instance: &node.instance, delivery: delivery.delivered };
    let times = Times { started: None, finished: node.clock.now() };
    let record = attempt.record(Ending::undecodable(error), reporter, times);
    settle::report(node, delivery, &lease, record, slot).await;
}

/// How holding a delivery came to its end.
enum End {
    /// With something to report.
    Ended(Ending),
    /// Somebody else may have it by now.
    LeaseLost,
    /// The executor shuts down; somebody else is to have it.
    HandedBack,
}

/// How a handler is stopped.
#[derive(Clone, Copy)]
struct Stop<'a> {
    /// Tells it.
    token: &'a CancellationToken,
    times: TidyUp,
    deadline: Option<Instant>,
}

/// One started attempt.
struct Holder<'a> {
    node: &'a Node,
    delivery: &'a Delivery,
    lease: &'a Lease,
    attempt: &'a Attempt,
    started: DateTime<Utc>,
    timeout_ms: Option<u64>,
}

impl Holder<'_> {
    /// Calls the handler and waits for the end of it, whichever comes first. The attempt's `place`
    /// is to be kept until the delivery is settled, or nobody confirms its ack.
    async fn hold(
        &self,
        function: ErasedHandler,
        mut dispatch: Dispatch,
        place: &Arc<Place>,
    ) -> End {
        let cancel = place.cancel.clone();
        let params =
            std::mem::replace(&mut dispatch.params, serde_json::value::RawValue::NULL.to_owned());
        let (sender, mut progress) = progress::channel();
        let stop = CancellationToken::new();
        let context = Context::new(ContextParts {
            delivery: self.delivery.delivered,
            instance: self.node.instance.clone(),
            started: self.started,
            stop: stop.clone(),
            log: self.node.logs.of(Writer {
                job: dispatch.job.clone(),
                run: dispatch.run,
                shard: dispatch.shard.index,
                attempt: dispatch.attempt,
            }),
            progress: sender,
            dispatch,
        });
        let deadline = context.deadline_instant();
        let times = function.tidy_up;
        fail_point!("executor.before_handler");
        // The handler has a task of its own: a panic ends that task alone, and a handler that
        // blocks its thread does not hold up the lease. Dropping the handle drops the future.
        let kept = place.clone();
        let call = async move {
            let returned = function.call(context, params).await;
            drop(kept);
            returned
        };
        let mut task = AbortOnDropHandle::new(tokio::spawn(call.in_current_span()));
        let end =
            self.watch(&mut task, Stop { token: &stop, times, deadline }, &cancel, &mut progress);
        let end = end.await;
        stop.cancel();
        drop(task);
        if let Some(last) = progress.unsaid(self.attempt) {
            self.node.tell(self.node.nats.names().progress(&self.node.app), &last);
        }
        end
    }

    async fn watch(
        &self,
        task: &mut AbortOnDropHandle<Returned>,
        stop: Stop<'_>,
        cancel: &CancelRequest,
        progress: &mut ProgressReader,
    ) -> End {
        let announce = Instant::now() + STARTED_AFTER;
        let mut announced = false;
        loop {
            tokio::select! {
                biased;
                () = self.lease.lost() => return End::LeaseLost,
                returned = &mut *task => return ended(returned),
                () = sleep_until(stop.deadline.unwrap_or(announce)), if stop.deadline.is_some() => {
                    let ending = Ending::timed_out(self.timeout_ms.unwrap_or_default());
                    return self.tidy_up(task, stop, stop.times.timeout, End::Ended(ending)).await;
                }
                by = cancel.asked() => {
                    let end = End::Ended(Ending::cancelled(by));
                    return self.tidy_up(task, stop, stop.times.asked, end).await;
                }
                () = self.node.phase.drained.cancelled() => {
                    return self.tidy_up(task, stop, stop.times.asked, End::HandedBack).await;
                }
                () = sleep_until(announce), if !announced => {
                    announced = true;
                    self.announce();
                }
                progress = progress.due(self.attempt) => {
                    self.node.tell(self.node.nats.names().progress(&self.node.app), &progress);
                }
            }
        }
    }

    /// Asks the handler to stop and gives it a moment, in which the lease must still hold. What it
    /// returns now does not count: it may be half of the work. Only that it had to be killed does.
    async fn tidy_up(
        &self,
        task: &mut AbortOnDropHandle<Returned>,
        stop: Stop<'_>,
        time: Duration,
        end: End,
    ) -> End {
        stop.token.cancel();
        tokio::select! {
            biased;
            () = self.lease.lost() => return End::LeaseLost,
            returned = &mut *task => return match (end, returned) {
                (End::Ended(ending), Ok(Err(Failure::Killed(how)))) => End::Ended(ending.and(&how)),
                (end, _) => end,
            },
            () = sleep(time) => {}
        }
        let End::Ended(ending) = end else { return end };
        // Code that blocks its thread cannot be dropped. It keeps its slot; that it is still at work
        // must be known to whoever stopped it.
        task.abort();
        tokio::select! {
            biased;
            () = self.lease.lost() => End::LeaseLost,
            _ = task => End::Ended(ending),
            () = sleep(LET_GO) => End::Ended(ending.and_goes_on()),
        }
    }

    fn announce(&self) {
        let started = Started {
            v: 1,
            run: self.attempt.run,
            job: self.attempt.job.clone(),
            shard: self.attempt.shard.index,
            attempt: self.attempt.attempt,
            delivery: self.delivery.delivered,
            instance: self.node.instance.clone(),
            started_at: self.started,
        };
        self.node.tell(self.node.nats.names().started(&self.node.app), &started);
    }
}

fn ended(returned: Result<Returned, JoinError>) -> End {
    match returned.map_err(JoinError::try_into_panic) {
        Ok(returned) => End::Ended(Ending::returned(returned)),
        Err(Ok(panic)) => End::Ended(Ending::panicked(panic_text(panic.as_ref()))),
        // The runtime shuts down: as a crash.
        Err(Err(_)) => End::LeaseLost,
    }
}

fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("(a panic without a text)")
}
