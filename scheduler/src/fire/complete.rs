//! The completion of a fire whose scheduler died between its lock and its fired record.
//!
//! Whoever completes it does what the intent says, and nothing twice: a shard with a result is
//! done (a result is stored before its dispatch is acked), any other is published again, and the
//! stream refuses what is there.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use futures::stream::{self, BoxStream, StreamExt};
use taskparty_common::fire::{FireId, Identity, Intent};
use taskparty_common::job::{JobSpec, MisfirePolicy};
use taskparty_nats::history::{self, ReadError};
use tokio::time::Instant;

use super::look::Piece;
use super::record::{Begun, Hand, frozen};
use super::records::Known;
use super::{Firing, Held};
use crate::definition::Definition;
use crate::engine::{ON_ITS_WAY, spread_of};
use crate::overlap::Bounds;

/// The clocks of servers may differ by this much.
const MARGIN: TimeDelta = TimeDelta::seconds(2);

/// How long after its grace whoever locked a fire may still send it.
const SLOW: TimeDelta = TimeDelta::seconds(5);

/// Fires that are completed side by side.
const AT_ONCE: usize = 64;

impl Firing {
    /// Completes a fire, unless it has a fired record. True when it has one now.
    pub(crate) async fn complete(&self, held: &Held) -> bool {
        let Some(known) = self.known_since(held.stored_at).await else { return false };
        let done = known.done(held.intent.run, held.intent.plan.attempt);
        known.recorded.contains(&held.id.lock_key())
            || self.complete_one(held, done, known.as_of()).await
    }

    /// Completes those of `held` that have no fired record, so many side by side. Each comes as soon
    /// as it is through, and with it whether it has one now: what takes long keeps no other waiting.
    pub(crate) fn complete_all<H>(self: Arc<Self>, held: Vec<H>) -> BoxStream<'static, (H, bool)>
    where
        H: AsRef<Held> + Send + 'static,
    {
        let begun = async move {
            let oldest = held.iter().map(|held| held.as_ref().stored_at).min();
            let known = match oldest {
                Some(oldest) => self.known_since(oldest).await,
                None => None,
            };
            let Some(known) = known else {
                return stream::iter(held).map(|held| (held, false)).boxed();
            };
            let recorded = |held: &H| known.recorded.contains(&held.as_ref().id.lock_key());
            let (over, mut open): (Vec<H>, Vec<H>) = held.into_iter().partition(recorded);
            // Those last that may have to wait for the attempt before.
            open.sort_by_key(|held| held.as_ref().intent.plan.attempt > 1);
            // Only what is known of each: all of it is large, and one may take long.
            let with_done = |held: H| {
                let intent = &held.as_ref().intent;
                let done = known.done(intent.run, intent.plan.attempt).to_vec();
                (held, done)
            };
            let open: Vec<(H, Vec<u32>)> = open.into_iter().map(with_done).collect();
            let as_of = known.as_of();
            let one = move |(held, done): (H, Vec<u32>)| {
                let firing = self.clone();
                async move {
                    let complete = firing.complete_one(held.as_ref(), &done, as_of).await;
                    (held, complete)
                }
            };
            let completed = stream::iter(open).map(one).buffer_unordered(AT_ONCE);
            stream::iter(over).map(|held| (held, true)).chain(completed).boxed()
        };
        stream::once(begun).flatten().boxed()
    }

    /// What is recorded of fires that were locked at `stored_at` or later; nothing when it cannot be
    /// read now.
    async fn known_since(&self, stored_at: DateTime<Utc>) -> Option<Arc<Known>> {
        let known = self.records.since(self.nats(), stored_at - MARGIN).await;
        let logged = known.inspect_err(|error| {
            tracing::warn!(%error, "The results stream cannot be read; half-done fires wait.");
        });
        logged.ok()
    }

    /// Goes on with a run that got its place from someone who may have died half way; true when it
    /// is over.
    pub(super) async fn complete_waiter(&self, held: &Held, bounds: Bounds) -> bool {
        match self.records.since(self.nats(), held.stored_at - MARGIN).await {
            Ok(known) if known.placed.contains(&held.id.lock_key()) => true,
            Ok(known) => {
                if let Err(error) = self.queues.count_again(&held.intent.job, bounds).await {
                    tracing::warn!(%error, "That a waiting run begins only now is not stored; it waits on.");
                    return false;
                }
                let done = known.done(held.intent.run, held.intent.plan.attempt);
                self.dispatch_waiter(held, done, known.as_of()).await
            }
            Err(error) => {
                tracing::warn!(%error, "The results stream cannot be read; a waiting run waits on.");
                false
            }
        }
    }

