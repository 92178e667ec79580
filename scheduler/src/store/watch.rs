//! The sweep's questions. Each is answered from an index of what goes on, and never walks what
//! has ended.

use std::collections::HashSet;

use chrono::{DateTime, Utc};
use sqlx::AssertSqlSafe;
use sqlx::sqlite::SqliteRow;
use taskparty_common::name::{App, Handler, Instance, JobId};
use taskparty_common::outcome::RunState;
use uuid::Uuid;

use super::list::first_at;
use super::load::{self, ATTEMPT, RUN};
use super::read::{Columns, blob, ms};
use super::{Attempt, Digest, Run, Store, StoreError};

/// An attempt that is to be looked at.
#[derive(Debug, Clone)]
pub struct ToCheck {
    /// The run.
    pub run: Uuid,
    /// Which shard.
    pub shard: u32,
    /// Which attempt.
    pub number: u32,
    /// The attempt.
    pub attempt: Attempt,
    /// The job.
    pub job: JobId,
    /// Its app.
    pub app: App,
    /// Its handler; none before the fired record.
    pub handler: Option<Handler>,
    /// What the run was made with.
    pub definition: Option<Digest>,
}

/// The newest run of a fixed-delay chain.
#[derive(Debug, Clone, PartialEq)]
pub struct LastOfChain {
    /// The run.
    pub run: Uuid,
    /// Where it is.
    pub state: RunState,
    /// When it ended.
    pub ended_at: Option<DateTime<Utc>>,
}

