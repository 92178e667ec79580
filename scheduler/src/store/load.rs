//! Loading the runs that a transaction is about, in few queries.

use std::collections::HashMap;

use sqlx::sqlite::SqliteRow;
use taskparty_common::name::{App, Handler, Instance, JobId};
use taskparty_common::outcome::{Code, Outcome, RunState, SkipReason, Trigger, TriggerResult};
use uuid::Uuid;

use super::read::{Columns, blob};
use super::sql::Blocks;
use super::{
    Attempt, CancelPart, Digest, FiredPart, PlannedPart, Run, Said, SkippedPart, StoreError, Tx,
};

/// The columns of a run, in the order in which [`run`] reads them and [`super::save`] writes them.
pub(super) const RUN: &str = "id, job, app, state, handler, lock_key, revision, since, definition, \
    owner, trigger_kind, trigger_result, trigger_message, skip_reason, skip_count, skip_first, \
    fire_time, fired_at, start_by, shards, params, code, attempts, started_at, ended_at, \
    cancel_requested_at, cancel_requested_by, round, said";

/// The columns of an attempt, likewise.
pub(super) const ATTEMPT: &str = "run, shard, attempt, state, outcome, code, message, output, \
    truncated, retryable, instance, delivery, due_at, dispatched_at, start_by, started_at, \
    ended_at, progress, notes, check_at, ending, target, pinned, moved, round";

/// How many those are.
pub(super) const ATTEMPT_COLUMNS: usize = 25;

#[derive(Debug)]
pub(super) struct Texts {
    runs: Blocks,
    attempts: Blocks,
    definitions: Blocks,
}

impl Texts {
    pub(super) fn new() -> Self {
        Self {
            runs: Blocks::list(&format!("SELECT {RUN} FROM runs WHERE id IN ("), ")"),
            attempts: Blocks::list(&format!("SELECT {ATTEMPT} FROM attempts WHERE run IN ("), ")"),
            definitions: Blocks::list(
                "SELECT digest, spec FROM definitions WHERE digest IN (",
                ")",
            ),
        }
    }
}

impl Tx<'_> {
    /// Those of the runs `ids` that are known, with all their attempts.
    pub(crate) async fn runs(&mut self, ids: &[Uuid]) -> Result<HashMap<Uuid, Run>, StoreError> {
        let mut runs = HashMap::with_capacity(ids.len());
        for (mut query, block) in self.texts.load.runs.over(ids) {
            for id in block {
                query = query.bind(blob(id.as_bytes()));
            }
            for row in query.fetch_all(&mut *self.connection).await? {
                let (run, _) = run(&row)?;
                runs.insert(run.id, run);
            }
        }
        let known: Vec<Uuid> = ids.iter().filter(|id| runs.contains_key(*id)).copied().collect();
        for (mut query, block) in self.texts.load.attempts.over(&known) {
            for id in block {
                query = query.bind(blob(id.as_bytes()));
            }
            for row in query.fetch_all(&mut *self.connection).await? {
                let (id, key, attempt) = attempt(&row)?;
                if let Some(run) = runs.get_mut(&id) {
                    run.attempts.insert(key, Box::new(attempt));
                }
            }
        }
        Ok(runs)
    }

    /// The texts of the definitions `digests`.
    pub(crate) async fn definitions(
        &mut self,
        digests: &[Digest],
    ) -> Result<Vec<(Digest, String)>, StoreError> {
        let mut found = Vec::with_capacity(digests.len());
        for (mut query, block) in self.texts.load.definitions.over(digests) {
            for digest in block {
                query = query.bind(blob(digest));
            }
            for row in query.fetch_all(&mut *self.connection).await? {
                let mut columns = Columns::of(&row);
                let digest = columns.uuid()?.into_bytes();
                found.push((digest, columns.string()?));
            }
        }
        Ok(found)
    }
}

