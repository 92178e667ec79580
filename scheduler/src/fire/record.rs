//! What a lock's holder does with it: dispatch or not, and the fired record.

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::fire::{FireId, Fired, Intent, Plan, Skipped};
use taskparty_common::job::{JobSpec, MAX_SHARDS};
use taskparty_common::outcome::{SkipReason, TriggerResult};
use taskparty_common::rate::Rate;
use taskparty_nats::fail_point;
use taskparty_nats::publish::PublishError;
use taskparty_nats::topology::TopologyError;
use tokio::time::Instant;

use super::dispatch::{Dispatched, Times};
use super::place::{Place, Whereabouts, asks_for_place};
use super::{Firing, Held, Recorded, written};
use crate::definition::Definition;
use crate::overlap::words_of_rate;

/// What became of a fire, and a sentence about it.
pub(super) struct Verdict {
    result: TriggerResult,
    message: String,
    times: Option<Times>,
    skipped: Option<Skipped>,
}

/// How far a fire is, and until when it may go on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun<'a> {
    /// The shards that have results already.
    pub(super) done: &'a [u32],
    /// After this nothing of it is sent that was not: another one may say that it was left out.
    pub(super) send_by: Option<DateTime<Utc>>,
    /// When it was known that nobody had sent the others.
    pub(super) known_at: Instant,
    pub(super) hand: Hand,
}

/// Who carries a fire out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hand {
    /// Who has just taken its lock.
    First,
    /// Who goes on with it: another one may have been at it.
    Next,
}

/// Why there is no fired record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// It is too late to go on: whoever completes it decides.
    Over,
    /// The node ends; another one goes on.
    Interrupted,
}

impl Verdict {
    pub(super) fn new(result: TriggerResult, message: impl Into<String>) -> Self {
        Self { result, message: message.into(), times: None, skipped: None }
    }

    /// The run waits for its turn.
    pub(super) fn waits() -> Self {
        Self::new(TriggerResult::Queued, "an earlier run goes on; it waits for its turn")
    }

    /// The run waits until its job's rate lets it begin; at `at` the first of those that wait may,
    /// and so many wait `before` it.
    pub(super) fn held(rate: Rate, at: DateTime<Utc>, before: usize) -> Self {
        Self::new(TriggerResult::Queued, words_of_rate(rate, at, before))
    }

    /// The fire is left out.
    pub(super) fn skipped(skipped: Skipped) -> Self {
        let message = describe(&skipped);
        Self { skipped: Some(skipped), ..Self::new(TriggerResult::Skipped, message) }
    }
}

impl Firing {
    /// Carries out `intent` for whoever holds its lock.
    ///
    /// # Errors
    /// [`Stopped`]: there is no fired record.
    pub(super) async fn carry_out(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
        begun: Begun<'_>,
    ) -> Result<Recorded, Stopped> {
        let spec = definition.spec();
        let asks = asks_for_place(spec, &intent.plan);
        let place = match asks {
            true => Box::pin(self.ask_for_place(id, intent, definition, begun.send_by)).await,
            false => Place::Free,
        };
        let verdict = match place {
            Place::Free => {
                let turn = async {
                    if asks {
                        Box::pin(self.router.took(spec, &intent.plan)).await;
                    }
                };
                let (verdict, ()) = tokio::join!(self.decide(intent, definition, begun), turn);
                verdict?
            }
            Place::Over(verdict) => verdict,
            Place::Stopped(stopped) => return Err(stopped),
        };
        self.conclude(id, intent, definition, verdict).await.ok_or(Stopped::Interrupted)
    }

    /// As [`Firing::carry_out`], for a run that waited and has its place.
    pub(super) async fn dispatch_waiter(
        &self,
        held: &Held,
        done: &[u32],
        known_at: Instant,
    ) -> bool {
        let Held { id, intent, .. } = held;
        let Some(definition) = frozen(held) else { return true };
        let begun = Begun { done, send_by: None, known_at, hand: Hand::Next };
        let Ok(verdict) = self.decide(intent, &definition, begun).await else { return false };
        self.conclude(id, intent, &definition, verdict).await.is_some()
    }

    async fn conclude(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
        verdict: Verdict,
    ) -> Option<Recorded> {
        fail_point!("fire.after_dispatch");
        let dispatched_at = verdict.times.map(|times| times.dispatched_at);
        let stored = self.record(id, intent, definition, verdict).await;
        stored.then_some(Recorded { dispatched_at })
    }

