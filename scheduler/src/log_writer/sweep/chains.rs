//! Chains of fixed-delay runs that broke off are started again.
//!
//! The trigger that starts one again has the id that the broken one had, so a chain that had not
//! broken off after all is not doubled: one id fires once.

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use taskparty_nats::history::{ReadError, last_by_subject};
use tokio_util::sync::CancellationToken;

use super::SweepError;
use crate::log_writer::{Chain, Parts};
use crate::store::{Decision, LastOfChain};

/// Looks at every chain; each is one question to SQL, and rarely more.
pub(super) async fn look(parts: &Parts, stop: &CancellationToken) -> Result<(), SweepError> {
    let Some(now) = super::time(parts).await? else { return Ok(()) };
    let mut broken = Vec::new();
    for chain in parts.jobs.chains() {
        if stop.is_cancelled() {
            return Ok(());
        }
        let Some(last) = parts.store.last_of_chain(&chain.job, chain.since).await? else {
            // Its first run is the scheduler's.
            continue;
        };
        if is_overdue(&chain, &last, now, parts) && !is_pending(parts, &chain).await? {
            tracing::warn!(job = %chain.job, run = %last.run, "A fixed delay had no next run; it is started again.");
            broken.push(Decision::Next { run: last.run, due: now });
        }
    }
    if broken.is_empty() {
        return Ok(());
    }
    parts.store.write(move |mut tx| async move { tx.decide(&broken).await }.boxed()).await?;
    parts.decided.notify_one();
    Ok(())
}

fn is_overdue(chain: &Chain, last: &LastOfChain, now: DateTime<Utc>, parts: &Parts) -> bool {
    if !last.state.is_terminal() {
        return false;
    }
    let wait = chain.delay.saturating_add(parts.config.chain_grace);
    let wait = TimeDelta::from_std(wait).unwrap_or(TimeDelta::MAX);
    last.ended_at.and_then(|at| at.checked_add_signed(wait)).is_some_and(|due| due <= now)
}

/// Whether its next trigger waits in NATS.
async fn is_pending(parts: &Parts, chain: &Chain) -> Result<bool, ReadError> {
    let nats = parts.buckets.nats();
    let names = nats.names();
    let stream = names.triggers_stream();
    for subject in [names.next_delay(&chain.job), names.trigger(&chain.job)] {
        if last_by_subject(nats.js(), &stream, &subject).await?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}
