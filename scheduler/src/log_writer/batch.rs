//! One batch of events, in one transaction: load, apply, save, decide.
//!
//! *Invariants.* Decisions are rows of the same transaction as the transition that made them,
//! never "commit, then decide". Applying a batch twice changes nothing. Data that SQL refuses is
//! found by halving the batch, and set aside alone.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::FutureExt;
use futures::future::BoxFuture;
use taskparty_nats::fail_point;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard};
use tokio::time::timeout;
use uuid::Uuid;

use super::event::Line;
use super::ids;
use super::policy::{self, Policies, Policy};
use super::transition::{self, Effect, Event, Setting};
use super::unfinished::Unfinished;
use crate::store::{
    AlertPart, Attempt, Decision, Definition, Digest, Run, SetAside, Store, StoreError, Tx,
};

/// What a batch is written with.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    store: Store,
    policies: Arc<Mutex<Policies>>,
    unfinished: Arc<AsyncMutex<Unfinished>>,
    lease: Duration,
}

/// How long a batch waits for the one before it, as a sweep's, until that counts as an outage.
const PATIENCE: Duration = Duration::from_secs(5);

/// Events to write together. Cheap to write again.
#[derive(Debug)]
pub(super) struct Batch {
    lines: Arc<[Line]>,
    aside: Arc<[SetAside]>,
}

impl Batch {
    /// `lines` to write, and `aside` to set aside.
    pub(super) fn new(mut lines: Vec<Line>, aside: Vec<SetAside>) -> Self {
        // In the order of runs, so that two writers would never wait for each other, and that all of a run
        // stands together; within a run in the order in which things came.
        lines.sort_by_key(|line| line.event.run());
        Self { lines: lines.into(), aside: aside.into() }
    }

    /// Whether there is nothing to write.
    pub(super) fn is_empty(&self) -> bool {
        self.lines.is_empty() && self.aside.is_empty()
    }
}

/// What became of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Written {
    /// Events that were applied.
    pub(super) events: usize,
    /// Decisions that wait in the outbox now.
    pub(super) decisions: usize,
    /// Lines that were set aside.
    pub(super) set_aside: usize,
}

impl Written {
    fn and(mut self, other: Written) -> Self {
        self.events += other.events;
        self.decisions += other.decisions;
        self.set_aside += other.set_aside;
        self
    }
}

impl Writer {
    pub(super) fn new(store: Store, lease: Duration) -> Self {
        let policies = Arc::new(Mutex::new(policy::policies()));
        Self { store, policies, unfinished: Arc::default(), lease }
    }

    /// The runs that were written and have not ended.
    ///
    /// None while they are at work on: it is not known then.
    pub(super) fn unfinished(&self) -> Option<MutexGuard<'_, Unfinished>> {
        self.unfinished.try_lock().ok()
    }

    /// The policy of this digest, when it is in memory.
    pub(super) fn known_policy(&self, digest: &Digest) -> Option<Arc<Policy>> {
        self.policies.lock().unwrap_or_else(PoisonError::into_inner).get(digest)
    }

    /// Writes a batch.
    ///
    /// # Errors
    /// [`StoreError::Outage`] alone: then a part may be written, and writing all again is right.
    pub(super) async fn write(&self, batch: &Batch) -> Result<Written, StoreError> {
        self.halving(batch.lines.clone(), batch.aside.clone()).await
    }

    fn halving(
        &self,
        lines: Arc<[Line]>,
        aside: Arc<[SetAside]>,
    ) -> BoxFuture<'_, Result<Written, StoreError>> {
        async move {
            let reason = match self.attempt(lines.clone(), aside.clone()).await {
                Ok(written) => return Ok(written),
                Err(error @ StoreError::Outage(_)) => return Err(error),
                Err(error) => error.to_string(),
            };
            let Some(first) = lines.first() else {
                tracing::error!(reason, lines = aside.len(), "Lines that were to be set aside cannot be kept; they are dropped.");
                return Ok(Written::default());
            };
            let middle = lines.partition_point(|line| line.event.run() <= lines[lines.len() / 2].event.run());
            let same_run = lines.iter().all(|line| line.event.run() == first.event.run());
            if same_run && !aside.is_empty() {
                let written = self.halving(Arc::default(), aside).await?;
                return Ok(written.and(self.halving(lines, Arc::default()).await?));
            }
            if same_run {
                tracing::error!(run = %first.event.run(), reason, "SQL refuses what came about a run; it is set aside.");
                let all: Vec<SetAside> =
                    lines.iter().map(|line| line.set_aside(reason.clone())).collect();
                return self.halving(Arc::default(), all.into()).await;
            }
            let middle = match middle {
                end if end == lines.len() => lines
                    .partition_point(|line| line.event.run() < lines[lines.len() - 1].event.run()),
                middle => middle,
            };
            let (low, high) = lines.split_at(middle);
            let written = self.halving(low.into(), aside).await?;
            Ok(written.and(self.halving(high.into(), Arc::default()).await?))
        }
        .boxed()
    }

    /// One transaction.
    async fn attempt(
        &self,
        lines: Arc<[Line]>,
        aside: Arc<[SetAside]>,
    ) -> Result<Written, StoreError> {
        let (policies, lease) = (self.policies.clone(), self.lease);
        // The transaction holds it, so that another one waits even when nobody waits for this one.
        let place = timeout(PATIENCE, self.unfinished.clone().lock_owned()).await;
        let mut place = place.map_err(|_| sqlx::Error::PoolTimedOut)?;
        let (written, fresh, mut place, unfinished) = self
            .store
            .write(move |mut tx| {
                async move {
                    // Taken out: when the transaction fails none are left that the store may not have.
                    let mut unfinished = std::mem::take(&mut *place);
                    unfinished.check(tx.version().await?);
                    let work = Work::load(&mut tx, &lines, &policies, &mut unfinished).await?;
                    let mut done = work.apply(&lines, lease);
                    let written = done.save(&mut tx, &aside).await?;
                    fail_point!("log_writer.before_commit");
                    for worked in done.runs.drain(..).filter(Worked::is_stored) {
                        unfinished.keep(worked.run);
                    }
                    Ok((written, done.fresh, place, unfinished))
                }
                .boxed()
            })
            .await?;
        *place = unfinished;
        drop(place);
        // Only now is it certain that the definitions are kept.
        let mut policies = self.policies.lock().unwrap_or_else(PoisonError::into_inner);
        for (digest, policy) in fresh {
            policies.put(digest, policy);
        }
        Ok(written)
    }
}

