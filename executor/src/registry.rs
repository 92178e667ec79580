//! The executor's own entry in the registry, and its answers to probes.
//!
//! The entry is put every 5 s, and the bucket drops one that is not renewed for 15 s. *Invariant:
//! the key is deleted last*, when nothing of the executor is left to find.

use std::sync::Arc;
use std::time::Duration;

use async_nats::Subscriber;
use futures::StreamExt;
use serde::{Deserialize, Serialize};
use taskparty_common::dispatch::Priorities;
use taskparty_common::name::{Handler, JobId};
use taskparty_nats::publish::{Draft, PublishError};
use taskparty_nats::subject::Bucket;
use tokio_util::sync::CancellationToken;

use crate::node::{Desk, Node};

/// How often the entry is put.
const PERIOD: Duration = Duration::from_secs(5);

/// How long one put, and the deletion, are tried.
const DEADLINE: Duration = Duration::from_secs(4);

/// Keeps the entry until `end`, then deletes it.
pub(crate) async fn keep(node: Arc<Node>, end: CancellationToken) {
    let mut failing = false;
    loop {
        let was_draining = node.phase.draining.is_cancelled();
        match put(&node).await {
            Ok(()) => failing = false,
            Err(error) if failing => tracing::debug!(%error, "The registry entry was not put."),
            Err(error) => {
                failing = true;
                tracing::warn!(%error, "The registry entry was not put; trying again every 5 s. \
                    Does the scheduler run? It makes the bucket.");
            }
        }
        tokio::select! {
            () = tokio::time::sleep(PERIOD) => {}
            () = node.changed.notified() => {}
            () = node.phase.draining.cancelled(), if !was_draining => {}
            () = end.cancelled() => break,
        }
    }
    if let Err(error) = remove(&node).await {
        tracing::warn!(%error, "The registry entry was not deleted; it ends by its age.");
    }
}

fn draft(node: &Node, payload: Vec<u8>) -> Draft {
    let key = format!("{}.{}", node.app, node.instance);
    Draft::new(node.nats.names().key(Bucket::Executors, &key), payload)
}

async fn put(node: &Node) -> Result<(), PublishError> {
    let entry = serde_json::to_vec(&node.entry())
        .map_err(|error| PublishError::Refused { code: 0, text: error.to_string() })?;
    node.publisher.publish_within(draft(node, entry), DEADLINE).await.map(drop)
}

async fn remove(node: &Node) -> Result<(), PublishError> {
    let marker = draft(node, Vec::new()).header("KV-Operation", "DEL");
    node.publisher.publish_within(marker, DEADLINE).await.map(drop)
}

/// What a probe may ask.
#[derive(Debug, Default, Deserialize)]
struct Probe {
    job: Option<JobId>,
    handler: Option<Handler>,
}

/// The answer: how many runs more fit, of the handler that was named or of all; and whether the
/// job runs here.
#[derive(Debug, Serialize)]
struct Answer {
    free: usize,
    running: bool,
}

/// Answers probes until `end`.
pub(crate) async fn answer_probes(node: Arc<Node>, mut probes: Subscriber, end: CancellationToken) {
    while let Some(Some(message)) = end.run_until_cancelled(probes.next()).await {
        let Some(reply) = message.reply else {
            hear_of(&node, &message.payload);
            continue;
        };
        let probe: Probe = serde_json::from_slice(&message.payload).unwrap_or_default();
        let Ok(answer) = serde_json::to_vec(&answer(&node, &probe)) else { continue };
        let sent = node.nats.client().publish(reply, answer.into());
        if !matches!(tokio::time::timeout(DEADLINE, sent).await, Ok(Ok(()))) {
            tracing::debug!("A probe could not be answered.");
        }
    }
}

/// What is said without waiting for an answer: that there is work of further priorities.
fn hear_of(node: &Node, payload: &[u8]) {
    let Ok(said) = serde_json::from_slice::<Priorities>(payload) else { return };
    let Some(desk) = node.handlers.get(&said.handler) else { return };
    let new = desk.priorities.send_if_modified(|known| {
        let before = known.len();
        known.extend(said.priorities);
        known.len() > before
    });
    if new {
        node.changed.notify_one();
    }
}

fn answer(node: &Node, probe: &Probe) -> Answer {
    // Not the free permits: the pull holds those while it asks for work.
    let free = |(name, desk): (&Handler, &Desk)| {
        (desk.slots as usize).saturating_sub(node.live.jobs_of(name).len())
    };
    let asked = |(name, _): &(&Handler, &Desk)| {
        probe.handler.as_ref().is_none_or(|handler| handler == *name)
    };
    let free = if node.phase.draining.is_cancelled() {
        0
    } else {
        node.handlers.iter().filter(asked).map(free).sum()
    };
    Answer { free, running: probe.job.as_ref().is_some_and(|job| node.live.has_job(job)) }
}
