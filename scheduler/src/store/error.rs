//! What can go wrong with the store, told apart by what to do about it.

use sqlx::error::DatabaseError;

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL is not one that this version can open.
    #[error("{url}: {problem}")]
    Url {
        /// The URL, without its password.
        url: String,
        /// What is wrong with it, and what would be right.
        problem: String,
    },
    /// The file cannot be used.
    #[error("the history file {path} cannot be used: {problem}")]
    File {
        /// The file.
        path: String,
        /// What is wrong with it, and what to do.
        problem: String,
    },
    /// A newer version wrote it.
    #[error(
        "{path} was written by a newer TaskParty (its schema is at step {found}, this version knows \
         {known}): start the newer version, or name another file"
    )]
    Newer {
        /// The file.
        path: String,
        /// The step that was found.
        found: i64,
        /// The last step that this version knows.
        known: i64,
    },
    /// The schema could not be brought up to date.
    #[error("the history's schema could not be brought up to date: {0}")]
    Migrate(#[source] sqlx::migrate::MigrateError),
    /// SQL is down, locked, full or gone: the same may work later.
    #[error("the history cannot be reached: {0}")]
    Outage(#[source] sqlx::Error),
    /// SQL refused the data, or holds something that cannot be read: the same fails again.
    #[error("the history refused the data: {0}")]
    Data(String),
}

impl StoreError {
    /// Whether the same may work later.
    pub fn is_outage(&self) -> bool {
        matches!(self, StoreError::Outage(_))
    }
}

/// SQLite's primary result codes that say nothing about the data: PERM, BUSY, LOCKED, NOMEM,
/// READONLY, INTERRUPT, IOERR, CORRUPT, FULL, CANTOPEN, PROTOCOL, NOLFS, NOTADB.
const OUTAGES: [i32; 13] = [3, 5, 6, 7, 8, 9, 10, 11, 13, 14, 15, 22, 26];

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let data = match &error {
            sqlx::Error::Database(database) => !is_outage(database.as_ref()),
            sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_)
            | sqlx::Error::RowNotFound
            | sqlx::Error::TypeNotFound { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnIndexOutOfBounds { .. } => true,
            _ => false,
        };
        if data { StoreError::Data(error.to_string()) } else { StoreError::Outage(error) }
    }
}

fn is_outage(error: &dyn DatabaseError) -> bool {
    let code = error.code().and_then(|code| code.parse::<i32>().ok());
    code.is_none_or(|code| OUTAGES.contains(&(code & 0xff)))
}
