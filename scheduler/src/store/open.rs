//! Opening the store that a URL names.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::StoreError;
use super::identity::Identity;

static MIGRATIONS: Migrator = sqlx::migrate!("./migrations/sqlite");

/// How long a statement waits for another process's lock before it fails as an outage.
const BUSY: Duration = Duration::from_secs(2);

/// How long others may take to make the file, or bring its tables up to date, in the same moment.
const OTHERS: Duration = Duration::from_secs(5);

/// How often is looked whether they have.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// How long a reader waits for a free connection.
const ACQUIRE: Duration = Duration::from_secs(5);

/// Connections for reading.
const READERS: u32 = 4;

/// An open SQLite file.
#[derive(Debug)]
pub(super) struct Opened {
    /// Exactly one connection: SQLite takes one writer at a time.
    pub(super) writer: SqlitePool,
    /// How often that was made.
    pub(super) connected: Arc<AtomicU64>,
    pub(super) readers: SqlitePool,
    pub(super) id: Uuid,
    pub(super) identity: Identity,
}

/// The file that `url` names.
pub(super) fn path_of(url: &str) -> Result<PathBuf, StoreError> {
    let fail =
        |problem: &str| StoreError::Url { url: without_password(url), problem: problem.into() };
    let Some((scheme, rest)) = url.split_once(':') else {
        return Err(fail("it is no store's URL: write sqlite:PATH"));
    };
    match scheme {
        "sqlite" => {}
        "postgres" | "postgresql" | "mysql" | "mariadb" => {
            return Err(fail(
                "not yet: this version keeps history in SQLite only; write sqlite:PATH",
            ));
        }
        _ => return Err(fail("no such kind of store: write sqlite:PATH")),
    }
    let path = rest.strip_prefix("//").unwrap_or(rest);
    if path.is_empty() {
        return Err(fail("the path is missing: write sqlite:PATH"));
    }
    if path == ":memory:" {
        return Err(fail("history in memory would end with the process: name a file"));
    }
    if path.contains('?') {
        return Err(fail("options after a ? are not taken: write sqlite:PATH alone"));
    }
    Ok(PathBuf::from(path))
}

fn without_password(url: &str) -> String {
    match url.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?))) {
        Some((scheme, (_, host))) => format!("{scheme}://…@{host}"),
        None => url.to_owned(),
    }
}

/// Opens the file, makes it and its folder when they are missing, and brings its schema up to date.
pub(super) async fn open(path: &Path) -> Result<Opened, StoreError> {
    check(path)?;
    let options = SqliteConnectOptions::from_str("sqlite:")
        .map_err(StoreError::Outage)?
        .filename(path)
        .synchronous(SqliteSynchronous::Normal)
        .foreign_keys(true)
        .busy_timeout(BUSY)
        .statement_cache_capacity(256)
        .pragma("cache_size", "-32768");
    let connected = Arc::new(AtomicU64::new(0));
    let count = connected.clone();
    let writer = SqlitePoolOptions::new()
        .after_connect(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Ok(()) })
        })
        .max_connections(1)
        .acquire_timeout(ACQUIRE)
        .idle_timeout(None)
        .max_lifetime(None);
    let to_write = options.clone().create_if_missing(true).journal_mode(SqliteJournalMode::Wal);
    let writer = connect(path, writer, to_write).await?;
    migrate(path, &writer).await?;
    let id = id_of(&writer).await?;
    let identity = Identity::of(path)?;
    let whose = path.to_owned();
    let to_read = options.pragma("query_only", "1").pragma("cache_size", "-8192");
    // All connect now, and change nothing: later it may be another file that is there, which is not ours.
    let readers = SqlitePoolOptions::new()
        .min_connections(READERS)
        .max_connections(READERS)
        .idle_timeout(None)
        .max_lifetime(None)
        .acquire_timeout(ACQUIRE)
        .after_connect(move |_, _| Box::pin(std::future::ready(identity.check(&whose))));
    let readers = connect(path, readers, to_read).await?;
    // The pool may still be at the last of them.
    futures::future::try_join_all((0..READERS).map(|_| readers.acquire()))
        .await
        .map_err(|error| explain(path, error))?;
    Ok(Opened { writer, connected, readers, id, identity })
}