    async fn complete_one(&self, held: &Held, done: &[u32], known_at: Instant) -> bool {
        let Held { id, intent, .. } = held;
        let Some(definition) = frozen(held) else { return true };
        let send_by = send_by(id, intent, &definition);
        let mut begun = Begun { done, send_by, known_at, hand: Hand::Next };
        if intent.skipped.is_none() {
            match may_still_run(id, intent, &definition, self.clock.now()) {
                StillRuns::Yes => {}
                // It may have been begun in time by who is gone, or cannot say so: then it happens.
                still => match self.is_under_way(intent, definition.spec(), done).await {
                    Ok(true) => begun.send_by = None,
                    Ok(false) if still == StillRuns::Unknown => return false,
                    Ok(false) => return self.record_expired(id, intent, &definition).await,
                    Err(error) => {
                        tracing::warn!(fire = %id, %error, "Whether a late fire was dispatched cannot be seen; it waits.");
                        return false;
                    }
                },
            }
        }
        tracing::warn!(fire = %id, owner = %intent.owner, "A half-done fire is completed.");
        self.carry_out(id, intent, &definition, begun).await.is_ok()
    }

    /// Whether some of it was sent, or it waits for its turn.
    async fn is_under_way(
        &self,
        intent: &Intent,
        spec: &JobSpec,
        done: &[u32],
    ) -> Result<bool, ReadError> {
        if !done.is_empty() {
            return Ok(true);
        }
        if spec.places().is_some() && self.queues.has_queued(&intent.job, intent.run).await? {
            return Ok(true);
        }
        let names = self.nats().names();
        let stream = names.dispatch_stream(&spec.app);
        let attempt = intent.plan.attempt;
        for shard in intent.plan.shards() {
            let subject = self.subject(spec, intent, shard);
            match history::last_by_subject(self.nats().js(), &stream, &subject).await {
                Ok(Some(_)) => return Ok(true),
                Ok(None) => {}
                Err(ReadError::NoStream(_)) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        // What is not in the stream may have been, until just now: then it has a result.
        let pieces = intent.plan.shards().map(|shard| Piece { run: intent.run, shard, attempt });
        self.looks.has_any_result(self.nats(), pieces.collect(), intent.planned_at).await
    }
}

/// Whether a fire that was found half done may still be dispatched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StillRuns {
    Yes,
    /// Not any more; but what was sent in time may still come.
    Unknown,
    No,
}

/// Whether a fire that was found half done may still be dispatched at `now`: inside its misfire
/// window, and not under a policy that runs nothing late. What somebody asked for, and a retry,
/// only has a window.
fn may_still_run(
    id: &FireId,
    intent: &Intent,
    definition: &Definition,
    now: DateTime<Utc>,
) -> StillRuns {
    let misfire = &definition.spec().misfire;
    let late = (now - due(intent, definition)).to_std().unwrap_or_default();
    match (&id.identity, send_by(id, intent, definition)) {
        (Identity::Instant(_), Some(_)) if late < misfire.grace => StillRuns::Yes,
        (Identity::Instant(_), Some(by)) if now - by < ON_ITS_WAY => StillRuns::Unknown,
        (Identity::Instant(_), Some(_)) => StillRuns::No,
        (Identity::Instant(_), None) if late > misfire.window => StillRuns::No,
        _ => StillRuns::Yes,
    }
}

/// Until when a fire may be sent that must not run late; nothing: it may.
///
/// *Invariant: whoever says of such a fire that it was left out says so only when nothing that was
/// sent by then can come any more.*
pub(super) fn send_by(
    id: &FireId,
    intent: &Intent,
    definition: &Definition,
) -> Option<DateTime<Utc>> {
    let misfire = &definition.spec().misfire;
    let strict = matches!(id.identity, Identity::Instant(_))
        && misfire.policy == MisfirePolicy::Skip
        && intent.skipped.is_none();
    let grace = TimeDelta::from_std(misfire.grace).ok().filter(|_| strict)?;
    due(intent, definition).checked_add_signed(grace.checked_add(&SLOW)?)
}

fn due(intent: &Intent, definition: &Definition) -> DateTime<Utc> {
    let spread = spread_of(&definition.job);
    intent.fire_time.checked_add_signed(spread).unwrap_or(intent.fire_time)
}
