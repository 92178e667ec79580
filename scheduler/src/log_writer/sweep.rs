//! What never started, never reported, or never came: found and ended, on time.
//!
//! *Invariants.*
//! - *The sweep's "now" is the stored time of the oldest result that is not processed yet*, so an
//!   outage of SQL, or a long backlog, ends no healthy run.
//! - *A dispatch is removed from the stream before its attempt is ended*; and where somebody may
//!   have had it, a lease passes in between, for a result that is on its way.

mod chains;
mod going;
mod gone;
mod judge;
mod places;
mod planned;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use futures::StreamExt;
use taskparty_common::name::Instance;
use taskparty_nats::bucket::BucketError;
use taskparty_nats::history::{ReadError, consumer_info, message, stream_info};
use taskparty_nats::subject::LOG_WRITER;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::going::Going;
pub(super) use self::gone::Retired;
use self::places::PlaceWatch;
use self::planned::Planned;
use super::Parts;
use super::batch::Batch;
use super::event::Line;
use super::transition::Event;
use crate::store::{StoreError, ToCheck};

/// Attempts that one sweep looks at.
const LOOKS: u32 = 500;

/// Executors that have gone whose attempts one sweep looks for.
const MOST_GONE: usize = 200;

/// Questions to NATS at once.
const AT_ONCE: usize = 32;

/// How often chains are looked at.
const CHAINS_EVERY: Duration = Duration::from_secs(10);

/// Why a sweep broke off; the next one tries again.
#[derive(Debug, thiserror::Error)]
enum SweepError {
    #[error(transparent)]
    Read(#[from] ReadError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Places(BucketError),
}

/// Sweeps until `stop`.
pub(super) async fn run(parts: &Parts, stop: &CancellationToken) {
    let going = Going::default();
    tokio::join!(going.follow(parts, stop), sweeps(parts, &going, stop));
}

async fn sweeps(parts: &Parts, going: &Going, stop: &CancellationToken) {
    let mut ticks = interval(parts.config.sweep_every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut chains_at = Instant::now();
    let mut waits = Waits::default();
    let mut failures = 0_u32;
    while stop.run_until_cancelled(ticks.tick()).await.is_some() {
        let mut swept = sweep(parts, stop).await;
        if swept.is_ok() {
            swept = waits.look(parts, going).await;
        }
        if swept.is_ok() && chains_at.elapsed() >= CHAINS_EVERY.min(parts.config.chain_grace) {
            chains_at = Instant::now();
            swept = chains::look(parts, stop).await;
        }
        match swept {
            Ok(()) => failures = 0,
            Err(error) => {
                failures += 1;
                // The first failure may be a passing one; the tenth is worth a word.
                if failures % 60 == 10 {
                    tracing::warn!(%error, failures, "Runs that never ended cannot be looked for.");
                }
            }
        }
    }
}

/// What is looked after of runs that have not begun.
#[derive(Debug, Default)]
struct Waits {
    planned: Planned,
    places: PlaceWatch,
}

impl Waits {
    async fn look(&mut self, parts: &Parts, going: &Going) -> Result<(), SweepError> {
        let Some(now) = time(parts).await? else { return Ok(()) };
        self.planned.look(parts, now).await?;
        self.places.look(parts, going, now).await
    }
}

async fn sweep(parts: &Parts, stop: &CancellationToken) -> Result<(), SweepError> {
    parts.decided.notify_one();
    while !stop.is_cancelled() {
        let Some(now) = time(parts).await? else { return Ok(()) };
        let mut checks = parts.store.to_check(now, LOOKS).await?;
        let due = checks.len();
        let known: HashSet<_> = checks.iter().map(key_of).collect();
        let stranded = stranded(parts, now).await?;
        checks.extend(stranded.into_iter().filter(|check| !known.contains(&key_of(check))));
        if checks.is_empty() {
            return Ok(());
        }
        let whole = due == LOOKS as usize;
        let gone = checks.iter().filter(|check| gone::is_gone(parts, check, now));
        let gone: HashSet<_> = gone
            .filter_map(|check| Some((check.app.clone(), check.attempt.target.clone()?)))
            .collect();
        let mut lines = Vec::with_capacity(checks.len());
        let mut judged = futures::stream::iter(checks)
            .map(|check| async move { (judge::judge(parts, &check, now).await, check) })
            .buffer_unordered(AT_ONCE);
        while let Some((verdict, check)) = judged.next().await {
            match verdict {
                Ok(verdict) => lines.push(line(check, verdict, now)),
                Err(error) => {
                    tracing::debug!(run = %check.run, %error, "An attempt could not be looked at.");
                }
            }
        }
        gone::retire_all(parts, gone).await;
        let none = lines.is_empty();
        let written = parts.writer.write(&Batch::new(lines, Vec::new())).await?;
        if written.decisions > 0 {
            parts.decided.notify_one();
        }
        if none || !whole {
            return Ok(());
        }
    }
    Ok(())
}

fn key_of(check: &ToCheck) -> (Uuid, u32, u32) {
    (check.run, check.shard, check.number)
}

/// Attempts that are for executors that have gone.
async fn stranded(parts: &Parts, now: DateTime<Utc>) -> Result<Vec<ToCheck>, StoreError> {
    if !parts.registry.is_ready() {
        return Ok(Vec::new());
    }
    let targets = parts.store.targets().await?;
    let live: HashSet<_> = parts.registry.instances().into_iter().map(|(_, one)| one).collect();
    let gone: Vec<Instance> =
        targets.into_iter().filter(|one| !live.contains(one)).take(MOST_GONE).collect();
    if gone.is_empty() {
        return Ok(Vec::new());
    }
    let found = parts.store.stranded(&gone, now - gone::SEEN_BY_ALL, LOOKS).await?;
    // Whoever else is looked at before its time would be judged as if its time had come.
    Ok(found.into_iter().filter(|check| gone::is_gone(parts, check, now)).collect())
}

fn line(check: ToCheck, verdict: super::transition::Verdict, now: DateTime<Utc>) -> Line {
    Line {
        seq: 0,
        line: 0,
        subject: Arc::default(),
        app: check.app,
        at: now,
        raw: Bytes::new(),
        event: Event::Sweep(verdict),
    }
}

/// The time that results have come to; none when it cannot be known now.
async fn time(parts: &Parts) -> Result<Option<DateTime<Utc>>, ReadError> {
    let nats = parts.buckets.nats();
    let stream = nats.names().results_stream();
    let asked = parts.clock.now();
    let Some(info) = consumer_info(nats.js(), &stream, LOG_WRITER).await? else { return Ok(None) };
    parts.status.update(|status| status.pending = info.pending);
    if info.pending == 0 && info.ack_pending == 0 {
        return Ok(Some(asked));
    }
    let mut oldest = message(nats.js(), &stream, info.ack_floor + 1).await?;
    if oldest.is_none() {
        // The oldest may have been removed by age before it was read.
        let first = stream_info(nats.js(), &stream).await?.first_seq;
        if first > info.ack_floor {
            oldest = message(nats.js(), &stream, first).await?;
        }
    }
    Ok(oldest.map(|record| record.stored_at.min(asked)))
}
