//! Lists of runs, and one run whole.
//!
//! A list never sorts and never walks what it does not show: it is a union over states, each part
//! read backwards from an index and cut at the page's size. Run ids begin with the instant, so
//! `since`, `until` and the cursor are all bounds of the id.

use std::fmt::Write as _;

use chrono::{DateTime, Utc};
use sqlx::{AssertSqlSafe, SqliteConnection};
use taskparty_common::fire::FireId;
use taskparty_common::name::{JobId, Key};
use taskparty_common::outcome::RunState;
use uuid::Uuid;

use super::load::{ATTEMPT, RUN};
use super::read::{Columns, blob};
use super::rows::{ALERT, alert, raw};
use super::{AttemptRow, Page, PendingRow, RunDetail, RunFilter, RunRow, Store, StoreError, load};

/// Rows of a page when the filter does not say.
const PAGE: u32 = 50;

/// The most rows of a page.
const MAX_PAGE: u32 = 1000;

/// The latest run whose trigger had this key; in the words of the index `runs_of_key`.
pub(super) const OF_KEY: &str = "SELECT id FROM runs WHERE lock_key = $1 \
    AND trigger_kind IN ('manual', 'delayed') ORDER BY id DESC LIMIT 1";

impl Store {
    /// Runs that `filter` lets through, newest first.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn runs(&self, filter: &RunFilter) -> Result<Page<RunRow>, StoreError> {
        let limit = filter.limit.unwrap_or(PAGE).clamp(1, MAX_PAGE);
        let mut query = sqlx::query(AssertSqlSafe(list(filter))).persistent(false);
        query = query.bind(i64::from(limit) + 1).bind(lower(filter)).bind(upper(filter));
        let texts = [
            filter.job.as_ref().map(|job| job.as_str().to_owned()),
            filter.app.as_ref().map(|app| app.as_str().to_owned()),
            filter.trigger.map(|trigger| trigger.as_str().to_owned()),
        ];
        for text in texts.into_iter().flatten() {
            query = query.bind(text);
        }
        let rows = query.fetch_all(self.readers()).await?;
        let mut items = Vec::with_capacity(rows.len());
        for row in &rows {
            let (run, attempts) = load::run(row)?;
            items.push(RunRow::of(&run, attempts));
        }
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        let next = items.last().filter(|_| more).map(|row| row.run.to_string());
        Ok(Page { items, next })
    }

    /// How many runs are in `state`. Counts them one by one, in an index.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn count(&self, state: RunState) -> Result<u64, StoreError> {
        let count: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM runs WHERE state = $1")
            .bind(state.as_str())
            .fetch_one(self.readers())
            .await?;
        Ok(count.unsigned_abs())
    }

    /// One run with its attempts, alerts and pending decisions; none when it is not known.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn run(&self, id: Uuid) -> Result<Option<RunDetail>, StoreError> {
        let key = blob(id.as_bytes());
        // One look: a batch that is committed in between would show a run beside other attempts.
        let mut look = self.readers().begin().await?;
        let Some(row) = sqlx::query(AssertSqlSafe(format!("SELECT {RUN} FROM runs WHERE id = $1")))
            .bind(key.clone())
            .fetch_optional(&mut *look)
            .await?
        else {
            return Ok(None);
        };
        let (run, attempts) = load::run(&row)?;
        let mut attempt_rows = Vec::new();
        let sql = format!("SELECT {ATTEMPT} FROM attempts WHERE run = $1 ORDER BY shard, attempt");
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(key.clone()).fetch_all(&mut *look);
        for row in &rows.await? {
            let (_, key, attempt) = load::attempt(row)?;
            attempt_rows.push(AttemptRow::of(key, attempt));
        }
        let sql = format!("SELECT {ALERT} FROM alerts WHERE run = $1 ORDER BY created_at");
        let rows = sqlx::query(AssertSqlSafe(sql)).bind(key.clone()).fetch_all(&mut *look);
        let alerts = rows.await?.iter().map(alert).collect::<Result<_, _>>()?;
        let pending = pending(&mut look, key).await?;
        let fired = run.fired.as_ref();
        let definition = match fired.map(|fired| fired.definition) {
            None => None,
            Some(digest) => {
                sqlx::query_scalar::<_, String>("SELECT spec FROM definitions WHERE digest = $1")
                    .bind(blob(&digest))
                    .fetch_optional(&mut *look)
                    .await?
            }
        };
        Ok(Some(RunDetail {
            run: RunRow::of(&run, attempts),
            lock: run.lock().cloned(),
            params: run.params().cloned().and_then(raw),
            definition: definition.and_then(raw),
            attempt_rows,
            alerts,
            pending,
            waits: None,
        }))
    }

    /// The latest run of `job` that was triggered with `key`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn run_of_key(&self, job: &JobId, key: &Key) -> Result<Option<Uuid>, StoreError> {
        let lock = FireId::trigger(job.clone(), key.as_str()).lock_key();
        let row = sqlx::query(OF_KEY).bind(lock).fetch_optional(self.readers()).await?;
        row.map(|row| Columns::of(&row).uuid()).transpose()
    }
}