/// Connects. While another process makes a new file a WAL, SQLite says at once that it is locked,
/// whatever the busy timeout is.
async fn connect(
    path: &Path,
    pool: SqlitePoolOptions,
    options: SqliteConnectOptions,
) -> Result<SqlitePool, StoreError> {
    let end = Instant::now() + OTHERS;
    loop {
        match pool.clone().connect_with(options.clone()).await {
            Err(error) if is_locked(&error) && Instant::now() < end => sleep(LOOK_AGAIN).await,
            connected => return connected.map_err(|error| explain(path, error)),
        }
    }
}

/// What can be said before SQLite says it worse.
fn check(path: &Path) -> Result<(), StoreError> {
    let fail = |problem: String| StoreError::File { path: path.display().to_string(), problem };
    if path.is_dir() {
        return Err(fail("it is a folder: name a file in it".into()));
    }
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        std::fs::create_dir_all(folder)
            .map_err(|error| fail(format!("its folder cannot be made: {error}")))?;
    }
    if path.exists() {
        std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| fail(format!("it cannot be written: {error}")))?;
    }
    Ok(())
}

/// SQLite's primary result code (sqlite.org/rescode.html).
fn code_of(error: &sqlx::Error) -> Option<i32> {
    let sqlx::Error::Database(database) = error else { return None };
    database.code()?.parse::<i32>().ok().map(|code| code & 0xff)
}

fn is_locked(error: &sqlx::Error) -> bool {
    matches!(code_of(error), Some(5 | 6))
}

fn explain(path: &Path, error: sqlx::Error) -> StoreError {
    let problem = match code_of(&error) {
        Some(26) => "it is no SQLite database: name another file".into(),
        Some(14) => "it cannot be opened: look at the rights of the file and of its folder".into(),
        Some(8) => "it is read-only, or its folder is: give this process the right to write".into(),
        Some(5 | 6) => {
            "another process holds it locked: end that process, or wait until it is done".into()
        }
        _ => error.to_string(),
    };
    StoreError::File { path: path.display().to_string(), problem }
}

/// Brings the tables up to date. Another process may be at it in the same moment: then a step fails,
/// whole, and the next look finds it done.
async fn migrate(path: &Path, writer: &SqlitePool) -> Result<(), StoreError> {
    let end = Instant::now() + OTHERS;
    let migrated = loop {
        match MIGRATIONS.run(writer).await {
            Err(MigrateError::ExecuteMigration(..) | MigrateError::Execute(_))
                if Instant::now() < end =>
            {
                sleep(LOOK_AGAIN).await;
            }
            done => break done,
        }
    };
    migrated.map_err(|error| match error {
        MigrateError::VersionMissing(found) | MigrateError::VersionTooNew(found, _) => {
            StoreError::Newer {
                path: path.display().to_string(),
                found,
                known: MIGRATIONS.iter().map(|step| step.version).max().unwrap_or(0),
            }
        }
        MigrateError::Execute(error) => explain(path, error),
        error => StoreError::Migrate(error),
    })
}

/// The store's id, made with the file.
async fn id_of(writer: &SqlitePool) -> Result<Uuid, StoreError> {
    sqlx::query(
        "INSERT INTO meta (name, value) VALUES ('store', $1) ON CONFLICT (name) DO NOTHING",
    )
    .bind(Uuid::new_v4().to_string())
    .execute(writer)
    .await?;
    let id: String =
        sqlx::query_scalar("SELECT value FROM meta WHERE name = 'store'").fetch_one(writer).await?;
    Uuid::parse_str(&id)
        .map_err(|_| StoreError::Data(format!("the store's id, {id:?}, is no UUID")))
}