    /// Dispatches, unless there is a reason not to.
    async fn decide(
        &self,
        intent: &Intent,
        definition: &Definition,
        Begun { done, send_by, known_at, hand }: Begun<'_>,
    ) -> Result<Verdict, Stopped> {
        if let Some(skipped) = &intent.skipped {
            return Ok(Verdict::skipped(skipped.clone()));
        }
        let spec = definition.spec();
        if intent.plan.total == 0 {
            return Ok(self.nobody_to_share_with(spec));
        }
        let present =
            !intent.plan.targets.is_empty() || self.registry.has(&spec.app, &spec.handler);
        if !present && spec.no_executor_wait.is_zero() && done.is_empty() {
            let message = format!("no executor of {}/{} is there", spec.app, spec.handler);
            return Ok(Verdict::new(TriggerResult::NoExecutor, message));
        }
        if !self.consumers_are_ready(definition, &intent.plan).await {
            return Err(Stopped::Interrupted);
        }
        if !self.previous_is_gone(intent, definition, hand).await {
            return Err(Stopped::Interrupted);
        }
        let now = self.clock.now();
        let known_from = now - TimeDelta::from_std(known_at.elapsed()).unwrap_or_default();
        let times = Times { send_by, known_at, known_from, ..Times::from(now, spec) };
        let shards = intent.plan.shards().filter(|shard| !done.contains(shard)).collect();
        Ok(match self.dispatch(intent, definition, shards, times).await {
            Dispatched::All if present || !done.is_empty() => {
                Verdict { times: Some(times), ..Verdict::new(TriggerResult::Dispatched, "") }
            }
            Dispatched::All => {
                let wait = taskparty_common::duration::format(spec.no_executor_wait);
                let message = format!(
                    "no executor of {}/{} is there; it waits for one, for at most {wait}",
                    spec.app, spec.handler
                );
                Verdict { times: Some(times), ..Verdict::new(TriggerResult::Queued, message) }
            }
            Dispatched::Refused(reason) => {
                tracing::error!(job = %spec.id, run = %intent.run, %reason, "A dispatch was refused.");
                Verdict::new(TriggerResult::Refused, reason)
            }
            Dispatched::Late => {
                let message = "the start deadline passed before it could be dispatched";
                Verdict { times: Some(times), ..Verdict::new(TriggerResult::Expired, message) }
            }
            Dispatched::Over => return Err(Stopped::Over),
            Dispatched::Interrupted => return Err(Stopped::Interrupted),
        })
    }

    /// There is no shard, because there was no executor to have one.
    fn nobody_to_share_with(&self, spec: &JobSpec) -> Verdict {
        let live = self.registry.candidates(&spec.app, &spec.handler).len();
        if live > MAX_SHARDS as usize {
            let message = format!(
                "{live} executors of {}/{} are live, and a run has at most {MAX_SHARDS} shards",
                spec.app, spec.handler
            );
            return Verdict::new(TriggerResult::Refused, message);
        }
        let message =
            format!("no executor of {}/{} is there to have a shard", spec.app, spec.handler);
        Verdict::new(TriggerResult::NoExecutor, message)
    }