/// What waits in the outbox for `run`.
async fn pending(look: &mut SqliteConnection, run: Vec<u8>) -> Result<Vec<PendingRow>, StoreError> {
    let rows = sqlx::query("SELECT id, kind, due_at, tries FROM outbox WHERE run = $1 ORDER BY id")
        .bind(run)
        .fetch_all(look)
        .await?;
    rows.iter()
        .map(|row| {
            let mut c = Columns::of(row);
            Ok(PendingRow {
                id: c.string()?,
                kind: c.string()?,
                due_at: c.maybe_time()?,
                tries: c.count()?,
            })
        })
        .collect()
}

/// The list's statement: $1 the limit, $2 and $3 the bounds of the id, then job, app, trigger.
pub(super) fn list(filter: &RunFilter) -> String {
    let columns = RUN.replace("params", "NULL AS params");
    let mut bounds = String::from("id >= $2 AND id < $3");
    let mut next = 4;
    for (given, column) in [
        (filter.job.is_some(), "job"),
        (filter.app.is_some(), "app"),
        (filter.trigger.is_some(), "trigger_kind"),
    ] {
        if given {
            let _ = write!(bounds, " AND {column} = ${next}");
            next += 1;
        }
    }
    let tail = "ORDER BY id DESC LIMIT $1";
    let by_state = filter.job.is_some() || filter.app.is_some() || !filter.states.is_empty();
    if !by_state {
        return format!("SELECT {columns} FROM runs WHERE {bounds} {tail}");
    }
    let states: Vec<RunState> = RunState::ALL
        .iter()
        .map(|(_, state)| *state)
        .filter(|state| filter.states.is_empty() || filter.states.contains(state))
        .collect();
    let parts: Vec<String> = states
        .iter()
        .map(|state| {
            format!(
                "SELECT * FROM (SELECT {columns} FROM runs WHERE state = '{state}' AND {bounds} {tail}) \
                 AS of_{state}"
            )
        })
        .collect();
    format!("{} {tail}", parts.join(" UNION ALL "))
}

fn lower(filter: &RunFilter) -> Vec<u8> {
    blob(filter.since.map_or(Uuid::nil(), first_at).as_bytes())
}

fn upper(filter: &RunFilter) -> Vec<u8> {
    let until = filter.until.map_or(Uuid::max(), first_at);
    blob(filter.after.map_or(until, |after| after.min(until)).as_bytes())
}

/// The lowest id of a run at `at`: ids begin with the instant.
pub(super) fn first_at(at: DateTime<Utc>) -> Uuid {
    let ms = u64::try_from(at.timestamp_millis()).unwrap_or(0).min((1 << 48) - 1);
    Uuid::from_u128(u128::from(ms) << 80)
}
