//! `doctor.audit`: history, piece by piece, for an audit.
//!
//! The audit itself runs where it was asked for: it reads NATS by itself, has files of its own, and
//! takes longer than a request may. What only a node has is history.

use super::Api;
use super::problem::Problem;
use super::runs::unavailable;
use super::wire::{AskAudit, AuditAnswer};

/// What was asked for of history.
pub(super) async fn audit(api: &Api, request: AskAudit) -> Result<AuditAnswer, Problem> {
    let mut answer = AuditAnswer::default();
    if let Some(ask) = &request.runs {
        answer.runs = Some(api.history.store().await?.audited(ask).await.map_err(unavailable)?);
    }
    if let Some(since) = request.leftovers_since {
        answer.leftovers =
            Some(api.history.store().await?.leftovers(since).await.map_err(unavailable)?);
    }
    Ok(answer)
}
