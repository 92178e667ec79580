//! From RESULTS into batches, and acks for what is written.
//!
//! *Invariant: a message is acked only after its transaction has committed.* While SQL is down the
//! batch is held, its messages kept from redelivery, and nothing more is asked for: what waits,
//! waits in NATS. An ack that gets lost brings the message again, which changes nothing.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use taskparty_nats::consume::{Pull, PullConfig, Received};
use taskparty_nats::fail_point;
use taskparty_nats::subject::LOG_WRITER;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Parts;
use super::batch::{Batch, Written};
use super::event;
use super::halves::{Arrived, Halves};
use super::outage::Outage;
use super::transition::Event;
use crate::store::SetAside;

/// How long an idle wait for a message lasts.
const IDLE: Duration = Duration::from_secs(1);

/// Bytes of messages that may be on this side at once, about.
const BYTES: usize = 16 << 20;

/// How often what is held is kept from redelivery: the consumer's ack-wait is 30 s.
const KEEP: Duration = Duration::from_secs(10);

/// The fewest messages that are asked for, however large they are.
const FEWEST: usize = 16;

/// Pulls, writes and acks until `stop`.
pub(super) async fn run(parts: &Parts, stop: &CancellationToken) {
    let nats = parts.buckets.nats();
    let stream = nats.names().results_stream();
    let mut pull = Pull::new(nats.js(), stream, LOG_WRITER, PullConfig::default());
    let mut room = parts.config.batch_events;
    let mut halves = Halves::default();
    let mut given_up = loop {
        let mut batch = Gathered::default();
        let gathering = gather(parts, &mut pull, room, halves.due(), &mut batch);
        let open = stop.run_until_cancelled(gathering).await;
        if open != Some(Open::Yes) {
            if open.is_some() {
                tracing::error!("The connection to NATS is closed; the log writer ends.");
                stop.cancel();
            }
            break batch.messages;
        }
        if !batch.messages.is_empty() {
            room = room_for(&batch, parts.config.batch_events);
        }
        if let Err(given_up) = write(parts, batch, &mut halves, stop).await {
            break given_up;
        }
    };
    given_up.extend(halves.take_all().into_iter().map(|part| part.message));
    // Else whoever writes next waits for them as long as for a writer that died. Only when nothing is
    // asked for any more: they would come back to this one, which is gone.
    let arrived = pull.stop().await;
    for received in given_up.into_iter().filter_map(Arc::into_inner).chain(arrived) {
        answer(parts, &received, b"-NAK").await;
    }
}

/// Messages and what they say. Each is held by itself and by its lines.
#[derive(Default)]
struct Gathered {
    messages: Vec<Arc<Received>>,
    arrived: Vec<Arrived<Received>>,
    aside: Vec<SetAside>,
}

/// Whether the connection is.
#[derive(Debug, PartialEq, Eq)]
enum Open {
    Yes,
    No,
}

/// Waits for a message, until `due` at most, and takes with it what comes in the next few
/// milliseconds. May be dropped at any point: what was taken is in `batch`.
async fn gather(
    parts: &Parts,
    pull: &mut Pull,
    room: usize,
    due: Option<Instant>,
    batch: &mut Gathered,
) -> Open {
    let names = parts.buckets.nats().names();
    let mut bytes = 0;
    let mut wait = due.map_or(IDLE, |due| due.saturating_duration_since(Instant::now()));
    let mut end = None;
    let mut lines = Vec::new();
    loop {
        let Ok(received) = pull.next_batch(room, wait).await else { return Open::No };
        for received in received {
            let payload = &received.message.payload;
            bytes += payload.len();
            event::read(
                names,
                &received.message.subject,
                received.delivery.stream_seq,
                received.delivery.stored_at,
                payload,
                &mut lines,
                &mut batch.aside,
            );
            let (bytes, message, at) = (payload.len(), Arc::new(received), Instant::now());
            let arrived = |line| Arrived { line, message: message.clone(), bytes, at };
            batch.arrived.extend(lines.drain(..).map(arrived));
            batch.messages.push(message);
        }
        if batch.messages.is_empty() {
            return Open::Yes;
        }
        let end = *end.get_or_insert_with(|| Instant::now() + parts.config.batch_wait);
        wait = end.saturating_duration_since(Instant::now());
        let full = batch.arrived.len() >= parts.config.batch_events || bytes >= BYTES / 2;
        if full || wait.is_zero() {
            return Open::Yes;
        }
    }
}

