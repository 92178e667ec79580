//! History in SQL: runs, attempts, alerts, and decisions that are still to be published.
//!
//! The one place of SQL in this crate. SQLite in this version; the texts keep to what PostgreSQL
//! and MySQL have too, so that they can stand beside it behind the same [`Store`].
//!
//! *Invariants.*
//! - *Every transaction runs in a task of its own* (`Store::write`), so that nobody who stops
//!   waiting for it leaves it open half way: sqlx leaks a transaction whose `begin` is dropped.
//! - *One writer*: SQLite has exactly one connection for writing, and each of its transactions
//!   takes the write lock at its begin, so what it reads stays true until it commits.
//! - *An end is written once*: every upsert is guarded against changing a run or an attempt that
//!   has ended. A run leaves its end in one way only, by a retry that counts up its round.

mod audit;
mod decide;
mod decision;
mod error;
mod identity;
mod list;
mod load;
mod open;
mod outbox;
mod read;
mod record;
mod rows;
mod save;
mod sql;
#[cfg(test)]
mod tests;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqlitePool;
use tokio_util::task::TaskTracker;
use uuid::Uuid;

pub use decide::SetAside;
pub use decision::{AlertPart, Decision};
pub use error::StoreError;
use identity::Identity;
pub use outbox::{OutboxKind, Posting};
pub use record::{
    Attempt, Attempts, CancelPart, Digest, Ending, FiredPart, Note, PlannedPart, ProgressPart, Run,
    Said, SkippedPart, Then,
};
pub use rows::{AlertRow, AttemptRow, Page, PendingRow, RunDetail, RunFilter, RunRow};
pub use save::Definition;
pub use watch::{LastOfChain, ToCheck};

/// The history of one installation. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    writer: SqlitePool,
    readers: SqlitePool,
    id: Uuid,
    path: PathBuf,
    identity: Identity,
    texts: Texts,
    /// How often the writer's connection was made.
    connected: Arc<AtomicU64>,
    /// Transactions that are under way.
    tasks: TaskTracker,
}

/// The statements over many rows, made once.
#[derive(Debug)]
struct Texts {
    load: load::Texts,
    save: save::Texts,
    decide: decide::Texts,
    outbox: outbox::Texts,
}

impl Store {
    /// Whether `url` is one that this version can open; touches nothing.
    ///
    /// # Errors
    /// [`StoreError::Url`].
    pub fn check_url(url: &str) -> Result<(), StoreError> {
        open::path_of(url).map(drop)
    }

    /// Opens the store at `url`, `sqlite:PATH`; makes the file and its folder when they are
    /// missing, and brings the schema up to date.
    ///
    /// # Errors
    /// [`StoreError`], which says what is wrong with URL or file and what to do.
    pub async fn open(url: &str) -> Result<Self, StoreError> {
        let path = open::path_of(url)?;
        let opened = open::open(&path).await?;
        let texts = Texts {
            load: load::Texts::new(),
            save: save::Texts::new(),
            decide: decide::Texts::new(),
            outbox: outbox::Texts::new(),
        };
        Ok(Self {
            inner: Arc::new(Inner {
                writer: opened.writer,
                readers: opened.readers,
                id: opened.id,
                identity: opened.identity,
                path,
                texts,
                connected: opened.connected,
                tasks: TaskTracker::new(),
            }),
        })
    }

    /// The store's id, made with it: by it NATS knows which history belongs to an installation.
    pub fn id(&self) -> Uuid {
        self.inner.id
    }

    /// The SQLite file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Runs `work` in one transaction: all of it is kept, or nothing. Whoever stops waiting does
    /// not stop the transaction.
    ///
    /// # Errors
    /// Those of `work`, and of SQL; then nothing is kept. After a [`StoreError::Outage`] at the
    /// commit it may have been kept all the same: `work` must be such that doing it again is right.
    pub(crate) async fn write<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'t> FnOnce(Tx<'t>) -> BoxFuture<'t, Result<T, StoreError>> + Send + 'static,
    {
        let inner = self.inner.clone();
        let task = self.inner.tasks.spawn(async move {
            inner.identity.check(&inner.path)?;
            let mut transaction = inner.writer.begin_with("BEGIN IMMEDIATE").await?;
            let connected = inner.connected.load(Ordering::Relaxed);
            let tx = Tx { connection: &mut transaction, texts: &inner.texts, connected };
            match work(tx).await {
                Ok(value) => {
                    transaction.commit().await?;
                    Ok(value)
                }
                Err(error) => {
                    // What is wrong is known already; a failed rollback closes the connection.
                    let _ = transaction.rollback().await;
                    Err(error)
                }
            }
        });
        match task.await {
            Ok(result) => result,
            Err(error) => Err(StoreError::Data(format!("a transaction broke off: {error}"))),
        }
    }

    /// Waits for the transactions that are under way and closes the file. Safe twice.
    pub async fn close(&self) {
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
        self.inner.readers.close().await;
        self.inner.writer.close().await;
    }

    fn readers(&self) -> &SqlitePool {
        &self.inner.readers
    }
}

/// An open transaction.
pub(crate) struct Tx<'t> {
    connection: &'t mut SqliteConnection,
    texts: &'t Texts,
    connected: u64,
}

/// What a store holds, as far as others can have changed it: two transactions of this process find the
/// same version when no other connection has written in between. What this process writes does not show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Version {
    /// How often this process has connected to write.
    connected: u64,
    /// SQLite's `data_version`, of that connection.
    data: i64,
}

impl Tx<'_> {
    /// The version of the store, without what this transaction changes.
    pub(crate) async fn version(&mut self) -> Result<Version, StoreError> {
        let data = sqlx::query_scalar("PRAGMA data_version").fetch_one(&mut *self.connection);
        Ok(Version { connected: self.connected, data: data.await? })
    }
}
