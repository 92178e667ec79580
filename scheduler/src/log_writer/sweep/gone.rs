//! Attempts that are for an executor that has gone: another one gets them, unless they are pinned.
//!
//! *Invariant: nobody else gets what that executor can still have.* Its messages go first: what was
//! not delivered by then never will be, and is another's at once. Then its consumer goes, so that it
//! can extend no lease if it is only cut off; what was delivered is another's a lease later, and a
//! result that comes before that counts.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::name::{App, Handler, Instance};
use taskparty_common::outcome::{Code, Outcome};
use taskparty_common::priority::Priority;
use taskparty_nats::history::{ReadError, delete_consumer};
use taskparty_nats::subject::on_instance;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::judge::{Removed, later, remove};
use crate::log_writer::Parts;
use crate::log_writer::transition::What;
use crate::store::{Ending, Then, ToCheck};

/// An executor's entry is seen by every node this long after it was put.
pub(super) const SEEN_BY_ALL: TimeDelta = TimeDelta::seconds(5);

/// An executor whose entry has been gone for so long has gone itself: an entry that was lost because
/// somebody deleted the bucket is put back sooner.
const COMES_BACK: Duration = Duration::from_secs(4);

/// Removed consumers that are remembered.
const REMEMBERED: usize = 1000;

/// When the consumers of executors that have gone were removed.
#[derive(Debug, Default)]
pub(in crate::log_writer) struct Retired(Mutex<HashMap<(App, Instance), Instant>>);

/// Whether this attempt is for an executor that has gone. One whose entry is so new that not every
/// node has seen it has not.
pub(super) fn is_gone(parts: &Parts, check: &ToCheck, now: DateTime<Utc>) -> bool {
    let Some(target) = &check.attempt.target else { return false };
    let seen = check.attempt.dispatched_at.is_some_and(|at| now - at >= SEEN_BY_ALL);
    let gone = parts.registry.gone_for(&check.app, target);
    seen && parts.registry.is_ready() && gone.is_some_and(|time| time >= COMES_BACK)
}

/// What is to be done with an attempt that [`is_gone`] is true of.
pub(super) async fn judge(
    parts: &Parts,
    check: &ToCheck,
    handler: &Handler,
    now: DateTime<Utc>,
) -> Result<What, ReadError> {
    let who = check.attempt.target.as_ref().map_or("its executor".into(), ToString::to_string);
    let then = if check.attempt.pinned { Then::Nothing } else { Then::Move };
    let ending = |outcome, message: String| Ending {
        outcome,
        code: Some(Code::ExecutorLost),
        message,
        removed: true,
        then,
    };
    Ok(match remove(parts, check, (handler, Priority::default())).await? {
        Removed::Untouched => {
            What::End(ending(Outcome::NotStarted, format!("{who} has gone before it began")))
        }
        Removed::Delivered | Removed::Absent => {
            let ending = ending(Outcome::Lost, format!("{who} has gone, and gave no result"));
            What::EndAt(later(now, parts.config.lease), ending)
        }
    })
}

/// What is to be done when the time has come that [`judge`] said: its lease must be over.
pub(super) async fn end(
    parts: &Parts,
    check: &ToCheck,
    ending: &Ending,
    now: DateTime<Utc>,
) -> Result<What, ReadError> {
    let Some(target) = &check.attempt.target else { return Ok(What::End(ending.clone())) };
    let over = retire(parts, &check.app, target).await?.elapsed();
    let left = parts.config.lease.saturating_sub(over);
    if left.is_zero() {
        return Ok(What::End(ending.clone()));
    }
    Ok(What::EndAt(later(parts.clock.now().max(now), left), ending.clone()))
}

/// Removes the consumers of all executors that `checks` are for and that have gone: all that was for
/// them has been looked at. What does not work now is done when their leases should be over.
pub(super) async fn retire_all(parts: &Parts, gone: HashSet<(App, Instance)>) {
    for (app, target) in gone {
        if let Err(error) = retire(parts, &app, &target).await {
            tracing::debug!(%app, instance = %target, %error, "The consumer of an executor that has gone is not removed yet.");
        }
    }
}

/// Removes the consumer of an executor that has gone, once; says when that was.
async fn retire(parts: &Parts, app: &App, target: &Instance) -> Result<Instant, ReadError> {
    let key = (app.clone(), target.clone());
    let mut retired = parts.retired.0.lock().await;
    // Gone a second time, it has a consumer again.
    let gone_for = parts.registry.gone_for(app, target);
    let known = retired.get(&key).copied();
    if let Some(at) = known.filter(|at| gone_for.is_none_or(|gone_for| at.elapsed() <= gone_for)) {
        return Ok(at);
    }
    // One that is back keeps its consumer.
    if gone_for.is_some() {
        let nats = parts.buckets.nats();
        let stream = nats.names().dispatch_stream(app);
        match delete_consumer(nats.js(), &stream, &on_instance(target)).await {
            Ok(_) | Err(ReadError::NoStream(_)) => {}
            Err(error) => return Err(error),
        }
    }
    if retired.len() >= REMEMBERED {
        retired.clear();
    }
    let at = Instant::now();
    retired.insert(key, at);
    tracing::warn!(%app, instance = %target, "An executor has gone; what was for it alone goes to others, unless it is pinned.");
    Ok(at)
}
