//! What the audit asks of history: runs of a period with their attempts, small and page by page,
//! and what should not stay in it.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use taskparty_common::name::{Instance, JobId};
use taskparty_common::outcome::{Outcome, RunState, TriggerResult};
use uuid::Uuid;

use super::read::{Columns, blob};
use super::{Note, Store, StoreError};
use crate::audit::{
    AskRuns, HistoryAttempt, HistoryPage, HistoryRun, LateResult, Leftovers, SetAsideFact,
};

/// Runs of a page: with their attempts they must fit into one message.
const RUNS: usize = 1000;

/// Attempts of a page; the last run's are all there, however many.
const ATTEMPTS: usize = 2000;

impl Store {
    /// Runs whose ids say an instant of the period, by id.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn audited(&self, ask: &AskRuns) -> Result<HistoryPage, StoreError> {
        let lower = ask.after.map_or(first_at(ask.from), |after| after.max(first_at(ask.from)));
        let skip = if ask.after.is_some() { ">" } else { ">=" };
        let sql = format!(
            "SELECT id, job, state, lock_key, trigger_result, shards, fired_at FROM runs \
             WHERE id {skip} ? AND id < ? ORDER BY id LIMIT ?"
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(blob(lower.as_bytes()))
            .bind(blob(first_at(ask.to).as_bytes()))
            .bind(RUNS as i64 + 1)
            .fetch_all(self.readers())
            .await?;
        let mut items = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut c = Columns::of(row);
            items.push(HistoryRun {
                run: c.uuid()?,
                job: c.parsed(|text| JobId::new(text).ok())?,
                state: c.parsed(RunState::from_word)?,
                lock: c.maybe_string()?,
                result: c.maybe_parsed(TriggerResult::from_word)?,
                shards: c.maybe_count()?,
                fired_at: c.maybe_time()?,
                tries: Vec::new(),
            });
        }
        let mut more = items.len() > RUNS;
        items.truncate(RUNS);
        if let (Some(first), Some(last)) = (items.first(), items.last()) {
            let mut tries = self.tries(first.run, last.run).await?;
            let mut sum = 0;
            for (index, item) in items.iter_mut().enumerate() {
                item.tries = tries.remove(&item.run).unwrap_or_default();
                sum += item.tries.len();
                if sum > ATTEMPTS && index + 1 < RUNS {
                    more |= index + 1 < rows.len();
                    items.truncate(index + 1);
                    break;
                }
            }
        }
        let next = items.last().filter(|_| more).map(|last| last.run);
        Ok(HistoryPage { items, next })
    }

    async fn tries(
        &self,
        first: Uuid,
        last: Uuid,
    ) -> Result<BTreeMap<Uuid, Vec<HistoryAttempt>>, StoreError> {
        let rows = sqlx::query(
            "SELECT run, shard, attempt, state, outcome, delivery, instance, due_at, \
             dispatched_at, start_by, started_at, ended_at, notes, moved, round FROM attempts \
             WHERE run >= ? AND run <= ? ORDER BY run, shard, attempt",
        )
        .bind(blob(first.as_bytes()))
        .bind(blob(last.as_bytes()))
        .fetch_all(self.readers())
        .await?;
        let mut tries: BTreeMap<Uuid, Vec<HistoryAttempt>> = BTreeMap::new();
        for row in &rows {
            let mut c = Columns::of(row);
            let run = c.uuid()?;
            let attempt = HistoryAttempt {
                shard: c.count()?,
                attempt: c.count()?,
                state: c.parsed(RunState::from_word)?,
                outcome: c.maybe_parsed(Outcome::from_word)?,
                delivery: c.maybe_count()?,
                instance: c.maybe_parsed(|text| Instance::new(text).ok())?,
                due_at: c.maybe_time()?,
                dispatched_at: c.maybe_time()?,
                start_by: c.maybe_time()?,
                started_at: c.maybe_time()?,
                ended_at: c.maybe_time()?,
                late: c
                    .maybe_json::<Vec<Note>>()?
                    .unwrap_or_default()
                    .into_iter()
                    .map(late)
                    .collect(),
                moved: c.flag()?,
                round: c.count()?,
            };
            tries.entry(run).or_default().push(attempt);
        }
        Ok(tries)
    }

    /// What was set aside since `since`, and the outbox.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn leftovers(&self, since: DateTime<Utc>) -> Result<Leftovers, StoreError> {
        let since = super::read::ms(since);
        let total: i64 = sqlx::query_scalar("SELECT COUNT(*) FROM set_aside WHERE stored_at >= ?")
            .bind(since)
            .fetch_one(self.readers())
            .await?;
        let rows = sqlx::query(
            "SELECT seq, subject, reason, stored_at FROM set_aside WHERE stored_at >= ? \
             ORDER BY seq, line LIMIT 100",
        )
        .bind(since)
        .fetch_all(self.readers())
        .await?;
        let mut set_aside = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut c = Columns::of(row);
            set_aside.push(SetAsideFact {
                seq: c.count()?,
                subject: c.string()?,
                reason: c.string()?,
                stored_at: c.time()?,
            });
        }
        let outbox =
            sqlx::query_scalar("SELECT id FROM outbox WHERE kind <> 'turn' ORDER BY id LIMIT 1000")
                .fetch_all(self.readers())
                .await?;
        Ok(Leftovers { set_aside, set_aside_total: u64::try_from(total).unwrap_or(0), outbox })
    }
}

fn late(note: Note) -> LateResult {
    LateResult { instance: note.instance, delivery: note.delivery, outcome: note.outcome }
}

/// The lowest id of a run at `at`.
fn first_at(at: DateTime<Utc>) -> Uuid {
    let ms = u64::try_from(at.timestamp_millis()).unwrap_or(0).min((1 << 48) - 1);
    Uuid::from_u128(u128::from(ms) << 80)
}