/// A run without its attempts, and how many those are.
pub(super) fn run(row: &SqliteRow) -> Result<(Run, u32), StoreError> {
    let mut c = Columns::of(row);
    let id = c.uuid()?;
    let job = c.parsed(|text| JobId::new(text).ok())?;
    let app = c.parsed(|text| App::new(text).ok())?;
    let state = c.parsed(RunState::from_word)?;
    let (mut planned, fired) = trigger(&mut c)?;
    let code = c.maybe_parsed(Code::from_word)?;
    let attempts = c.count()?;
    let started_at = c.maybe_time()?;
    let ended_at = c.maybe_time()?;
    let cancel_at = c.maybe_time()?;
    let cancel_by = c.string()?;
    let cancel = cancel_at.map(|at| CancelPart { at, by: cancel_by });
    let round = c.count()?;
    if let (Some(planned), Some(said)) = (&mut planned, c.maybe_json()?) {
        planned.said = said;
    }
    let run = Run {
        id,
        job,
        app,
        state,
        planned,
        fired,
        code,
        started_at,
        ended_at,
        cancel,
        round,
        attempts: std::collections::BTreeMap::new(),
    };
    Ok((run, attempts))
}

/// What is planned, or what was fired.
fn trigger(c: &mut Columns<'_>) -> Result<(Option<PlannedPart>, Option<FiredPart>), StoreError> {
    let handler = c.maybe_parsed(|text| Handler::new(text).ok())?;
    let lock = c.string()?;
    let revision = c.maybe_count()?;
    let since = c.maybe_time()?;
    let definition = c.bytes()?;
    let owner = c.maybe_parsed(|text| Instance::new(text).ok())?;
    let trigger = c.maybe_parsed(Trigger::from_word)?;
    let result = c.maybe_parsed(TriggerResult::from_word)?;
    let message = c.string()?;
    let reason = c.maybe_parsed(SkipReason::from_word)?;
    let count = c.maybe_count()?;
    let first = c.maybe_time()?;
    let fire_time = c.maybe_time()?;
    let fired_at = c.maybe_time()?;
    let start_by = c.maybe_time()?;
    let shards = c.maybe_count()?;
    let params = c.maybe_string()?;
    let skipped = match (reason, count, first) {
        (Some(reason), Some(count), Some(first)) => Some(SkippedPart { reason, count, first }),
        _ => None,
    };
    if result.is_none() {
        let planned = (|| {
            Some(PlannedPart {
                handler: handler?,
                lock,
                trigger: trigger?,
                fire_time: fire_time?,
                params,
                said: Said::default(),
            })
        })();
        return Ok((planned, None));
    }
    let fired = (|| {
        Some(FiredPart {
            handler: handler?,
            lock,
            revision: revision?,
            since: since?,
            definition: definition?,
            owner: owner?,
            trigger: trigger?,
            result: result?,
            message,
            skipped,
            fire_time: fire_time?,
            fired_at: fired_at?,
            start_by,
            shards: shards?,
            params,
        })
    })();
    Ok((None, fired))
}

/// An attempt with its run, shard and number.
pub(super) fn attempt(row: &SqliteRow) -> Result<(Uuid, (u32, u32), Attempt), StoreError> {
    let mut c = Columns::of(row);
    let run = c.uuid()?;
    let key = (c.count()?, c.count()?);
    let attempt = Attempt {
        state: c.parsed(RunState::from_word)?,
        outcome: c.maybe_parsed(Outcome::from_word)?,
        code: c.maybe_parsed(Code::from_word)?,
        message: c.string()?,
        output: c.maybe_string()?,
        truncated: c.flag()?,
        retryable: c.flag()?,
        instance: c.maybe_parsed(|text| Instance::new(text).ok())?,
        delivery: c.maybe_count()?,
        due_at: c.maybe_time()?,
        dispatched_at: c.maybe_time()?,
        start_by: c.maybe_time()?,
        started_at: c.maybe_time()?,
        ended_at: c.maybe_time()?,
        progress: c.maybe_json()?,
        notes: c.maybe_json()?.unwrap_or_default(),
        check_at: c.maybe_time()?,
        ending: c.maybe_json()?,
        target: c.maybe_parsed(|text| Instance::new(text).ok())?,
        pinned: c.flag()?,
        moved: c.flag()?,
        round: c.count()?,
    };
    Ok((run, key, attempt))
}
