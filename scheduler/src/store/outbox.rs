//! Decisions that wait to be published.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use taskparty_common::name::Instance;
use uuid::Uuid;

use super::load::RUN;
use super::read::{Columns, blob, ms};
use super::rows::{ALERT, AlertRow, alert};
use super::sql::Blocks;
use super::{Digest, Run, Store, StoreError, Tx, load};

/// What a decision becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutboxKind {
    /// A delayed trigger for the next attempt of a shard.
    Retry,
    /// A delayed trigger for the next run of a fixed delay.
    Next,
    /// An alert.
    Alert,
    /// A place that is given back.
    Release,
    /// The trigger of a planned run, once more.
    Again,
    /// A retry by hand, as soon as its run has a place anew.
    Turn,
    /// The trigger of a job that follows; its id ends with the job.
    Then,
    /// A failed run counts, and may pause its job.
    Strike,
}

impl OutboxKind {
    /// The word in SQL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retry => "retry",
            Self::Next => "next",
            Self::Alert => "alert",
            Self::Release => "release",
            Self::Again => "again",
            Self::Turn => "turn",
            Self::Then => "then",
            Self::Strike => "strike",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        const ALL: [OutboxKind; 8] = [
            OutboxKind::Retry,
            OutboxKind::Next,
            OutboxKind::Alert,
            OutboxKind::Release,
            OutboxKind::Again,
            OutboxKind::Turn,
            OutboxKind::Then,
            OutboxKind::Strike,
        ];
        ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A decision with all that its message is made of.
#[derive(Debug, Clone)]
pub struct Posting {
    /// The id: of the trigger, or of the alert.
    pub id: String,
    /// What it becomes.
    pub kind: OutboxKind,
    /// The run, without its attempts.
    pub run: Option<Run>,
    /// The definition of the run.
    pub definition: Option<String>,
    /// For a retry: the shard.
    pub shard: u32,
    /// For a retry: the attempt to make.
    pub attempt: u32,
    /// For a retry: the only executor that may have it.
    pub target: Option<Instance>,
    /// For a trigger: when.
    pub due: Option<DateTime<Utc>>,
    /// For an alert: what it says.
    pub alert: Option<AlertRow>,
    /// How many times publishing it has failed.
    pub tries: u32,
}

#[derive(Debug)]
pub(super) struct Texts {
    done: Blocks,
    runs: Blocks,
    definitions: Blocks,
    alerts: Blocks,
    pub(super) states: Blocks,
}

impl Texts {
    pub(super) fn new() -> Self {
        Self {
            done: Blocks::list("DELETE FROM outbox WHERE id IN (", ")"),
            runs: Blocks::list(&format!("SELECT {RUN} FROM runs WHERE id IN ("), ")"),
            definitions: Blocks::list(
                "SELECT digest, spec FROM definitions WHERE digest IN (",
                ")",
            ),
            alerts: Blocks::list(&format!("SELECT {ALERT} FROM alerts WHERE id IN ("), ")"),
            states: Blocks::list("SELECT id, state FROM runs WHERE id IN (", ")"),
        }
    }
}

impl Store {
    /// Decisions that are due to be published, those that wait longest first.
    pub(crate) async fn postings(
        &self,
        now: DateTime<Utc>,
        limit: u32,
    ) -> Result<Vec<Posting>, StoreError> {
        let rows = sqlx::query(
            "SELECT o.id, o.kind, o.run, o.shard, o.attempt, o.due_at, o.tries, a.target \
             FROM outbox AS o LEFT JOIN attempts AS a ON a.run = o.run AND a.shard = o.shard \
             AND a.attempt = o.attempt AND a.pinned WHERE o.next_at <= $1 \
             ORDER BY o.next_at LIMIT $2",
        )
        .bind(ms(now))
        .bind(i64::from(limit))
        .fetch_all(self.readers())
        .await?;
        let mut postings = Vec::with_capacity(rows.len());
        let mut runs = Vec::new();
        let mut alerts = Vec::new();
        for row in &rows {
            let mut c = Columns::of(row);
            let posting = Posting {
                id: c.string()?,
                kind: c.parsed(OutboxKind::from_word)?,
                run: None,
                definition: None,
                shard: {
                    runs.push(c.bytes()?);
                    c.maybe_count()?.unwrap_or(0)
                },
                attempt: c.maybe_count()?.unwrap_or(0),
                due: c.maybe_time()?,
                alert: None,
                tries: c.count()?,
                target: c.maybe_parsed(|text| Instance::new(text).ok())?,
            };
            if posting.kind == OutboxKind::Alert {
                alerts.push(posting.id.clone());
            }
            postings.push(posting);
        }
        let of_triggers: Vec<[u8; 16]> = postings
            .iter()
            .zip(&runs)
            .filter(|(posting, _)| posting.kind != OutboxKind::Alert)
            .filter_map(|(_, run)| *run)
            .collect();
        let found = self.outbox_runs(&of_triggers).await?;
        let definitions = self.outbox_definitions(&found).await?;
        let alerts = self.outbox_alerts(&alerts).await?;
        for (posting, run) in postings.iter_mut().zip(runs) {
            posting.run = run.and_then(|id| found.get(&Uuid::from_bytes(id)).cloned());
            let fired = posting.run.as_ref().and_then(|run| run.fired.as_ref());
            posting.definition =
                fired.and_then(|fired| definitions.get(&fired.definition).cloned());
            posting.alert = alerts.get(&posting.id).cloned();
        }
        Ok(postings)
    }

