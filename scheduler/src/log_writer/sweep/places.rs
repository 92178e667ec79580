//! Places that are held by nobody, and runs that wait where nobody knows of them.
//!
//! Both come from an accident: the overlap bucket was deleted by hand, or an entry of it. Then a run
//! that has ended may hold a place again, which would block its job for ever; and a run that waits
//! may be in no queue. The first is released, the second waits again, at the end of the queue.
//!
//! *Invariant: nothing is done on one look.* What is just on its way is not as its entry says.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::value::RawValue;
use taskparty_common::fire::{FireId, Intent, Plan};
use taskparty_common::overlap::Place;
use tokio::time::Instant;
use uuid::Uuid;

use super::SweepError;
use super::going::Going;
use crate::log_writer::Parts;
use crate::store::Run;

/// How often is looked.
const EVERY: Duration = Duration::from_secs(10);

/// By how much the history must be ahead of the first look.
const MARGIN: TimeDelta = TimeDelta::seconds(2);

/// A first look is remembered for so long.
const FORGET: TimeDelta = TimeDelta::hours(1);

/// Waiting runs that one look is about; the next goes on behind them.
const LOOKS: u32 = 200;

/// What looked wrong the last time.
#[derive(Debug, Default)]
pub(super) struct PlaceWatch {
    looked: Option<Instant>,
    /// Where the next look at waiting runs begins.
    after: Option<Uuid>,
    lost: HashMap<Uuid, DateTime<Utc>>,
    held: HashSet<Uuid>,
}

impl PlaceWatch {
    /// Looks, when it is time; `now` is the time that results have come to.
    pub(super) async fn look(
        &mut self,
        parts: &Parts,
        going: &Going,
        now: DateTime<Utc>,
    ) -> Result<(), SweepError> {
        let every = EVERY.min(parts.config.chain_grace);
        if self.looked.is_some_and(|at| at.elapsed() < every) {
            return Ok(());
        }
        self.looked = Some(Instant::now());
        self.release_ended(parts, going).await?;
        self.look_for_waiting(parts, now).await
    }

    /// Gives back the places of runs that have ended.
    async fn release_ended(&mut self, parts: &Parts, going: &Going) -> Result<(), SweepError> {
        let active = going.all();
        let runs: Vec<Uuid> = active.keys().copied().collect();
        let ended = parts.store.ended(&runs).await?;
        for run in ended.intersection(&self.held) {
            let Some(job) = active.get(run) else { continue };
            tracing::warn!(%job, %run, "A run that has ended still had a place; it is given back.");
            parts.queues.release(job, *run).await.map_err(SweepError::Places)?;
        }
        self.held = ended;
        Ok(())
    }

    /// Lets runs wait again that are in no queue.
    async fn look_for_waiting(
        &mut self,
        parts: &Parts,
        now: DateTime<Utc>,
    ) -> Result<(), SweepError> {
        let runs = parts.store.in_queues(self.after, LOOKS).await?;
        let whole = runs.len() == LOOKS as usize;
        self.after = if whole { runs.last().map(|run| run.id) } else { None };
        self.lost.retain(|_, first| now - *first < FORGET);
        for run in runs {
            let place = parts.queues.find(&run.job, run.id).await.map_err(SweepError::Places)?;
            let waits = match place {
                Some(Place::Waiting | Place::Due) => {
                    parts.queues.kept(&run.job, run.id).await.map_err(SweepError::Places)?.is_some()
                }
                Some(Place::Active | Place::Ended) => true,
                Some(Place::Unknown) | None => false,
            };
            if waits {
                self.lost.remove(&run.id);
                continue;
            }
            let first = *self.lost.entry(run.id).or_insert_with(|| parts.clock.now());
            if now > first + MARGIN {
                self.lost.remove(&run.id);
                wait_again(parts, run).await?;
            }
        }
        Ok(())
    }
}

async fn wait_again(parts: &Parts, run: Run) -> Result<(), SweepError> {
    let Some(fired) = run.fired else { return Ok(()) };
    let definition = parts.store.definition(&fired.definition).await?;
    let definition = definition.and_then(|text| RawValue::from_string(text).ok());
    let (Some(id), Some(definition)) = (FireId::from_lock_key(&fired.lock), definition) else {
        return Ok(());
    };
    tracing::warn!(job = %run.job, run = %run.id, "A run that waits for its turn was in no queue; it waits again.");
    let intent = Intent {
        v: 1,
        run: run.id,
        job: run.job,
        revision: fired.revision,
        since: fired.since,
        owner: fired.owner,
        trigger: fired.trigger,
        fire_time: fired.fire_time,
        planned_at: fired.fired_at,
        plan: Plan::whole(fired.shards),
        skipped: None,
        definition,
        params: fired.params.and_then(|params| RawValue::from_string(params).ok()),
        // Which executor somebody wanted is not in the history: the job's route chooses.
        instance: None,
    };
    parts.queues.wait_again(&id, &intent).await.map_err(SweepError::Places)
}
