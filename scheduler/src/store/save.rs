//! Writing runs and attempts: many rows a statement, each guarded.

use chrono::{DateTime, Utc};
use sqlx::query::Query;
use sqlx::sqlite::{Sqlite, SqliteArguments};
use taskparty_common::name::JobId;
use uuid::Uuid;

use super::load::{ATTEMPT, RUN};
use super::read::{big, blob, ms, some_text, text};
use super::sql::Blocks;
use super::{Attempt, Digest, Run, Said, StoreError, Tx};

type Bound = Query<'static, Sqlite, SqliteArguments>;

/// What a run was made with.
#[derive(Debug, Clone)]
pub struct Definition {
    /// The digest of `spec`.
    pub digest: Digest,
    /// The job.
    pub job: JobId,
    /// The revision in which it was first seen.
    pub revision: u64,
    /// The spec's text.
    pub spec: String,
}

#[derive(Debug)]
pub(super) struct Texts {
    runs: Blocks,
    attempts: Blocks,
    definitions: Blocks,
    reset: Blocks,
}

impl Texts {
    pub(super) fn new() -> Self {
        // An end is left in one way only: by a retry that counts up the round.
        let guard =
            format!("runs.state NOT IN ({}) OR excluded.round > runs.round", terminal_words());
        let runs = upsert("runs", RUN, 1, &guard);
        let attempts = upsert(
            "attempts",
            ATTEMPT,
            3,
            "attempts.outcome IS NULL OR attempts.outcome = excluded.outcome",
        );
        Self {
            runs,
            attempts,
            definitions: Blocks::insert(
                "INSERT INTO definitions (digest, job, revision, spec) VALUES ",
                4,
                " ON CONFLICT (digest) DO NOTHING",
            ),
            reset: Blocks::list("DELETE FROM attempts WHERE run IN (", ")"),
        }
    }
}

/// The states that are ends, as SQL strings.
pub(super) fn terminal_words() -> String {
    use taskparty_common::outcome::RunState;
    let ends = RunState::ALL.iter().filter(|(_, state)| state.is_terminal());
    ends.map(|(word, _)| format!("'{word}'")).collect::<Vec<_>>().join(", ")
}

/// An insert that updates all columns but the first `keys` where the row is there and `guard` holds.
fn upsert(table: &str, columns: &str, keys: usize, guard: &str) -> Blocks {
    let names: Vec<&str> = columns.split(',').map(str::trim).collect();
    let (key, values) = names.split_at(keys);
    let set: Vec<String> = values.iter().map(|name| format!("{name} = excluded.{name}")).collect();
    Blocks::insert(
        &format!("INSERT INTO {table} ({}) VALUES ", names.join(", ")),
        names.len(),
        &format!(
            " ON CONFLICT ({}) DO UPDATE SET {} WHERE {guard}",
            key.join(", "),
            set.join(", ")
        ),
    )
}