/// What a transaction works on.
struct Work {
    runs: HashMap<Uuid, Run>,
    policies: HashMap<Digest, Arc<Policy>>,
    definitions: Vec<Definition>,
    fresh: Vec<(Digest, Arc<Policy>)>,
}

/// A run that was worked on.
struct Worked {
    run: Run,
    effect: Effect,
    /// But for its effect it is as the store has it.
    stored: bool,
}

impl Worked {
    fn on(run: Run, stored: bool) -> Self {
        Self { run, effect: Effect::default(), stored }
    }

    /// When its effect is saved it is as the store has it.
    fn is_stored(&self) -> bool {
        self.stored || self.effect.run
    }
}

/// What it has made of it.
struct Done {
    /// In the order of the lines, which is that of runs: the last one is the run at hand.
    runs: Vec<Worked>,
    definitions: Vec<Definition>,
    fresh: Vec<(Digest, Arc<Policy>)>,
    aside: Vec<SetAside>,
    events: usize,
}

impl Work {
    async fn load(
        tx: &mut Tx<'_>,
        lines: &[Line],
        kept: &Mutex<Policies>,
        unfinished: &mut Unfinished,
    ) -> Result<Self, StoreError> {
        let mut ids: Vec<Uuid> = lines.iter().map(|line| line.event.run()).collect();
        ids.dedup();
        let (mut runs, mut unread) = (HashMap::with_capacity(ids.len()), Vec::new());
        for id in ids {
            match unfinished.take(&id) {
                Some(run) => drop(runs.insert(id, run)),
                None => unread.push(id),
            }
        }
        runs.extend(tx.runs(&unread).await?);
        let mut work =
            Self { runs, policies: HashMap::new(), definitions: Vec::new(), fresh: Vec::new() };
        let missing = work.gather(lines, kept);
        for (digest, spec) in tx.definitions(&missing).await? {
            work.add(digest, Arc::new(Policy::read(&spec)));
        }
        Ok(work)
    }

    /// Takes policies from memory and from fired records; returns the digests of the others.
    fn gather(&mut self, lines: &[Line], kept: &Mutex<Policies>) -> Vec<Digest> {
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        for line in lines {
            let Event::Fired(fired, digest) = &line.event else { continue };
            if self.policies.contains_key(digest) {
                continue;
            }
            if let Some(policy) = kept.get(digest) {
                self.policies.insert(*digest, policy);
                continue;
            }
            let spec = fired.definition.get().to_owned();
            self.add(*digest, Arc::new(Policy::read(&spec)));
            let (job, revision) = (fired.job.clone(), fired.revision);
            self.definitions.push(Definition { digest: *digest, job, revision, spec });
        }
        let mut missing = Vec::new();
        for run in self.runs.values() {
            let Some(digest) = run.fired.as_ref().map(|fired| fired.definition) else { continue };
            if self.policies.contains_key(&digest) || missing.contains(&digest) {
                continue;
            }
            match kept.get(&digest) {
                Some(policy) => {
                    self.policies.insert(digest, policy);
                }
                None => missing.push(digest),
            }
        }
        missing
    }