/// How many messages to ask for next, when they are as large and as full as these.
fn room_for(batch: &Gathered, events: usize) -> usize {
    let messages = batch.messages.len().max(1);
    let bytes: usize = batch.messages.iter().map(|received| received.message.payload.len()).sum();
    let by_size = BYTES / 2 / (bytes / messages).max(1);
    let by_events = events / (batch.arrived.len() / messages).max(1);
    by_size.min(by_events).clamp(FEWEST, events.max(FEWEST))
}

/// Writes what is whole of a batch and of `halves`, and acks it, however long SQL takes to work again.
///
/// # Errors
/// The messages that it was to write, when `stop` came during an outage.
async fn write(
    parts: &Parts,
    batch: Gathered,
    halves: &mut Halves<Received>,
    stop: &CancellationToken,
) -> Result<(), Vec<Arc<Received>>> {
    let Gathered { mut messages, arrived: new, aside } = batch;
    let pending = messages.last().map(|received| received.delivery.pending);
    let whole = {
        let unfinished = parts.writer.unfinished();
        let is_kept = |run| unfinished.as_ref().is_some_and(|unfinished| unfinished.has(&run));
        halves.admit(new, Instant::now(), is_kept)
    };
    let (lines, theirs): (Vec<_>, Vec<_>) =
        whole.into_iter().map(|part| (part.line, part.message)).unzip();
    messages.extend(theirs);
    if let Some(pending) = pending {
        parts.status.update(|status| status.pending = pending);
    }
    let asked = lines.iter().any(|line| matches!(line.event, Event::Asked(_)));
    let batch = Batch::new(lines, aside);
    let mut outage = Outage::default();
    let mut kept_at = Instant::now();
    let written = loop {
        if batch.is_empty() {
            break None;
        }
        let error = match parts.writer.write(&batch).await {
            Ok(written) => break Some(written),
            Err(error) => error,
        };
        let pause = outage.met(&error, parts);
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Err(messages);
        }
        if kept_at.elapsed() >= KEEP {
            kept_at = Instant::now();
            keep_from_redelivery(parts, halves.messages().chain(&messages).collect()).await;
        }
    };
    outage.over(parts);
    fail_point!("log_writer.after_commit");
    // Those of which no line waits any more: nobody else has them.
    for received in messages.into_iter().filter_map(Arc::into_inner) {
        answer(parts, &received, b"+ACK").await;
    }
    if asked {
        parts.asked.notify_one();
    }
    if let Some(written) = written {
        note(parts, &written);
    }
    Ok(())
}

/// Begins the leases of these anew; some may be there more than once.
async fn keep_from_redelivery(parts: &Parts, mut held: Vec<&Arc<Received>>) {
    held.sort_unstable_by_key(|received| received.delivery.stream_seq);
    held.dedup_by_key(|received| received.delivery.stream_seq);
    for received in held {
        answer(parts, received, b"+WPI").await;
    }
}

fn note(parts: &Parts, written: &Written) {
    if written.decisions > 0 {
        parts.decided.notify_one();
    }
    let now = parts.clock.now();
    parts.status.update(|status| {
        status.batches += 1;
        status.events += written.events as u64;
        status.set_aside += written.set_aside as u64;
        status.last_batch_at = Some(now);
    });
}

/// Answers a delivery without waiting: the message comes again when the answer is lost.
async fn answer(parts: &Parts, received: &Received, body: &'static [u8]) {
    let client = parts.buckets.nats().client();
    let reply = received.delivery.reply.clone();
    if let Err(error) = client.publish(reply, Bytes::from_static(body)).await {
        tracing::debug!(%error, "An ack was not sent; the message comes again.");
    }
}
