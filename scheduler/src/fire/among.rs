//! A look at the locks before several instants are left out with one record.
//!
//! The record locks only the last of them. *Invariant: it counts no instant that somebody else has
//! locked*: whoever decided it may have read the locks a while ago.

use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::fire::{FireId, Identity, Intent};
use taskparty_nats::history::{self, ReadError, Record, Start};
use taskparty_nats::subject::Bucket;

use super::{Firing, Held, Request};

/// The clocks of servers may differ by this much: no lock is stored sooner before its instant.
const MARGIN: TimeDelta = TimeDelta::seconds(4);

/// How long the look may take.
const PATIENCE: Duration = Duration::from_secs(30);

impl Firing {
    /// The locks that others have of the instants that `request` is to leave out together, and own ones
    /// that were never confirmed; nothing when it is of one instant.
    pub(super) async fn locked_by_others(&self, request: &Request) -> Result<Vec<Held>, ReadError> {
        let (Some(accounted), Some(skipped)) = (&request.accounted, &request.skipped) else {
            return Ok(Vec::new());
        };
        let names = self.nats().names();
        let (stream, prefix) = (names.bucket_stream(Bucket::Fires), names.key(Bucket::Fires, ""));
        let subjects = [names.key(Bucket::Fires, &format!("{}.t.*", request.id.job))];
        let mut found = Vec::new();
        let visit = |record: Record| {
            let key = record.subject.strip_prefix(&prefix).unwrap_or_default();
            if !record.is_marker()
                && let Some(id) = FireId::from_lock_key(key)
                && let Identity::Instant(_) = id.identity
                && let Ok(intent) = serde_json::from_slice::<Intent>(&record.payload)
                && intent.fire_time >= skipped.first
                && intent.fire_time != request.fire_time
                && begin(&intent) <= request.fire_time
                && !accounted.has(intent.fire_time)
            {
                found.push(Held { id, intent, stored_at: record.stored_at });
            }
            ControlFlow::Continue(())
        };
        let start = Start::Time(skipped.first - MARGIN);
        let read = history::read(self.nats().js(), &stream, &subjects, start, PATIENCE, visit);
        Box::pin(read).await?;
        Ok(found)
    }
}

/// The first instant that an intent is about.
fn begin(intent: &Intent) -> DateTime<Utc> {
    intent.skipped.as_ref().map_or(intent.fire_time, |skipped| skipped.first)
}
