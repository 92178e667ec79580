//! What is left of the attempt before a retry.
//!
//! Whoever reported it may have died before the ack: then its message is delivered again when the
//! lease has ended, and the handler would start for it while, or after, the retry does the work.
//! *Invariants: an attempt is dispatched only when the message of the one before it is gone*, and
//! when nobody has a lease of it any more: also where the one who removed it was stopped before it
//! had waited for that, and another goes on.

use std::time::Duration;

use chrono::TimeDelta;
use taskparty_common::fire::Intent;
use taskparty_nats::history::{self, ReadError};

use super::Firing;
use super::record::Hand;
use crate::definition::Definition;

/// How soon after its lock is taken a fire removes the message, with room for clocks that differ.
/// Later only when NATS hardly answers.
const SOON: Duration = Duration::from_secs(5);

/// What was found of the attempt before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Found {
    /// Nothing.
    Nothing,
    /// Its message, which was delivered once at most. It is removed.
    Once,
    /// Its message, which somebody may just have got again. It is removed.
    Again,
}

impl Firing {
    /// Removes the message of the attempt before this one, if it is still there; if somebody may
    /// just have got it again, a lease passes. False when the node ended meanwhile, or as many as may
    /// are gone on with; then nothing was removed.
    pub(super) async fn previous_is_gone(
        &self,
        intent: &Intent,
        definition: &Definition,
        hand: Hand,
    ) -> bool {
        let (Some(shard), attempt) = (intent.plan.only, intent.plan.attempt) else { return true };
        let Some(previous) = attempt.checked_sub(1).filter(|previous| *previous > 0) else {
            return true;
        };
        // Before the removal: who has removed it must be able to wait.
        let _one = match hand {
            Hand::First => None,
            Hand::Next => match self.retries.try_acquire() {
                Ok(one) => Some(one),
                Err(_) => return false,
            },
        };
        loop {
            match Box::pin(self.remove(intent, definition, shard, previous)).await {
                Ok(found) => {
                    let wait = self.lease_of_previous(found, intent, hand);
                    let ended = self.shutdown.cancelled();
                    return wait.is_zero() || tokio::time::timeout(wait, ended).await.is_err();
                }
                Err(error) => {
                    tracing::warn!(run = %intent.run, shard, attempt, %error, "Whether the attempt before is still there cannot be seen; its retry waits.");
                }
            }
            if self.pause().await.is_err() {
                return false;
            }
        }
    }

    /// For how long somebody may have the message who does not know that it is gone.
    fn lease_of_previous(&self, found: Found, intent: &Intent, hand: Hand) -> Duration {
        match (found, hand) {
            (Found::Again, _) => self.lease,
            // The one who was at it before may have removed it.
            (Found::Nothing, Hand::Next) => {
                let since = (self.clock.now() - intent.planned_at).to_std().unwrap_or_default();
                (self.lease + SOON).saturating_sub(since)
            }
            (Found::Nothing, Hand::First) | (Found::Once, _) => Duration::ZERO,
        }
    }

    /// Removes a message, if it is there.
    async fn remove(
        &self,
        intent: &Intent,
        definition: &Definition,
        shard: u32,
        attempt: u32,
    ) -> Result<Found, ReadError> {
        let (spec, names, js) = (definition.spec(), self.nats().names(), self.nats().js());
        let stream = names.dispatch_stream(&spec.app);
        let (app, handler, run) = (&spec.app, &spec.handler, intent.run);
        let anybodys = names.dispatch(app, handler, run, shard, attempt);
        let somebodys = names.direct_to_any(app, handler, run, shard, attempt);
        let by_priority = async {
            // Which of the two lines it stood in is not known here.
            if spec.priority.is_default() {
                return Ok(None);
            }
            let piece = (run, shard, attempt);
            let subject = names.dispatch_by(app, handler, spec.priority, piece);
            history::last_by_subject(js, &stream, &subject).await
        };
        let looks = (
            history::last_by_subject(js, &stream, &anybodys),
            history::last_by_subject(js, &stream, &somebodys),
        );
        let found = match tokio::try_join!(looks.0, looks.1, by_priority) {
            Err(ReadError::NoStream(_)) => return Ok(Found::Nothing),
            found => found?,
        };
        let Some(found) = found.0.or(found.1).or(found.2) else { return Ok(Found::Nothing) };
        history::delete_message(js, &stream, found.seq).await?;
        tracing::warn!(run = %intent.run, shard, attempt, "An attempt was reported and not acked; its message is removed before the next one.");
        // Before its first lease has ended it was not delivered again.
        let lease = TimeDelta::from_std(self.lease).unwrap_or(TimeDelta::MAX);
        let again = self.clock.now() - found.stored_at >= lease - TimeDelta::seconds(2);
        Ok(if again { Found::Again } else { Found::Once })
    }
}