impl Tx<'_> {
    /// Keeps definitions that are not there yet.
    pub(crate) async fn save_definitions(
        &mut self,
        definitions: &[Definition],
    ) -> Result<(), StoreError> {
        for (mut query, block) in self.texts.save.definitions.over(definitions) {
            for definition in block {
                query = query
                    .bind(blob(&definition.digest))
                    .bind(definition.job.as_str().to_owned())
                    .bind(big(definition.revision))
                    .bind(definition.spec.clone());
            }
            query.execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// Keeps runs as they are now; those that had ended stay as they were, unless they are retried.
    pub(crate) async fn save_runs(&mut self, runs: &[&Run]) -> Result<(), StoreError> {
        for (mut query, block) in self.texts.save.runs.over(runs) {
            for run in block {
                query = bind_run(query, run);
            }
            query.execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// Keeps attempts of runs that are kept; those that had ended keep their end.
    pub(crate) async fn save_attempts(
        &mut self,
        attempts: &[(Uuid, (u32, u32), &Attempt)],
    ) -> Result<(), StoreError> {
        for (mut query, block) in self.texts.save.attempts.over(attempts) {
            for (run, key, attempt) in block {
                query = bind_attempt(query, *run, *key, attempt);
            }
            query.execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// Forgets all attempts of `runs`.
    pub(crate) async fn forget_attempts(&mut self, runs: &[Uuid]) -> Result<(), StoreError> {
        for (mut query, block) in self.texts.save.reset.over(runs) {
            for run in block {
                query = query.bind(blob(run.as_bytes()));
            }
            query.execute(&mut *self.connection).await?;
        }
        Ok(())
    }
}

/// SQL's largest number.
const LARGEST: u64 = i64::MAX as u64;

impl Run {
    /// Makes it what is read when it has been written: instants lose what is below a millisecond, counts
    /// what SQL cannot hold.
    ///
    /// *Invariant: all instants and counts that [`bind_run`] and [`bind_attempt`] write are cut here.*
    pub(crate) fn cut_as_stored(&mut self) {
        let Self { planned, fired, cancel, started_at, ended_at, attempts, .. } = self;
        if let Some(planned) = planned {
            cut(&mut planned.fire_time);
        }
        if let Some(fired) = fired {
            for at in [&mut fired.since, &mut fired.fire_time, &mut fired.fired_at] {
                cut(at);
            }
            cut_maybe([&mut fired.start_by]);
            fired.revision = fired.revision.min(LARGEST);
            if let Some(skipped) = &mut fired.skipped {
                cut(&mut skipped.first);
                skipped.count = skipped.count.min(LARGEST);
            }
        }
        if let Some(cancel) = cancel {
            cut(&mut cancel.at);
        }
        cut_maybe([started_at, ended_at]);
        for attempt in attempts.values_mut() {
            attempt.delivery = attempt.delivery.map(|delivery| delivery.min(LARGEST));
            let Attempt { due_at, dispatched_at, start_by, started_at, ended_at, check_at, .. } =
                attempt.as_mut();
            cut_maybe([due_at, dispatched_at, start_by, started_at, ended_at, check_at]);
        }
    }
}

fn cut(at: &mut DateTime<Utc>) {
    *at = DateTime::from_timestamp_millis(at.timestamp_millis()).unwrap_or(*at);
}

fn cut_maybe<const N: usize>(all: [&mut Option<DateTime<Utc>>; N]) {
    all.into_iter().flatten().for_each(cut);
}

fn bind_run(query: Bound, run: &Run) -> Bound {
    let fired = run.fired.as_ref();
    let skipped = fired.and_then(|fired| fired.skipped.as_ref());
    let handler = run.handler();
    let lock = run.lock();
    let trigger = run.trigger();
    let fire_time = run.fire_time();
    let params = run.params();
    let said = run.planned.as_ref().map(|planned| &planned.said);
    let said = said.filter(|said| **said != Said::default());
    query
        .bind(blob(run.id.as_bytes()))
        .bind(text(run.job.as_str()))
        .bind(text(run.app.as_str()))
        .bind(text(run.state.as_str()))
        .bind(handler.map(|handler| text(handler.as_str())))
        .bind(lock.map(String::as_str).map(text))
        .bind(fired.map(|fired| big(fired.revision)))
        .bind(fired.map(|fired| ms(fired.since)))
        .bind(fired.map(|fired| blob(&fired.definition)))
        .bind(fired.map(|fired| text(fired.owner.as_str())))
        .bind(trigger.map(|trigger| text(trigger.as_str())))
        .bind(fired.map(|fired| text(fired.result.as_str())))
        .bind(fired.and_then(|fired| some_text(&fired.message)))
        .bind(skipped.map(|skipped| text(skipped.reason.as_str())))
        .bind(skipped.map(|skipped| big(skipped.count)))
        .bind(skipped.map(|skipped| ms(skipped.first)))
        .bind(fire_time.map(ms))
        .bind(fired.map(|fired| ms(fired.fired_at)))
        .bind(fired.and_then(|fired| fired.start_by).map(ms))
        .bind(fired.map(|fired| i64::from(fired.shards)))
        .bind(params.map(String::as_str).map(text))
        .bind(run.code.map(|code| text(code.as_str())))
        .bind(i64::try_from(run.attempts.len()).unwrap_or(i64::MAX))
        .bind(run.started_at.map(ms))
        .bind(run.ended_at.map(ms))
        .bind(run.cancel.as_ref().map(|cancel| ms(cancel.at)))
        .bind(run.cancel.as_ref().and_then(|cancel| some_text(&cancel.by)))
        .bind(i64::from(run.round))
        .bind(said.and_then(json))
}

fn bind_attempt(query: Bound, run: Uuid, key: (u32, u32), attempt: &Attempt) -> Bound {
    query
        .bind(blob(run.as_bytes()))
        .bind(i64::from(key.0))
        .bind(i64::from(key.1))
        .bind(text(attempt.state.as_str()))
        .bind(attempt.outcome.map(|outcome| text(outcome.as_str())))
        .bind(attempt.code.map(|code| text(code.as_str())))
        .bind(some_text(&attempt.message))
        .bind(attempt.output.as_deref().map(text))
        .bind(attempt.truncated)
        .bind(attempt.retryable)
        .bind(attempt.instance.as_ref().map(|instance| text(instance.as_str())))
        .bind(attempt.delivery.map(big))
        .bind(attempt.due_at.map(ms))
        .bind(attempt.dispatched_at.map(ms))
        .bind(attempt.start_by.map(ms))
        .bind(attempt.started_at.map(ms))
        .bind(attempt.ended_at.map(ms))
        .bind(attempt.progress.as_ref().and_then(json))
        .bind(Some(&attempt.notes).filter(|notes| !notes.is_empty()).and_then(json))
        .bind(attempt.check_at.map(ms))
        .bind(attempt.ending.as_ref().and_then(json))
        .bind(attempt.target.as_ref().map(|target| text(target.as_str())))
        .bind(attempt.pinned)
        .bind(attempt.moved)
        .bind(i64::from(attempt.round))
}

/// Our own plain structs always have a JSON form.
fn json<T: serde::Serialize>(value: T) -> Option<String> {
    serde_json::to_string(&value).ok()
}
