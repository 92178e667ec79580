//! Alerts about the installation itself: what only an operator can mend.
//!
//! *Invariant: a trouble that goes on is told again and again, but not each time it is met*: each
//! sentence once in ten minutes. The stream of alerts may be what is in trouble: the log always has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use taskparty_common::dispatch::Alert;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::publish::Draft;
use tokio::time::Instant;
use uuid::Uuid;

/// What is told when too many triggers wait.
pub(crate) const TRIGGERS_FULL: &str = "Too many triggers wait in NATS: new ones are refused, and \
     retries wait in the history, until there are fewer. See that the schedulers run; nothing is lost";

/// How soon the same is told again.
const AGAIN: Duration = Duration::from_secs(600);

/// How long an alert is tried.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tells operators. Cheap to clone; clones share what they have told.
#[derive(Debug, Clone)]
pub(crate) struct Alarms {
    buckets: Buckets,
    clock: Clock,
    told: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Alarms {
    /// Alarms that are published where `buckets` are.
    pub(crate) fn new(buckets: Buckets, clock: Clock) -> Self {
        Self { buckets, clock, told: Arc::default() }
    }

    /// Tells of a trouble of this `kind`, in a sentence that says what to do, unless just this was
    /// told lately.
    pub(crate) async fn raise(&self, kind: &'static str, message: &str) {
        if self.was_told(message) {
            return;
        }
        tracing::error!(kind, "{message}");
        let id = format!("{kind}.{}", Uuid::now_v7());
        let alert = Alert {
            v: 1,
            id: id.clone(),
            kind: kind.into(),
            job: None,
            run: None,
            state: None,
            code: None,
            message: message.into(),
            attempts: 0,
            fire_time: None,
            at: self.clock.now(),
        };
        let Ok(body) = serde_json::to_vec(&alert) else { return };
        let draft = Draft::new(self.buckets.nats().names().system_alert(), body).id(id);
        if let Err(error) = self.buckets.publisher().publish_within(draft, PATIENCE).await {
            tracing::warn!(kind, %error, "An alert is not on its stream.");
        }
    }

    fn was_told(&self, message: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        told.retain(|_, at| at.elapsed() < AGAIN);
        let lately = told.contains_key(message);
        if !lately {
            told.insert(message.into(), Instant::now());
        }
        lately
    }
}