impl Store {
    /// Attempts to look at by `now`, those that wait longest first.
    pub(crate) async fn to_check(
        &self,
        now: DateTime<Utc>,
        limit: u32,
    ) -> Result<Vec<ToCheck>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(to_check_sql()))
            .bind(ms(now))
            .bind(i64::from(limit))
            .fetch_all(self.readers())
            .await?;
        rows.iter().map(to_check).collect()
    }

    /// The executors that open attempts are for, those that are being ended left out.
    pub(crate) async fn targets(&self) -> Result<Vec<Instance>, StoreError> {
        let rows = sqlx::query(TARGETS).fetch_all(self.readers()).await?;
        rows.iter().map(|row| Columns::of(row).parsed(|text| Instance::new(text).ok())).collect()
    }

    /// Open attempts that were dispatched to one of `gone` by `before`, and that nobody ends yet.
    pub(crate) async fn stranded(
        &self,
        gone: &[Instance],
        before: DateTime<Utc>,
        limit: u32,
    ) -> Result<Vec<ToCheck>, StoreError> {
        let mut query = sqlx::query(AssertSqlSafe(stranded_sql(gone.len()))).persistent(false);
        query = query.bind(ms(before)).bind(i64::from(limit));
        for instance in gone {
            query = query.bind(instance.as_str().to_owned());
        }
        query.fetch_all(self.readers()).await?.iter().map(to_check).collect()
    }

    /// Runs that are to stop and have not ended, after `after` in the order of their ids, each with
    /// those of its attempts that have not ended.
    pub(crate) async fn to_stop(&self, after: Uuid, limit: u32) -> Result<Vec<Run>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(to_stop_sql()))
            .bind(blob(after.as_bytes()))
            .bind(i64::from(limit))
            .fetch_all(self.readers())
            .await?;
        let mut runs = Vec::with_capacity(rows.len());
        for row in &rows {
            let (mut run, _) = load::run(row)?;
            let open = sqlx::query(AssertSqlSafe(open_attempts_sql()))
                .bind(blob(run.id.as_bytes()))
                .fetch_all(self.readers())
                .await?;
            for row in &open {
                let (_, key, attempt) = load::attempt(row)?;
                run.attempts.insert(key, Box::new(attempt));
            }
            runs.push(run);
        }
        Ok(runs)
    }

    /// The definition with this digest.
    pub(crate) async fn definition(&self, digest: &Digest) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar("SELECT spec FROM definitions WHERE digest = $1")
            .bind(blob(digest))
            .fetch_optional(self.readers())
            .await?)
    }

    /// Planned runs whose time had passed by `by`, the oldest first.
    pub(crate) async fn overdue(
        &self,
        by: DateTime<Utc>,
        limit: u32,
    ) -> Result<Vec<Run>, StoreError> {
        let bound = first_at(by);
        let rows = sqlx::query(AssertSqlSafe(in_state_sql("scheduled", "id <")))
            .bind(blob(bound.as_bytes()))
            .bind(i64::from(limit))
            .fetch_all(self.readers())
            .await?;
        rows.iter().map(|row| Ok(load::run(row)?.0)).collect()
    }

    /// Runs that wait for their turn, in the order of their ids, after `after`.
    pub(crate) async fn in_queues(
        &self,
        after: Option<Uuid>,
        limit: u32,
    ) -> Result<Vec<Run>, StoreError> {
        let sql = in_state_sql(
            "waiting",
            "trigger_result = 'queued' AND start_by IS NULL AND attempts = 0 AND id >",
        );
        let rows = sqlx::query(AssertSqlSafe(sql))
            .bind(blob(after.unwrap_or_default().as_bytes()))
            .bind(i64::from(limit))
            .fetch_all(self.readers())
            .await?;
        rows.iter().map(|row| Ok(load::run(row)?.0)).collect()
    }

    /// Whether the last `count` runs of `job` since `since` that ended by themselves all failed. What
    /// was left out or cancelled does not count, nor an instant of before that was made up for.
    pub(crate) async fn all_failed(
        &self,
        job: &JobId,
        since: DateTime<Utc>,
        count: u32,
    ) -> Result<bool, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(last_ends_sql()))
            .bind(job.as_str().to_owned())
            .bind(ms(since))
            .bind(i64::from(count))
            .bind(blob(first_at(since).as_bytes()))
            .fetch_all(self.readers())
            .await?;
        let mut ends = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut c = Columns::of(row);
            ends.push((c.uuid()?, c.parsed(RunState::from_word)?));
        }
        ends.sort_unstable_by_key(|(run, _)| std::cmp::Reverse(*run));
        ends.truncate(count as usize);
        Ok(ends.len() == count as usize && ends.iter().all(|(_, state)| state.is_failure()))
    }

    /// Whether anything is known of `run`.
    pub(crate) async fn knows(&self, run: Uuid) -> Result<bool, StoreError> {
        Ok(self.fire_of(run).await?.is_some())
    }

    /// The job of `run` and the key of its lock, which is not known before its fired record.
    pub(crate) async fn fire_of(
        &self,
        run: Uuid,
    ) -> Result<Option<(JobId, Option<String>)>, StoreError> {
        let row = sqlx::query("SELECT job, lock_key FROM runs WHERE id = $1")
            .bind(blob(run.as_bytes()))
            .fetch_optional(self.readers())
            .await?;
        let Some(row) = row else { return Ok(None) };
        let mut c = Columns::of(&row);
        Ok(Some((c.parsed(|text| JobId::new(text).ok())?, c.maybe_string()?)))
    }

    /// Those of `runs` that have ended.
    pub(crate) async fn ended(&self, runs: &[Uuid]) -> Result<HashSet<Uuid>, StoreError> {
        let mut ended = HashSet::new();
        for (mut query, block) in self.inner.texts.outbox.states.over(runs) {
            for run in block {
                query = query.bind(blob(run.as_bytes()));
            }
            for row in query.fetch_all(self.readers()).await? {
                let mut c = Columns::of(&row);
                let run = c.uuid()?;
                if c.parsed(RunState::from_word)?.is_terminal() {
                    ended.insert(run);
                }
            }
        }
        Ok(ended)
    }

    /// The newest run of `job` by its schedule since `since`, one that goes on before any other.
    pub(crate) async fn last_of_chain(
        &self,
        job: &JobId,
        since: DateTime<Utc>,
    ) -> Result<Option<LastOfChain>, StoreError> {
        let rows = sqlx::query(AssertSqlSafe(last_of_chain_sql()))
            .bind(job.as_str().to_owned())
            .bind(ms(since))
            .bind(blob(first_at(since).as_bytes()))
            .fetch_all(self.readers())
            .await?;
        let mut newest: Option<LastOfChain> = None;
        for row in &rows {
            let mut c = Columns::of(row);
            let last = LastOfChain {
                run: c.uuid()?,
                state: c.parsed(RunState::from_word)?,
                ended_at: c.maybe_time()?,
            };
            let key = |last: &LastOfChain| (!last.state.is_terminal(), last.run);
            if newest.as_ref().is_none_or(|newest| key(&last) > key(newest)) {
                newest = Some(last);
            }
        }
        Ok(newest)
    }
}