    fn add(&mut self, digest: Digest, policy: Arc<Policy>) {
        self.policies.insert(digest, policy.clone());
        self.fresh.push((digest, policy));
    }

    fn apply(mut self, lines: &[Line], lease: Duration) -> Done {
        let mut done = Done {
            runs: Vec::with_capacity(lines.len()),
            definitions: self.definitions,
            fresh: self.fresh,
            aside: Vec::new(),
            events: 0,
        };
        let unread = Arc::new(Policy::default());
        for line in lines {
            let id = line.event.run();
            // All that is about a run stands together.
            if let Some(run) = self.runs.remove(&id) {
                done.runs.push(Worked::on(run, true));
            }
            let known = done.runs.last().map(|worked| &worked.run).filter(|run| run.id == id);
            if let Some(reason) = stranger(known, line) {
                done.aside.push(line.set_aside(reason));
                continue;
            }
            if known.is_none() {
                // Only events that name their job make a run known.
                let Some(job) = line.event.job() else { continue };
                let run = transition::unknown(id, job.clone(), line.app.clone());
                done.runs.push(Worked::on(run, false));
            }
            let Some(Worked { run, effect, stored }) = done.runs.last_mut() else { continue };
            if only_planned(run) && !matches!(line.event, Event::Scheduled(_) | Event::Asked(_)) {
                // The job may have got another app since its trigger was taken.
                *stored &= run.app == line.app;
                run.app = line.app.clone();
            }
            let digest = match (&run.fired, &line.event) {
                (Some(fired), _) => Some(fired.definition),
                (None, Event::Fired(_, digest)) => Some(*digest),
                (None, _) => None,
            };
            let policy = digest.and_then(|digest| self.policies.get(&digest)).unwrap_or(&unread);
            let setting = Setting { now: line.at, policy, lease };
            effect.absorb(transition::apply(run, &line.event, &setting));
            done.events += 1;
        }
        done
    }
}

/// Nothing is known of it but that a trigger waits.
fn only_planned(run: &Run) -> bool {
    run.planned.is_some() && run.fired.is_none() && run.attempts.is_empty()
}

/// Why an event cannot be about this run.
fn stranger(known: Option<&Run>, line: &Line) -> Option<String> {
    let run = known?;
    let theirs = run.fired.is_none() && matches!(line.event, Event::Fired(..));
    // No executor may publish these; and the job may have got another app since its run was made.
    let theirs = theirs || matches!(line.event, Event::Asked(_));
    let other_app = run.app != line.app && !only_planned(run);
    if theirs {
        return None;
    }
    if other_app {
        return Some(format!("the run is of app {}, not of {}", run.app, line.app));
    }
    match line.event.job() {
        Some(job) if *job != run.job => {
            Some(format!("the run is of job {}, not of {job}", run.job))
        }
        _ => None,
    }
}

impl Done {
    async fn save(&self, tx: &mut Tx<'_>, aside: &[SetAside]) -> Result<Written, StoreError> {
        let mut runs: Vec<&Run> = Vec::with_capacity(self.runs.len());
        let mut attempts: Vec<(Uuid, (u32, u32), &Attempt)> = Vec::new();
        let mut decisions: Vec<Decision> = Vec::new();
        let mut reset = Vec::new();
        for Worked { run, effect, .. } in &self.runs {
            if effect.run {
                runs.push(run);
            }
            if effect.reset {
                reset.push(run.id);
            }
            for key in &effect.attempts {
                if let Some(attempt) = run.attempts.get(key) {
                    attempts.push((run.id, *key, attempt));
                }
            }
            decisions.extend(effect.decisions.iter().cloned());
        }
        let all: Vec<SetAside> = aside.iter().chain(&self.aside).cloned().collect();
        decisions.extend(alert(&all).map(Decision::Alert));
        tx.save_definitions(&self.definitions).await?;
        tx.forget_attempts(&reset).await?;
        tx.save_runs(&runs).await?;
        tx.save_attempts(&attempts).await?;
        tx.set_aside(&all).await?;
        tx.decide(&decisions).await?;
        Ok(Written { events: self.events, decisions: decisions.len(), set_aside: all.len() })
    }
}

/// One alert for all that a batch sets aside.
fn alert(aside: &[SetAside]) -> Option<AlertPart> {
    let first = aside.iter().min_by_key(|aside| (aside.seq, aside.line))?;
    let at: DateTime<Utc> = first.stored_at;
    let more = match aside.len() {
        1 => String::new(),
        count => format!("; and {} more", count - 1),
    };
    Some(AlertPart {
        id: ids::set_aside(first.seq),
        kind: "set_aside",
        job: None,
        run: None,
        state: None,
        code: None,
        message: format!(
            "A message on {} (sequence {}) could not be taken into the history: {}{more}. It is \
             kept in the table set_aside.",
            first.subject, first.seq, first.reason
        ),
        attempts: 0,
        fire_time: None,
        at,
    })
}
