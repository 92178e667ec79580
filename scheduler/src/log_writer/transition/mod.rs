//! From what is known of a run and one event to what is known afterwards, and what follows.
//!
//! Pure: values in, values out. Events come in any order and any number of times; in whatever
//! order the events of a run come, it ends the same, and each decision is made once.
//!
//! *Invariants.*
//! - *The first terminal result of an attempt wins*; a later one is kept as a note.
//! - *A run at its end never changes*, but for a retry that somebody asks for in its round (`ask`).
//! - *Nothing is decided before the fired record*, whose plan says how many shards there are.

mod ask;
mod record;
mod settle;
mod sweep;
#[cfg(test)]
pub(super) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::ask::Asked;
use taskparty_common::dispatch::{Progress, ResultRecord, Started};
use taskparty_common::fire::{Fired, Scheduled};
use taskparty_common::name::{App, JobId};
use taskparty_common::outcome::RunState;
use uuid::Uuid;

use super::policy::Policy;
use crate::store::{Decision, Digest, Run};

pub use sweep::{Verdict, Watched, What};

/// How long after its time a retry without a fired record is triggered again.
pub const RETRY_AGAIN_AFTER: TimeDelta = TimeDelta::seconds(60);

/// How long after its start deadline an attempt is looked at: `started` comes late by design.
const START_SLACK: TimeDelta = TimeDelta::seconds(2);

/// What happened to a run.
#[derive(Debug, Clone)]
pub enum Event {
    /// A delayed trigger waits for its time.
    Scheduled(Box<Scheduled>),
    /// The trigger's result, with the digest of its definition.
    Fired(Box<Fired>, Digest),
    /// A handler is at work.
    Started(Started),
    /// A handler says how far it is.
    Progress(Progress),
    /// An attempt ended.
    Result(Box<ResultRecord>),
    /// Somebody wants something of the run.
    Asked(Asked),
    /// The sweep found out about an attempt.
    Sweep(Verdict),
}

impl Event {
    /// The run that it is about.
    pub fn run(&self) -> Uuid {
        match self {
            Event::Scheduled(scheduled) => scheduled.run,
            Event::Fired(fired, _) => fired.run,
            Event::Started(started) => started.run,
            Event::Progress(progress) => progress.run,
            Event::Result(result) => result.run,
            Event::Asked(asked) => asked.run,
            Event::Sweep(verdict) => verdict.run,
        }
    }

    /// The job, where the event names it.
    pub fn job(&self) -> Option<&JobId> {
        match self {
            Event::Scheduled(scheduled) => Some(&scheduled.job),
            Event::Fired(fired, _) => Some(&fired.job),
            Event::Started(started) => Some(&started.job),
            Event::Result(result) => Some(&result.job),
            Event::Asked(asked) => Some(&asked.job),
            Event::Progress(_) | Event::Sweep(_) => None,
        }
    }
}

/// What a transition goes by besides run and event.
#[derive(Debug, Clone, Copy)]
pub struct Setting<'a> {
    /// The time: of the event, as the server stored it; of the sweep, as it knows it.
    pub now: DateTime<Utc>,
    /// The policy of the run; needed once its fired record is known.
    pub policy: &'a Policy,
    /// The lease of a dispatch.
    pub lease: Duration,
}

/// What a transition did, besides changing the run.
#[derive(Debug, Default, PartialEq)]
pub struct Effect {
    /// What follows; for the outbox.
    pub decisions: Vec<Decision>,
    /// The attempts that changed.
    pub attempts: BTreeSet<(u32, u32)>,
    /// Something of the run itself changed.
    pub run: bool,
    /// The attempts that were known belonged to another app and are void.
    pub reset: bool,
}

impl Effect {
    /// Adds what a further transition of the same run did.
    pub fn absorb(&mut self, later: Effect) {
        self.decisions.extend(later.decisions);
        if later.reset {
            self.attempts.clear();
            self.reset = true;
        }
        self.attempts.extend(later.attempts);
        self.run |= later.run;
    }

    fn touch(&mut self, key: (u32, u32)) {
        self.attempts.insert(key);
        self.run = true;
    }
}

/// A run of which nothing is known yet but its names.
pub fn unknown(id: Uuid, job: JobId, app: App) -> Run {
    Run {
        id,
        job,
        app,
        state: RunState::Dispatched,
        planned: None,
        fired: None,
        code: None,
        started_at: None,
        ended_at: None,
        cancel: None,
        round: 0,
        attempts: BTreeMap::new(),
    }
}

/// Applies `event` to `run`.
pub fn apply(run: &mut Run, event: &Event, setting: &Setting<'_>) -> Effect {
    let mut effect = Effect::default();
    let ended = run.state.is_terminal();
    match event {
        Event::Scheduled(scheduled) => record::scheduled(run, scheduled, &mut effect),
        Event::Fired(fired, digest) => record::fired(run, fired, *digest, setting, &mut effect),
        Event::Started(started) => record::started(run, started, setting, &mut effect),
        Event::Progress(progress) => record::progress(run, progress, &mut effect),
        Event::Result(result) => record::result(run, result, &mut effect),
        Event::Asked(asked) => ask::asked(run, asked, setting, &mut effect),
        Event::Sweep(verdict) => sweep::apply(run, verdict, setting, &mut effect),
    }
    if effect.run && !ended {
        settle::settle(run, setting, &mut effect);
    }
    effect
}

fn after(at: DateTime<Utc>, time: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(time)
        .ok()
        .and_then(|time| at.checked_add_signed(time))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}
