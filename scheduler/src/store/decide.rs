//! Writing what follows from transitions: alerts, outbox rows, and what was set aside.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use super::outbox::OutboxKind;
use super::read::{big, blob, ms};
use super::sql::Blocks;
use super::{AlertPart, Decision, StoreError, Tx};

/// A message, or a line of one, that could not be taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SetAside {
    /// The message's sequence in RESULTS.
    pub seq: u64,
    /// The line in the message, from 0.
    pub line: u32,
    /// The message's subject.
    pub subject: String,
    /// The line as it came.
    pub payload: Vec<u8>,
    /// What is wrong with it.
    pub reason: String,
    /// When the server stored it.
    pub stored_at: DateTime<Utc>,
}

#[derive(Debug)]
pub(super) struct Texts {
    alerts: Blocks,
    outbox: Blocks,
    set_aside: Blocks,
}

impl Texts {
    pub(super) fn new() -> Self {
        Self {
            alerts: Blocks::insert(
                "INSERT INTO alerts (id, kind, job, run, state, code, message, attempts, \
                 fire_time, created_at) VALUES ",
                10,
                " ON CONFLICT (id) DO NOTHING",
            ),
            outbox: Blocks::insert(
                "INSERT INTO outbox (id, kind, run, shard, attempt, due_at, tries, next_at) \
                 VALUES ",
                8,
                " ON CONFLICT (id) DO NOTHING",
            ),
            set_aside: Blocks::insert(
                "INSERT INTO set_aside (seq, line, subject, payload, reason, stored_at) VALUES ",
                6,
                " ON CONFLICT (seq, line) DO NOTHING",
            ),
        }
    }
}

/// A row of the outbox.
struct Posted {
    id: String,
    kind: OutboxKind,
    run: Option<Uuid>,
    shard: Option<u32>,
    attempt: Option<u32>,
    due: Option<DateTime<Utc>>,
}

impl Posted {
    fn of(decision: &Decision) -> Self {
        use taskparty_common::fire::{next_id, retry_id, then_id};
        match decision {
            Decision::Retry { run, shard, attempt, due } => Self {
                id: retry_id(*run, *shard, *attempt),
                kind: OutboxKind::Retry,
                run: Some(*run),
                shard: Some(*shard),
                attempt: Some(*attempt),
                due: Some(*due),
            },
            Decision::Next { run, due } => Self {
                id: next_id(*run),
                kind: OutboxKind::Next,
                run: Some(*run),
                shard: None,
                attempt: None,
                due: Some(*due),
            },
            Decision::Then { run, job } => Self {
                id: format!("{}.{job}", then_id(*run)),
                kind: OutboxKind::Then,
                run: Some(*run),
                shard: None,
                attempt: None,
                due: None,
            },
            Decision::Strike { run } => Self {
                id: format!("{run}.strike"),
                kind: OutboxKind::Strike,
                run: Some(*run),
                shard: None,
                attempt: None,
                due: None,
            },
            Decision::Again { run, due } => Self {
                id: format!("{run}.again"),
                kind: OutboxKind::Again,
                run: Some(*run),
                shard: None,
                attempt: None,
                due: Some(*due),
            },
            Decision::Turn { run, shard, attempt, due } => Self {
                id: retry_id(*run, *shard, *attempt),
                kind: OutboxKind::Turn,
                run: Some(*run),
                shard: Some(*shard),
                attempt: Some(*attempt),
                due: Some(*due),
            },
            Decision::Release { run, round } => Self {
                id: match round {
                    0 => format!("{run}.release"),
                    round => format!("{run}.release.{round}"),
                },
                kind: OutboxKind::Release,
                run: Some(*run),
                shard: None,
                // Which of its places, when it has had several.
                attempt: Some(*round),
                due: None,
            },
            Decision::Alert(alert) => Self {
                id: alert.id.clone(),
                kind: OutboxKind::Alert,
                run: alert.run,
                shard: None,
                attempt: None,
                due: None,
            },
        }
    }
}

impl Tx<'_> {
    /// Keeps decisions, to be published after the commit; a decision that waits already is kept once.
    pub(crate) async fn decide(&mut self, decisions: &[Decision]) -> Result<(), StoreError> {
        let alerts: Vec<&AlertPart> = decisions
            .iter()
            .filter_map(|decision| match decision {
                Decision::Alert(alert) => Some(alert),
                _ => None,
            })
            .collect();
        for (mut query, block) in self.texts.decide.alerts.over(&alerts) {
            for alert in block {
                query = query
                    .bind(alert.id.clone())
                    .bind(alert.kind)
                    .bind(alert.job.as_ref().map(|job| job.as_str().to_owned()))
                    .bind(alert.run.map(|run| blob(run.as_bytes())))
                    .bind(alert.state.map(|state| state.as_str()))
                    .bind(alert.code.map(|code| code.as_str()))
                    .bind(alert.message.clone())
                    .bind(i64::from(alert.attempts))
                    .bind(alert.fire_time.map(ms))
                    .bind(ms(alert.at));
            }
            query.execute(&mut *self.connection).await?;
        }
        let rows: Vec<Posted> = decisions.iter().map(Posted::of).collect();
        for (mut query, block) in self.texts.decide.outbox.over(&rows) {
            for row in block {
                query = query
                    .bind(row.id.clone())
                    .bind(row.kind.as_str())
                    .bind(row.run.map(|run| blob(run.as_bytes())))
                    .bind(row.shard.map(i64::from))
                    .bind(row.attempt.map(i64::from))
                    .bind(row.due.map(ms))
                    .bind(0_i64)
                    .bind(0_i64);
            }
            query.execute(&mut *self.connection).await?;
        }
        Ok(())
    }

    /// Keeps messages that could not be taken in.
    pub(crate) async fn set_aside(&mut self, lines: &[SetAside]) -> Result<(), StoreError> {
        for (mut query, block) in self.texts.decide.set_aside.over(lines) {
            for line in block {
                query = query
                    .bind(big(line.seq))
                    .bind(i64::from(line.line))
                    .bind(line.subject.clone())
                    .bind(line.payload.clone())
                    .bind(line.reason.clone())
                    .bind(ms(line.stored_at));
            }
            query.execute(&mut *self.connection).await?;
        }
        Ok(())
    }
}
