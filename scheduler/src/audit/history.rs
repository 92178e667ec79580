//! Where the audit reads history: the store itself, or a node that has it.

use chrono::{DateTime, Utc};

use super::{AskRuns, AuditError, HistoryPage, Leftovers};
use crate::store::Store;

/// History, as the audit reads it.
pub trait History: Sync {
    /// A page of runs.
    fn runs(&self, ask: &AskRuns) -> impl Future<Output = Result<HistoryPage, AuditError>> + Send;

    /// What should not stay: what was set aside since `since`, and the outbox.
    fn leftovers(
        &self,
        since: DateTime<Utc>,
    ) -> impl Future<Output = Result<Leftovers, AuditError>> + Send;
}

impl History for Store {
    async fn runs(&self, ask: &AskRuns) -> Result<HistoryPage, AuditError> {
        self.audited(ask).await.map_err(|error| AuditError::History(error.to_string()))
    }

    async fn leftovers(&self, since: DateTime<Utc>) -> Result<Leftovers, AuditError> {
        let found = Store::leftovers(self, since).await;
        found.map_err(|error| AuditError::History(error.to_string()))
    }
}
