//! From RESULTS into batches, and acks for what is written.
//!
//! *Invariant: a message is acked only after its transaction has committed.* While SQL is down the
//! batch is held, its messages kept from redelivery, and nothing more is asked for: what waits,
//! waits in NATS. An ack that gets lost brings the message again, which changes nothing.

use std::time::Duration;

use bytes::Bytes;
use taskparty_nats::consume::{Pull, PullConfig, Received};
use taskparty_nats::fail_point;
use taskparty_nats::subject::LOG_WRITER;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Parts;
use super::batch::{Batch, Written};
use super::event::{self, Line};
use super::outage::Outage;
use super::transition::Event;
use crate::store::SetAside;

/// How long an idle wait for a message lasts.
const IDLE: Duration = Duration::from_secs(1);

/// Bytes of messages that may be on this side at once, about.
const BYTES: usize = 16 << 20;

/// The fewest messages that are asked for, however large they are.
const FEWEST: usize = 16;

/// Pulls, writes and acks until `stop`.
pub(super) async fn run(parts: &Parts, stop: &CancellationToken) {
    let nats = parts.buckets.nats();
    let stream = nats.names().results_stream();
    let mut pull = Pull::new(nats.js(), stream, LOG_WRITER, PullConfig::default());
    let mut room = parts.config.batch_events;
    let given_up = loop {
        let mut batch = Gathered::default();
        let open = stop.run_until_cancelled(gather(parts, &mut pull, room, &mut batch)).await;
        if open != Some(Open::Yes) {
            if open.is_some() {
                tracing::error!("The connection to NATS is closed; the log writer ends.");
                stop.cancel();
            }
            break batch.messages;
        }
        if batch.messages.is_empty() {
            continue;
        }
        room = room_for(&batch, parts.config.batch_events);
        if let Err(given_up) = write(parts, batch, stop).await {
            break given_up;
        }
    };
    // Else whoever writes next waits for them as long as for a writer that died. Only when nothing is
    // asked for any more: they would come back to this one, which is gone.
    let arrived = pull.stop().await;
    hand_back(parts, &given_up).await;
    hand_back(parts, &arrived).await;
}

/// Messages and what they say.
#[derive(Default)]
struct Gathered {
    messages: Vec<Received>,
    lines: Vec<Line>,
    aside: Vec<SetAside>,
}

/// Whether the connection is.
#[derive(Debug, PartialEq, Eq)]
enum Open {
    Yes,
    No,
}

/// Waits for a message, and takes with it what comes in the next few milliseconds. May be dropped
/// at any point: what was taken is in `batch`.
async fn gather(parts: &Parts, pull: &mut Pull, room: usize, batch: &mut Gathered) -> Open {
    let names = parts.buckets.nats().names();
    let mut bytes = 0;
    let mut wait = IDLE;
    let mut end = None;
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
                &mut batch.lines,
                &mut batch.aside,
            );
            batch.messages.push(received);
        }
        if batch.messages.is_empty() {
            return Open::Yes;
        }
        let end = *end.get_or_insert_with(|| Instant::now() + parts.config.batch_wait);
        wait = end.saturating_duration_since(Instant::now());
        let full = batch.lines.len() >= parts.config.batch_events || bytes >= BYTES / 2;
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
    let by_events = events / (batch.lines.len() / messages).max(1);
    by_size.min(by_events).clamp(FEWEST, events.max(FEWEST))
}

/// Writes a batch, however long SQL takes to work again; its messages when it had to be given up.
async fn write(
    parts: &Parts,
    batch: Gathered,
    stop: &CancellationToken,
) -> Result<(), Vec<Received>> {
    let Gathered { messages, lines, aside } = batch;
    let asked = lines.iter().any(|line| matches!(line.event, Event::Asked(_)));
    let batch = Batch::new(lines, aside);
    let mut outage = Outage::default();
    let mut kept_at = Instant::now();
    let written = loop {
        let error = match parts.writer.write(&batch).await {
            Ok(written) => break written,
            Err(error) => error,
        };
        let pause = outage.met(&error, parts);
        if stop.run_until_cancelled(tokio::time::sleep(pause)).await.is_none() {
            return Err(messages);
        }
        if kept_at.elapsed() >= parts.config.lease / 3 {
            kept_at = Instant::now();
            for received in &messages {
                answer(parts, received, b"+WPI").await;
            }
        }
    };
    outage.over(parts);
    fail_point!("log_writer.after_commit");
    for received in &messages {
        answer(parts, received, b"+ACK").await;
    }
    if asked {
        parts.asked.notify_one();
    }
    note(parts, &messages, &written);
    Ok(())
}

fn note(parts: &Parts, messages: &[Received], written: &Written) {
    if written.decisions > 0 {
        parts.decided.notify_one();
    }
    let now = parts.clock.now();
    let pending = messages.last().map_or(0, |received| received.delivery.pending);
    parts.status.update(|status| {
        status.pending = pending;
        status.batches += 1;
        status.events += written.events as u64;
        status.set_aside += written.set_aside as u64;
        status.last_batch_at = Some(now);
    });
}

/// Has these delivered again, at once.
async fn hand_back(parts: &Parts, messages: &[Received]) {
    for received in messages {
        answer(parts, received, b"-NAK").await;
    }
}

/// Answers a delivery without waiting: the message comes again when the answer is lost.
async fn answer(parts: &Parts, received: &Received, body: &'static [u8]) {
    let client = parts.buckets.nats().client();
    let reply = received.delivery.reply.clone();
    if let Err(error) = client.publish(reply, Bytes::from_static(body)).await {
        tracing::debug!(%error, "An ack was not sent; the message comes again.");
    }
}