    /// Waits until the consumers of the handler and of the plan's executors are confirmed: nothing
    /// is dispatched before that. Who has gone needs none: the sweep finds its work.
    async fn consumers_are_ready(&self, definition: &Definition, plan: &Plan) -> bool {
        let spec = definition.spec();
        loop {
            match self.ensure_consumers(spec, plan).await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::warn!(app = %spec.app, handler = %spec.handler, %error, "A handler's consumer cannot be made; it is tried again.");
                }
            }
            if self.pause().await.is_err() {
                return false;
            }
        }
    }

    pub(super) async fn ensure_consumers(
        &self,
        spec: &JobSpec,
        plan: &Plan,
    ) -> Result<(), TopologyError> {
        self.topology.ensure_handler(&spec.app, &spec.handler).await?;
        if let Some(priority) = plan.priority {
            self.topology.ensure_priority(&spec.app, &spec.handler, priority).await?;
        }
        for target in &plan.targets {
            if self.registry.lives(&spec.app, target) {
                self.topology.ensure_instance(&spec.app, target).await?;
            }
        }
        Ok(())
    }

    /// Records a half-done fire that is too old to be dispatched.
    pub(super) async fn record_expired(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
    ) -> bool {
        let message = "it was found half done after its time";
        self.record(id, intent, definition, Verdict::new(TriggerResult::Expired, message)).await
    }

    /// Stores the fired record of a fire anew, whose first one was deleted with its stream: as its
    /// lock says it, and the entry of its job. What became of it is not known beyond that: if it was
    /// not dispatched after all, it is found missing.
    pub(crate) async fn record_again(&self, held: &Held) -> bool {
        let intent = &held.intent;
        let Some(definition) = frozen(held) else { return false };
        let verdict = match (&intent.skipped, self.whereabouts(held, &definition).await) {
            (Some(skipped), _) => Verdict::skipped(skipped.clone()),
            (None, Whereabouts::Waits) => Verdict::waits(),
            (None, Whereabouts::LeftOut(reason)) => {
                let skipped = Skipped { reason, count: 1, first: intent.fire_time };
                Verdict::skipped(skipped)
            }
            (None, Whereabouts::GoesOn) => {
                let times = Times::from(intent.planned_at, definition.spec());
                let message = "recorded again: its first record was deleted";
                Verdict { times: Some(times), ..Verdict::new(TriggerResult::Dispatched, message) }
            }
        };
        self.record(&held.id, intent, &definition, verdict).await
    }

    /// Records that the job of a run that waited is gone.
    pub(super) async fn record_deleted(&self, id: &FireId, intent: Intent) -> bool {
        let Ok(definition) = Definition::frozen(&intent.definition, intent.revision, intent.since)
        else {
            return true;
        };
        let skipped = Skipped { reason: SkipReason::Deleted, count: 1, first: intent.fire_time };
        self.record(id, &intent, &definition, Verdict::skipped(skipped)).await
    }

    /// Stores the fired record, for as long as that takes.
    async fn record(
        &self,
        id: &FireId,
        intent: &Intent,
        definition: &Definition,
        verdict: Verdict,
    ) -> bool {
        let spec = definition.spec();
        let fired = Fired {
            v: 1,
            lock: id.lock_key(),
            run: intent.run,
            job: spec.id.clone(),
            app: spec.app.clone(),
            handler: spec.handler.clone(),
            revision: definition.revision,
            since: definition.since(),
            owner: intent.owner.clone(),
            trigger: intent.trigger,
            result: verdict.result,
            message: verdict.message,
            fire_time: intent.fire_time,
            fired_at: verdict.times.map_or_else(|| self.clock.now(), |times| times.dispatched_at),
            start_by: verdict.times.map(|times| times.start_by),
            plan: intent.plan.clone(),
            skipped: verdict.skipped,
            definition: definition.json.as_ref().to_owned(),
            params: intent.params.clone(),
        };
        self.store_fired(&fired).await
    }

    /// Stores a fired record, for as long as that takes; false when the node ended meanwhile.
    pub(crate) async fn store_fired(&self, fired: &Fired) -> bool {
        let subject = self.nats().names().fired(&fired.app);
        let Ok(line) = written(fired, fired.definition.get().len()) else {
            tracing::error!(fire = %fired.lock, "A fired record cannot be written.");
            return false;
        };
        let mut waits = None;
        loop {
            match self.joiner.send(&subject, line.clone()).await {
                Ok(_) => return true,
                Err(PublishError::Full(text)) => {
                    waits.get_or_insert_with(|| self.waiting.begin());
                    Box::pin(self.alarms.raise("results_full", &no_room(&text))).await;
                }
                Err(error) => {
                    tracing::error!(fire = %fired.lock, %error, "A fired record is not stored; it is tried again.");
                }
            }
            if self.pause().await.is_err() {
                return false;
            }
        }
    }
}

fn no_room(text: &str) -> String {
    format!(
        "The stream of what happened has no room ({text}): nothing fires, and results wait with \
         their executors, until it has. Give it more (nats stream edit TASKPARTY_RESULTS --max-bytes), \
         or the NATS server more storage; nothing is lost"
    )
}

/// The definition that a lock holds; nothing, and said so, when it cannot be read.
pub(super) fn frozen(held: &Held) -> Option<Definition> {
    let intent = &held.intent;
    Definition::frozen(&intent.definition, intent.revision, intent.since)
        .inspect_err(|error| {
            tracing::error!(fire = %held.id, %error, "The definition in a lock cannot be read.");
        })
        .ok()
}

fn describe(skipped: &Skipped) -> String {
    match skipped.count {
        1 => format!("skipped: {}", skipped.reason),
        count => format!("skipped: {}, {count} instants from {}", skipped.reason, skipped.first),
    }
}
