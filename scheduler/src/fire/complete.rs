//! The completion of a fire whose scheduler died between its lock and its fired record.
//!
//! Whoever completes it does what the intent says, and nothing twice: a shard with a result is
//! done (a result is stored before its dispatch is acked), any other is published again, and the
//! stream refuses what is there.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::dispatch::ResultRecord;
use taskparty_common::fire::{Fired, Identity, Intent};
use taskparty_common::job::{JobSpec, MisfirePolicy};
use taskparty_nats::history::{self, ReadError, Start};
use uuid::Uuid;

use super::record::frozen;
use super::{Firing, Held};

/// The clocks of servers may differ by this much.
const MARGIN: TimeDelta = TimeDelta::seconds(2);

/// How long a look at the results may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the results stream knows of fires: which are recorded, which shards are done.
#[derive(Debug, Default)]
struct Known {
    recorded: HashSet<String>,
    /// Those of `recorded` that do not wait for a place.
    placed: HashSet<String>,
    done: HashMap<(Uuid, u32), Vec<u32>>,
}

impl Firing {
    /// Completes those of `held` that have no fired record. True when each has one now.
    pub(crate) async fn complete(&self, held: &[&Held]) -> bool {
        let Some(oldest) = held.iter().map(|held| held.stored_at).min() else { return true };
        let known = match self.known_since(oldest - MARGIN, held).await {
            Ok(known) => known,
            Err(error) => {
                tracing::warn!(%error, "The results stream cannot be read; half-done fires wait.");
                return false;
            }
        };
        let mut all = true;
        for held in held.iter().filter(|held| !known.recorded.contains(&held.id.lock_key())) {
            let done = known.done.get(&(held.intent.run, held.intent.plan.attempt));
            all &= self.complete_one(held, done.map_or(&[], Vec::as_slice)).await;
        }
        all
    }

    /// Goes on with a run that got its place from someone who may have died half way; true when it
    /// is over.
    pub(super) async fn complete_waiter(&self, held: &Held) -> bool {
        match self.known_since(held.stored_at - MARGIN, &[held]).await {
            Ok(known) if known.placed.contains(&held.id.lock_key()) => true,
            Ok(known) => {
                let done = known.done.get(&(held.intent.run, held.intent.plan.attempt));
                self.dispatch_waiter(held, done.map_or(&[], Vec::as_slice)).await
            }
            Err(error) => {
                tracing::warn!(%error, "The results stream cannot be read; a waiting run waits on.");
                false
            }
        }
    }

    async fn complete_one(&self, held: &Held, done: &[u32]) -> bool {
        let intent = &held.intent;
        tracing::warn!(fire = %held.id, owner = %intent.owner, "A half-done fire is completed.");
        let Some(definition) = frozen(held) else { return true };
        if intent.skipped.is_none()
            && !may_still_run(
                &held.id.identity,
                definition.spec(),
                intent.fire_time,
                self.clock.now(),
            )
        {
            match self.is_under_way(intent, definition.spec(), done).await {
                Ok(true) => {}
                Ok(false) => return self.record_expired(&held.id, intent, &definition).await,
                Err(error) => {
                    tracing::warn!(fire = %held.id, %error, "Whether a late fire was dispatched cannot be seen; it waits.");
                    return false;
                }
            }
        }
        self.carry_out(&held.id, intent, &definition, done).await.is_some()
    }

    /// Whether some of it was dispatched, in time, by who is gone or cannot say so: then it happens,
    /// and is no longer to be left out.
    async fn is_under_way(
        &self,
        intent: &Intent,
        spec: &JobSpec,
        done: &[u32],
    ) -> Result<bool, ReadError> {
        if !done.is_empty() {
            return Ok(true);
        }
        let names = self.nats().names();
        let stream = names.dispatch_stream(&spec.app);
        for shard in intent.plan.shards() {
            let subject = self.subject(spec, intent, shard);
            match history::last_by_subject(self.nats().js(), &stream, &subject).await {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => {}
                Err(ReadError::NoStream(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    async fn known_since(&self, since: DateTime<Utc>, held: &[&Held]) -> Result<Known, ReadError> {
        let names = self.nats().names();
        let runs: HashSet<Uuid> = held.iter().map(|held| held.intent.run).collect();
        let mut known = Known::default();
        let results = format!("{}.result.*", names.prefix());
        let subjects = [names.fired_all(), results];
        let stream = names.results_stream();
        let visit = |message: history::Record| {
            let fired = message.subject.contains(".fired.");
            for line in message.payload.split(|byte| *byte == b'\n') {
                if fired {
                    if let Ok(fired) = serde_json::from_slice::<Fired>(line) {
                        if !fired.awaits_place() {
                            known.placed.insert(fired.lock.clone());
                        }
                        known.recorded.insert(fired.lock);
                    }
                } else if let Ok(result) = serde_json::from_slice::<ResultRecord>(line)
                    && runs.contains(&result.run)
                {
                    known
                        .done
                        .entry((result.run, result.attempt))
                        .or_default()
                        .push(result.shard.index);
                }
            }
            ControlFlow::Continue(())
        };
        history::read(self.nats().js(), &stream, &subjects, Start::Time(since), PATIENCE, visit)
            .await?;
        Ok(known)
    }
}

/// Whether a fire that was found half done may still be dispatched: inside its misfire window, and
/// not under a policy that runs nothing late. What somebody asked for, and a retry, only has a
/// window.
fn may_still_run(
    identity: &Identity,
    spec: &JobSpec,
    at: DateTime<Utc>,
    now: DateTime<Utc>,
) -> bool {
    let late = (now - at).to_std().unwrap_or_default();
    match identity {
        Identity::Instant(_) if spec.misfire.policy == MisfirePolicy::Skip => {
            late < spec.misfire.grace
        }
        Identity::Instant(_) => late <= spec.misfire.window,
        Identity::Trigger(_) => true,
    }
}
