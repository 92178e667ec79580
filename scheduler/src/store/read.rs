//! Reading values out of SQL rows, and the forms in which they are bound.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use super::StoreError;

/// A row whose columns are read from left to right.
pub(super) struct Columns<'r> {
    row: &'r SqliteRow,
    next: usize,
}

impl<'r> Columns<'r> {
    pub(super) fn of(row: &'r SqliteRow) -> Self {
        Self::from(row, 0)
    }

    /// Reads from column `next` on.
    pub(super) fn from(row: &'r SqliteRow, next: usize) -> Self {
        Self { row, next }
    }

    fn broken(&self, what: &str) -> StoreError {
        StoreError::Data(format!("column {} of a row: {what}", self.next))
    }

    fn get<T>(&mut self) -> Result<T, StoreError>
    where
        T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
    {
        let value = self.row.try_get(self.next)?;
        self.next += 1;
        Ok(value)
    }

    pub(super) fn maybe_text(&mut self) -> Result<Option<&'r str>, StoreError> {
        self.get()
    }

    pub(super) fn text(&mut self) -> Result<&'r str, StoreError> {
        self.get()
    }

    /// Text where NULL stands for the empty one.
    pub(super) fn string(&mut self) -> Result<String, StoreError> {
        Ok(self.maybe_text()?.unwrap_or_default().to_owned())
    }

    pub(super) fn maybe_string(&mut self) -> Result<Option<String>, StoreError> {
        Ok(self.maybe_text()?.map(str::to_owned))
    }

    /// A word, or a name, of which `read` makes the value.
    pub(super) fn parsed<T>(&mut self, read: impl Fn(&str) -> Option<T>) -> Result<T, StoreError> {
        let text = self.text()?;
        read(text).ok_or_else(|| self.broken(&format!("{text:?} is not known here")))
    }

    pub(super) fn maybe_parsed<T>(
        &mut self,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<Option<T>, StoreError> {
        let Some(text) = self.maybe_text()? else { return Ok(None) };
        match read(text) {
            Some(value) => Ok(Some(value)),
            None => Err(self.broken(&format!("{text:?} is not known here"))),
        }
    }

    pub(super) fn maybe_json<T: DeserializeOwned>(&mut self) -> Result<Option<T>, StoreError> {
        let Some(text) = self.maybe_text()? else { return Ok(None) };
        serde_json::from_str(text).map(Some).map_err(|error| self.broken(&error.to_string()))
    }

    pub(super) fn number(&mut self) -> Result<i64, StoreError> {
        self.get()
    }

    pub(super) fn count<T: TryFrom<i64>>(&mut self) -> Result<T, StoreError> {
        let number: i64 = self.get()?;
        T::try_from(number).map_err(|_| self.broken(&format!("{number} is out of bounds")))
    }

    pub(super) fn maybe_count<T: TryFrom<i64>>(&mut self) -> Result<Option<T>, StoreError> {
        let Some(number): Option<i64> = self.get()? else { return Ok(None) };
        match T::try_from(number) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.broken(&format!("{number} is out of bounds"))),
        }
    }

    pub(super) fn flag(&mut self) -> Result<bool, StoreError> {
        Ok(self.number()? != 0)
    }

    pub(super) fn time(&mut self) -> Result<DateTime<Utc>, StoreError> {
        let number: i64 = self.get()?;
        DateTime::from_timestamp_millis(number)
            .ok_or_else(|| self.broken(&format!("{number} is no instant")))
    }

    pub(super) fn maybe_time(&mut self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let number: Option<i64> = self.get()?;
        Ok(number.and_then(DateTime::from_timestamp_millis))
    }

    pub(super) fn bytes(&mut self) -> Result<Option<[u8; 16]>, StoreError> {
        let Some(bytes): Option<&[u8]> = self.get()? else { return Ok(None) };
        match bytes.try_into() {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) => Err(self.broken("it is not 16 bytes")),
        }
    }

    pub(super) fn uuid(&mut self) -> Result<Uuid, StoreError> {
        self.bytes()?.map(Uuid::from_bytes).ok_or_else(|| self.broken("it is NULL"))
    }
}

/// An id as SQL keeps it.
pub(super) fn blob(id: &[u8; 16]) -> Vec<u8> {
    id.to_vec()
}

/// A text to bind. One allocation, where sqlx makes two of a `&str` and three of a cloned `String`:
/// a batch binds some thousands.
pub(super) fn text(text: &str) -> Arc<str> {
    text.into()
}

/// Likewise, where NULL stands for the empty one.
pub(super) fn some_text(text: &str) -> Option<Arc<str>> {
    (!text.is_empty()).then(|| text.into())
}

/// An instant as SQL keeps it.
pub(super) fn ms(at: DateTime<Utc>) -> i64 {
    at.timestamp_millis()
}

/// A count as SQL keeps it; beyond SQL's largest number, that one.
pub(super) fn big(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
