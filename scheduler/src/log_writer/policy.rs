//! What of a job's frozen definition decides over a run, and a bounded store of it.

use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use taskparty_common::backoff::Retry;
use taskparty_common::job::{AlertWhen, JobSpec, Unknown};
use taskparty_common::name::JobId;
use taskparty_common::priority::Priority;
use taskparty_common::schedule::Timing;

use super::recent::Recent;
use crate::overlap::Bounds;
use crate::store::Digest;

/// The part of a definition that transitions go by.
#[derive(Debug, Clone, PartialEq)]
pub struct Policy {
    /// Attempts after the first.
    pub retry: Retry,
    /// Whether a final failure is an alert.
    pub alert_failed: bool,
    /// How often a shard whose executor was lost goes to another one.
    pub redeliveries: u32,
    /// How long one attempt may take; none: as long as it likes.
    pub timeout: Option<Duration>,
    /// How long a fire waits while there is no executor of the handler.
    pub no_executor_wait: Duration,
    /// How urgent its work is: where it may stand.
    pub priority: Priority,
    /// For a fixed delay: the time from the end of a run to the next.
    pub fixed_delay: Option<Duration>,
    /// A run of the job holds a place until it has ended.
    pub holds_place: bool,
    /// The jobs that follow on a success.
    pub then: Vec<JobId>,
    /// Failed runs in a row pause the job.
    pub counts_failures: bool,
}

impl Default for Policy {
    /// What holds for a definition that cannot be read: no retry, and an alert when it fails.
    fn default() -> Self {
        Self {
            retry: Retry::default(),
            alert_failed: true,
            redeliveries: 2,
            timeout: Some(Duration::from_secs(3600)),
            no_executor_wait: Duration::from_secs(120),
            priority: Priority::default(),
            fixed_delay: None,
            holds_place: false,
            then: Vec::new(),
            counts_failures: false,
        }
    }
}

impl Policy {
    /// Reads a definition's text. One that this version cannot read gives the default: the run
    /// happened, and its history must not be lost for it.
    pub fn read(definition: &str) -> Self {
        let spec =
            serde_json::from_str(definition).map_err(|error| error.to_string()).and_then(|value| {
                JobSpec::from_json(&value, Unknown::Ignore).map_err(|error| error.to_string())
            });
        match spec {
            Ok(spec) => Self::of(&spec),
            // A trigger of a job that is gone: there is nobody to retry for or to tell.
            Err(_) if definition == "null" => Self { alert_failed: false, ..Self::default() },
            Err(error) => {
                tracing::warn!(%error, "A run's definition cannot be read; it has no retries.");
                Self::default()
            }
        }
    }

    /// How many runs may go on and begin by a definition's text; nothing: any number, or it cannot be
    /// read.
    pub(crate) fn bounds_of(definition: &str) -> Option<Bounds> {
        let value = serde_json::from_str(definition).ok()?;
        Bounds::of(&JobSpec::from_json(&value, Unknown::Ignore).ok()?)
    }

    /// The policy of a spec.
    pub fn of(spec: &JobSpec) -> Self {
        let fixed_delay = spec.schedule.as_ref().and_then(|schedule| match schedule.timing() {
            Timing::FixedDelay(delay) => Some(*delay),
            _ => None,
        });
        Self {
            retry: spec.retry.clone(),
            alert_failed: spec.alert.contains(&AlertWhen::Failed),
            redeliveries: spec.redeliveries,
            timeout: spec.timeout,
            no_executor_wait: spec.no_executor_wait,
            priority: spec.priority,
            fixed_delay,
            holds_place: spec.places().is_some(),
            then: spec.then.clone(),
            counts_failures: spec.pause_after_failures.is_some(),
        }
    }
}

/// The digest by which a definition's text is kept.
pub fn digest_of(definition: &str) -> Digest {
    let mut digest = Digest::default();
    digest.copy_from_slice(&Sha256::digest(definition.as_bytes())[..16]);
    digest
}

/// How many policies are kept in memory; some hundred bytes each. Of a job whose policy was forgotten
/// the definition is read and stored again with each run: that costs as much as all the rest.
const KEPT: usize = 100_000;

/// Policies by digest.
pub(super) type Policies = Recent<Digest, Arc<Policy>>;

/// None yet.
pub(super) fn policies() -> Policies {
    Recent::new(KEPT, |_| 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_that_cannot_be_read_has_no_retries_and_still_alerts() {
        let policy = Policy::read(r#"{"id":7}"#);
        assert_eq!((policy.retry.max, policy.alert_failed), (0, true));
    }
}