    async fn outbox_runs(&self, ids: &[[u8; 16]]) -> Result<HashMap<Uuid, Run>, StoreError> {
        let mut found = HashMap::new();
        for (mut query, block) in self.inner.texts.outbox.runs.over(ids) {
            for id in block {
                query = query.bind(blob(id));
            }
            for row in query.fetch_all(self.readers()).await? {
                let (run, _) = load::run(&row)?;
                found.insert(run.id, run);
            }
        }
        Ok(found)
    }

    async fn outbox_definitions(
        &self,
        runs: &HashMap<Uuid, Run>,
    ) -> Result<HashMap<Digest, String>, StoreError> {
        let mut digests: Vec<Digest> =
            runs.values().filter_map(|run| Some(run.fired.as_ref()?.definition)).collect();
        digests.sort_unstable();
        digests.dedup();
        let mut found = HashMap::new();
        for (mut query, block) in self.inner.texts.outbox.definitions.over(&digests) {
            for digest in block {
                query = query.bind(blob(digest));
            }
            for row in query.fetch_all(self.readers()).await? {
                let mut c = Columns::of(&row);
                found.insert(c.uuid()?.into_bytes(), c.string()?);
            }
        }
        Ok(found)
    }

    async fn outbox_alerts(&self, ids: &[String]) -> Result<HashMap<String, AlertRow>, StoreError> {
        let mut found = HashMap::new();
        for (mut query, block) in self.inner.texts.outbox.alerts.over(ids) {
            for id in block {
                query = query.bind(id.clone());
            }
            for row in query.fetch_all(self.readers()).await? {
                let alert = alert(&row)?;
                found.insert(alert.id.clone(), alert);
            }
        }
        Ok(found)
    }
}

impl Tx<'_> {
    /// Forgets decisions that are published.
    pub(crate) async fn posted(&mut self, ids: &[String]) -> Result<(), StoreError> {
        for (mut query, block) in self.texts.outbox.done.over(ids) {
            for id in block {
                query = query.bind(id.clone());
            }
            query.execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// Puts a decision off that could not be published.
    pub(crate) async fn put_off(
        &mut self,
        id: &str,
        next_at: DateTime<Utc>,
    ) -> Result<(), StoreError> {
        sqlx::query("UPDATE outbox SET tries = tries + 1, next_at = $1 WHERE id = $2")
            .bind(ms(next_at))
            .bind(id.to_owned())
            .execute(&mut *self.connection)
            .await?;
        Ok(())
    }
}
