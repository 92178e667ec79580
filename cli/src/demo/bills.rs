//! A hundred thousand bills in a SQLite file, settled exactly once each.
//!
//! Delivery is at least once, so the file is what makes it exactly once: a batch is one
//! transaction that takes bills which are not settled, and writes them into the ledger. *Invariant:
//! nothing else writes the ledger*, and it has no unique key: were a bill settled twice, it would
//! show.

use std::io::IsTerminal;
use std::path::Path;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};

use crate::failure::Failure;
use crate::output::Output;

/// How many bills there are.
pub(super) const BILLS: u64 = 100_000;

/// Bills that are made in one go.
const MADE_AT_ONCE: u64 = 10_000;

/// Bills that are settled in one transaction.
const BATCH: i64 = 1_000;

const SCHEMA: &str = "
CREATE TABLE bills (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL, settled INTEGER NOT NULL DEFAULT 0);
CREATE TABLE ledger (bill INTEGER NOT NULL, cents INTEGER NOT NULL, shard INTEGER NOT NULL);";

const MAKE: &str = "
WITH RECURSIVE n(i) AS (SELECT $1 UNION ALL SELECT i + 1 FROM n WHERE i + 1 < $2)
INSERT INTO bills (id, cents) SELECT i, 100 + (i * 7919) % 99991 FROM n";

const TAKE: &str = "
INSERT INTO ledger (bill, cents, shard)
SELECT id, cents, $1 FROM bills WHERE settled = 0 AND id % $2 = $1 ORDER BY id LIMIT $3
RETURNING bill, cents";

/// The file of bills. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Bills {
    /// One connection: SQLite has one writer, and so nobody waits for a lock.
    pool: SqlitePool,
}

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Checked {
    /// Bills that are in the ledger.
    pub(super) settled: i64,
    /// Bills that are in it more than once.
    pub(super) twice: i64,
    /// What the bills add up to.
    pub(super) due: i64,
    /// What the ledger adds up to.
    pub(super) booked: i64,
}

impl Checked {
    /// Every bill exactly once, and the total right.
    pub(super) fn is_right(&self) -> bool {
        self.settled == BILLS as i64 && self.twice == 0 && self.due == self.booked
    }
}

impl Bills {
    /// Makes the file anew, showing how far it is.
    pub(super) async fn generate(path: &Path, output: Output) -> Result<Self, Failure> {
        let broken = |error: sqlx::Error| {
            Failure::could_not(format!("the demo's bills {}: {error}", path.display()))
        };
        for end in ["", "-wal", "-shm"] {
            let _ = std::fs::remove_file(format!("{}{end}", path.display()));
        }
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(Duration::from_secs(10));
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options)
            .await
            .map_err(broken)?;
        sqlx::raw_sql(SCHEMA).execute(&pool).await.map_err(broken)?;
        let progress = progress(output);
        let mut made = 0;
        while made < BILLS {
            let next = (made + MADE_AT_ONCE).min(BILLS);
            sqlx::query(MAKE)
                .bind(made as i64)
                .bind(next as i64)
                .execute(&pool)
                .await
                .map_err(broken)?;
            made = next;
            progress.set_position(made);
        }
        progress.finish_and_clear();
        output.note(&format!("{BILLS} bills in {}", path.display()));
        Ok(Self { pool })
    }

    /// How many bills a shard has.
    pub(super) fn of_shard(&self, shard: u32, total: u32) -> u64 {
        let (shard, total) = (u64::from(shard), u64::from(total.max(1)));
        (BILLS + total - 1 - shard) / total
    }

    /// Settles the next bills of a shard; says how many, and their sum. None are left at 0.
    ///
    /// In a task of its own: whoever stops waiting does not leave half a transaction behind.
    pub(super) async fn settle_batch(
        &self,
        shard: u32,
        total: u32,
    ) -> Result<(u64, u64), sqlx::Error> {
        let pool = self.pool.clone();
        let settle = tokio::spawn(async move {
            let mut transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
            let taken: Vec<(i64, i64)> = sqlx::query_as(TAKE)
                .bind(shard)
                .bind(total)
                .bind(BATCH)
                .fetch_all(&mut *transaction)
                .await?;
            if let (Some(first), Some(last)) =
                (taken.iter().map(|row| row.0).min(), taken.iter().map(|row| row.0).max())
            {
                sqlx::query("UPDATE bills SET settled = 1 WHERE id BETWEEN $1 AND $2 AND id % $3 = $4 AND settled = 0")
                    .bind(first)
                    .bind(last)
                    .bind(total)
                    .bind(shard)
                    .execute(&mut *transaction)
                    .await?;
            }
            transaction.commit().await?;
            let cents = taken.iter().map(|(_, cents)| cents.unsigned_abs()).sum();
            Ok((taken.len() as u64, cents))
        });
        settle.await.unwrap_or_else(|error| Err(sqlx::Error::Io(std::io::Error::other(error))))
    }

    /// Looks into the file.
    pub(super) async fn check(&self) -> Result<Checked, sqlx::Error> {
        let (settled, twice, due, booked) = sqlx::query_as(
            "SELECT (SELECT count(DISTINCT bill) FROM ledger), \
             (SELECT count(*) FROM (SELECT bill FROM ledger GROUP BY bill HAVING count(*) > 1)), \
             (SELECT coalesce(sum(cents), 0) FROM bills), (SELECT coalesce(sum(cents), 0) FROM ledger)",
        )
        .fetch_one(&self.pool)
        .await?;
        Ok(Checked { settled, twice, due, booked })
    }

    /// Closes the file.
    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

/// A bar on a terminal, nothing elsewhere.
fn progress(_: Output) -> ProgressBar {
    let target = if std::io::stderr().is_terminal() {
        ProgressDrawTarget::stderr()
    } else {
        ProgressDrawTarget::hidden()
    };
    let bar = ProgressBar::with_draw_target(Some(BILLS), target);
    match ProgressStyle::with_template("making bills {bar:30} {pos}/{len}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::{Colour, Format};

    #[tokio::test]
    async fn every_bill_is_settled_once_whoever_settles_and_however_often() {
        let folder = tempfile::tempdir().unwrap();
        let output = Output::new(Format::Json, Colour::Off);
        let bills = Bills::generate(&folder.path().join("bills.db"), output).await.unwrap();
        assert!(!bills.check().await.unwrap().is_right());
        let shards = (0..4_u32).map(|shard| {
            let bills = bills.clone();
            async move {
                let mut count = 0;
                // Each batch by two at once, as after a lost lease.
                loop {
                    let both =
                        tokio::join!(bills.settle_batch(shard, 4), bills.settle_batch(shard, 4));
                    let settled = both.0.unwrap().0 + both.1.unwrap().0;
                    count += settled;
                    if settled == 0 {
                        return (count, bills.of_shard(shard, 4));
                    }
                }
            }
        });
        for (settled, expected) in futures::future::join_all(shards).await {
            assert_eq!(settled, expected);
        }
        let checked = bills.check().await.unwrap();
        assert!(checked.is_right(), "{checked:?}");
    }
}
