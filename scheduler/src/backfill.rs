//! The steps of a backfill: one instant at a time, when there is room for it.
//!
//! Paced and never dropped: while a run of the job goes on or waits, or while work of its handler waits
//! for a slot where its runs may overlap, the backfill waits, and whatever else the job has to do goes
//! first. *Invariant: what is left is stored before a step is acked*, and a step that is made again
//! fires nothing twice; so nothing is lost with whoever makes it.

use std::time::Duration;

use chrono::TimeDelta;
use futures::stream::{self, StreamExt};
use taskparty_common::backfill::Backfill;
use taskparty_common::fire::{FireId, TriggerRequest};
use taskparty_common::job::{Overlap, Route};
use taskparty_common::name::App;
use taskparty_common::priority::Priority;
use taskparty_nats::fail_point;
use taskparty_nats::history::{ReadError, consumer_info};
use taskparty_nats::lease::Delivery;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::{of_priority, on_instance};

use crate::definition::Definition;
use crate::overlap::Bounds;
use crate::trigger::{Decision, Triggers};

/// How soon the next step comes after one that fired.
const NEXT: TimeDelta = TimeDelta::milliseconds(50);

/// How soon it is looked again whether there is room.
const AGAIN: TimeDelta = TimeDelta::milliseconds(1_000);

/// Consumers that are looked at side by side.
const LOOKS: usize = 16;

/// How long it is tried to put back what is left; then the step comes again.
const PATIENCE: Duration = Duration::from_secs(5);

impl Triggers {
    /// Makes one step; true when it is over.
    pub(crate) async fn step(&self, trigger: TriggerRequest, delivery: &Delivery) -> bool {
        let left = trigger.backfill.as_ref().and_then(|backfill| backfill.left.split_first());
        let Some((first, rest)) = left.map(|(first, rest)| (*first, rest.to_vec())) else {
            return true;
        };
        let definition = match self.decide(&trigger).await {
            Decision::Fire(definition, _) => definition,
            Decision::JobGone => {
                tracing::info!(job = %trigger.job, left = rest.len() + 1, "A backfill ends: its job is deleted.");
                return true;
            }
            // None of these happens to what somebody asked for.
            Decision::Over | Decision::Paused(_) | Decision::Refused(_) => return true,
            Decision::Unknown => return false,
        };
        match self.has_room(&definition).await {
            Ok(true) => {}
            Ok(false) => return self.put_back(&trigger, AGAIN).await,
            Err(error) => {
                tracing::warn!(job = %trigger.job, %error, "Whether a backfill may go on cannot be seen; it is tried again.");
                return self.put_back(&trigger, AGAIN).await;
            }
        }
        let Some(at) = chrono::DateTime::from_timestamp_millis(first.0) else { return true };
        let id = Backfill::trigger_id(first);
        let prefix = self.firing.nats().names().prefix().clone();
        let fire = FireId::trigger(trigger.job.clone(), id.clone());
        let run = fire.run(&prefix, definition.since().timestamp_millis(), at);
        let one = TriggerRequest { id, run, at, backfill: None, ..trigger.clone() };
        if !self.fire(one, delivery).await {
            return false;
        }
        fail_point!("backfill.after_step");
        if rest.is_empty() {
            return true;
        }
        let backfill = trigger.backfill.clone().map(|backfill| Backfill { left: rest, ..backfill });
        self.put_back(&TriggerRequest { backfill, ..trigger }, NEXT).await
    }

    /// Whether the next instant would begin at once, or nearly.
    async fn has_room(&self, definition: &Definition) -> Result<bool, ReadError> {
        let spec = definition.spec();
        if let Some(bounds) = Bounds::of(spec) {
            let free = match spec.overlap {
                Overlap::Allow => self.firing.queues.has_free(&spec.id, bounds).await,
                _ => self.firing.queues.is_busy(&spec.id).await.map(|busy| !busy),
            };
            let free = free.map_err(|error| ReadError::Refused(error.to_string()))?;
            if !free || spec.overlap != Overlap::Allow {
                return Ok(free);
            }
        }
        let mut consumers = vec![of_priority(&spec.handler, Priority::default())];
        // It may stand in either.
        if !spec.priority.is_default() {
            consumers.push(of_priority(&spec.handler, spec.priority));
        }
        // What is for one executor waits there: behind all else that is for it alone.
        if spec.route != Route::Any {
            let live = self.firing.registry.candidates(&spec.app, &spec.handler);
            consumers.extend(live.iter().map(on_instance));
        }
        let looks = consumers.into_iter().map(|consumer| self.waits(&spec.app, consumer));
        let mut looks = stream::iter(looks).buffer_unordered(LOOKS);
        while let Some(waits) = looks.next().await {
            if waits? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether this consumer has work that nobody has taken.
    async fn waits(&self, app: &App, consumer: String) -> Result<bool, ReadError> {
        let nats = self.firing.nats();
        let stream = nats.names().dispatch_stream(app);
        match consumer_info(nats.js(), &stream, &consumer).await {
            Ok(consumer) => Ok(consumer.is_some_and(|consumer| consumer.pending > 0)),
            Err(ReadError::NoStream(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Stores what is left, to come in a while.
    async fn put_back(&self, trigger: &TriggerRequest, wait: TimeDelta) -> bool {
        let Some(backfill) = &trigger.backfill else { return true };
        let Ok(body) = serde_json::to_vec(trigger) else { return true };
        let names = self.firing.nats().names();
        let due = self.firing.clock.now() + wait;
        // A step that is made twice puts back the same: the later message replaces the earlier one.
        let draft = Draft::new(names.backfill_delay(&trigger.job, &backfill.id), body);
        let draft = draft.at(due, names.trigger(&trigger.job));
        let stored = self.firing.publisher().publish_within(draft, PATIENCE).await;
        stored
            .inspect_err(|error| {
                tracing::warn!(job = %trigger.job, %error, "What is left of a backfill is not stored; its step comes again.");
            })
            .is_ok()
    }
}