fn to_check(row: &SqliteRow) -> Result<ToCheck, StoreError> {
    let (run, (shard, number), attempt) = load::attempt(row)?;
    let mut c = Columns::from(row, load::ATTEMPT_COLUMNS);
    Ok(ToCheck {
        run,
        shard,
        number,
        attempt,
        job: c.parsed(|text| JobId::new(text).ok())?,
        app: c.parsed(|text| App::new(text).ok())?,
        handler: c.maybe_parsed(|text| Handler::new(text).ok())?,
        definition: c.bytes()?,
    })
}

pub(super) fn to_check_sql() -> String {
    let which = "a.check_at IS NOT NULL AND a.check_at <= $1 ORDER BY a.check_at";
    format!("{} WHERE {which} LIMIT $2", from())
}

/// In the words of the index `attempts_of_target`.
pub(super) const TARGETS: &str =
    "SELECT DISTINCT target FROM attempts WHERE target IS NOT NULL AND check_at IS NOT NULL";

pub(super) fn stranded_sql(gone: usize) -> String {
    let places: Vec<String> = (0..gone).map(|n| format!("${}", n + 3)).collect();
    format!(
        "{} WHERE a.target IN ({}) AND a.check_at IS NOT NULL AND a.ending IS NULL \
         AND a.dispatched_at <= $1 LIMIT $2",
        from(),
        places.join(", ")
    )
}

/// Attempts with what is to be known of their runs.
fn from() -> String {
    let columns: Vec<String> =
        ATTEMPT.split(", ").map(|name| format!("a.{}", name.trim())).collect();
    format!(
        "SELECT {}, r.job, r.app, r.handler, r.definition FROM attempts AS a \
         JOIN runs AS r ON r.id = a.run",
        columns.join(", ")
    )
}

pub(super) fn in_state_sql(state: &str, and: &str) -> String {
    format!("SELECT {RUN} FROM runs WHERE state = '{state}' AND {and} $1 ORDER BY id LIMIT $2")
}

pub(super) fn to_stop_sql() -> String {
    format!(
        "SELECT {RUN} FROM runs WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL \
         AND id > $1 ORDER BY id LIMIT $2"
    )
}

fn open_attempts_sql() -> String {
    format!("SELECT {ATTEMPT} FROM attempts WHERE run = $1 AND outcome IS NULL")
}

/// The last ends of each kind since $2. Ids begin with the instant, so that what is older than `since`
/// ($4, as an id) is not walked.
pub(super) fn last_ends_sql() -> String {
    let counts = |state: &RunState| state.is_failure() || *state == RunState::Succeeded;
    let part = |state: &RunState| {
        format!(
            "SELECT * FROM (SELECT id, state FROM runs WHERE job = $1 AND state = '{state}' AND \
             since = $2 AND id >= $4 ORDER BY id DESC LIMIT $3) AS of_{state}"
        )
    };
    let states = RunState::ALL.iter().map(|(_, state)| state).filter(|state| counts(state));
    states.map(part).collect::<Vec<_>>().join(" UNION ALL ")
}

/// The newest run in each state since $2, likewise ($3).
pub(super) fn last_of_chain_sql() -> String {
    let part = |state: &RunState| {
        format!(
            "SELECT * FROM (SELECT id, state, ended_at FROM runs WHERE job = $1 AND \
             state = '{state}' AND trigger_kind IN ('schedule', 'misfire') AND since = $2 \
             AND id >= $3 ORDER BY id DESC LIMIT 1) AS of_{state}"
        )
    };
    let parts: Vec<String> = RunState::ALL.iter().map(|(_, state)| part(state)).collect();
    parts.join(" UNION ALL ")
}
