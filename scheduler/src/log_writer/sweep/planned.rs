//! Delayed triggers that went missing are published again.
//!
//! A run that waits for its time is promised by its history. When its time has passed and its trigger
//! is in NATS no more, somebody has deleted it there: it is triggered now, as a retry is. Whoever
//! wants a planned run not to happen cancels it. *Invariant: it has the id that it had*, so one that
//! was not missing after all fires once.

use std::collections::HashMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use taskparty_common::fire::{FireId, Identity};
use taskparty_nats::history::ReadError;
use tokio::time::Instant;
use uuid::Uuid;

use super::SweepError;
use crate::log_writer::Parts;
use crate::pending;
use crate::store::{Decision, Run};

/// How long after its time a trigger without a fired record is looked for.
const LATE: TimeDelta = TimeDelta::seconds(10);

/// How long until the same one is looked for again.
const AGAIN: Duration = Duration::from_secs(60);

/// Runs that one look is about.
const LOOKS: u32 = 200;

/// The planned runs that were looked for, and when.
#[derive(Debug, Default)]
pub(super) struct Planned(HashMap<Uuid, Instant>);

impl Planned {
    /// Looks for those whose time had passed by `now`.
    pub(super) async fn look(
        &mut self,
        parts: &Parts,
        now: DateTime<Utc>,
    ) -> Result<(), SweepError> {
        self.0.retain(|_, at| at.elapsed() < AGAIN);
        let mut missing = Vec::new();
        for run in parts.store.overdue(now - LATE, LOOKS).await? {
            if self.0.contains_key(&run.id) {
                continue;
            }
            self.0.insert(run.id, Instant::now());
            if !is_pending(parts, &run).await? {
                tracing::warn!(job = %run.job, run = %run.id, "A planned run was not triggered, and its trigger is gone; it is triggered now.");
                missing.push(Decision::Again { run: run.id, due: now });
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        parts.store.write(move |mut tx| async move { tx.decide(&missing).await }.boxed()).await?;
        parts.decided.notify_one();
        Ok(())
    }
}

/// Whether its trigger waits in NATS.
async fn is_pending(parts: &Parts, run: &Run) -> Result<bool, ReadError> {
    let lock = run.planned.as_ref().and_then(|planned| FireId::from_lock_key(&planned.lock));
    let Some(Identity::Trigger(id)) = lock.map(|lock| lock.identity) else { return Ok(true) };
    Ok(pending::trigger(parts.buckets.nats(), &run.job, &id).await?.is_some())
}
