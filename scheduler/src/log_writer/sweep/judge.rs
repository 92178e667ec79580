//! What is to be done with one attempt whose time has come.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use taskparty_common::duration;
use taskparty_common::name::Handler;
use taskparty_common::outcome::{Code, Outcome, RunState};
use taskparty_common::priority::Priority;
use taskparty_nats::history::{ReadError, Record, consumer_info, delete_message, last_by_subject};
use taskparty_nats::subject::{of_priority, on_instance};

use super::{SweepError, gone};
use crate::log_writer::Parts;
use crate::log_writer::policy::Policy;
use crate::log_writer::transition::{Verdict, Watched, What};
use crate::store::{Attempt, Ending, Then, ToCheck};

/// The shortest time until the next look.
const SOON: Duration = Duration::from_secs(1);

/// Where a dispatch was found, when it was to be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Removed {
    /// It was there, and no executor ever had it.
    Untouched,
    /// It was there, and an executor has or had it.
    Delivered,
    /// It was not there.
    Absent,
}

/// The handler of an attempt's work, and the priority that its job had.
pub(super) type Work<'a> = (&'a Handler, Priority);

/// An attempt's dispatch, and in which line it stands.
struct Found {
    record: Record,
    priority: Priority,
}

impl Found {
    /// Whether it stands where nobody looks for it.
    fn is_ignored(&self, parts: &Parts, check: &ToCheck, handler: &Handler) -> bool {
        !self.priority.is_default()
            && parts.registry.is_ready()
            && parts.registry.ignores_priorities(&check.app, handler)
    }
}

pub(super) async fn judge(
    parts: &Parts,
    check: &ToCheck,
    now: DateTime<Utc>,
) -> Result<Verdict, SweepError> {
    let attempt = &check.attempt;
    let policy = policy(parts, check).await?;
    let what = match (&attempt.ending, attempt.state, &check.handler) {
        (Some(ending), _, _)
            if ending.removed
                && ending.then != Then::Retry
                && ending.outcome != Outcome::Cancelled =>
        {
            gone::end(parts, check, ending, now).await?
        }
        (Some(ending), _, _) if ending.removed => What::End(ending.clone()),
        (_, RunState::Retrying, _) => What::RetryAgain,
        // Nothing can be said before the fired record.
        (_, _, None) => What::LookAgain(later(now, parts.config.lease)),
        (Some(ending), _, Some(handler)) if ending.outcome == Outcome::Cancelled => {
            cancelled(parts, check, (handler, policy.priority), now, ending.clone()).await?
        }
        (Some(ending), _, Some(handler)) => {
            let lease = parts.config.lease;
            let work = (handler, policy.priority);
            remove_and_end(parts, check, work, now, ending.clone(), lease).await?
        }
        (None, _, Some(handler)) if gone::is_gone(parts, check, now) => {
            gone::judge(parts, check, handler, now).await?
        }
        (None, RunState::Running, Some(handler)) => {
            running(parts, check, handler, &policy, now).await?
        }
        (None, _, Some(handler)) => not_started(parts, check, handler, &policy, now).await?,
    };
    Ok(Verdict {
        run: check.run,
        shard: check.shard,
        attempt: check.number,
        seen: Watched::of(attempt),
        what,
    })
}

async fn policy(parts: &Parts, check: &ToCheck) -> Result<Arc<Policy>, SweepError> {
    let Some(digest) = check.definition else { return Ok(Arc::default()) };
    if let Some(policy) = parts.writer.known_policy(&digest) {
        return Ok(policy);
    }
    let spec = parts.store.definition(&digest).await?;
    Ok(Arc::new(spec.map_or_else(Policy::default, |spec| Policy::read(&spec))))
}

/// In the stream, and nobody has said that he has it.
async fn not_started(
    parts: &Parts,
    check: &ToCheck,
    handler: &Handler,
    policy: &Policy,
    now: DateTime<Utc>,
) -> Result<What, SweepError> {
    let attempt = &check.attempt;
    let (wait, work) = (policy.no_executor_wait, (handler, policy.priority));
    let absent = absent_for(parts, check, handler);
    let waited = since(attempt.dispatched_at, now);
    let ending = if attempt.start_by.is_some_and(|start_by| start_by <= now) {
        let by = attempt.start_by.unwrap_or(now).to_rfc3339_opts(SecondsFormat::Secs, true);
        not_started_ending(
            Code::StartDeadline,
            format!("no executor had started it before its start deadline, {by}"),
        )
    } else if absent.is_some_and(|absent| absent >= wait) && waited >= wait {
        let wait = duration::format(wait);
        not_started_ending(
            Code::NoExecutor,
            format!("there was no executor of {}/{handler} for {wait}", check.app),
        )
    } else if let Some(found) = dispatch(parts, check, work).await? {
        if found.is_ignored(parts, check, handler) {
            return Ok(ignored(parts, check, work, now).await?);
        }
        let rest = match absent {
            Some(absent) => wait.saturating_sub(absent.min(waited)),
            None => wait,
        };
        return Ok(What::LookAgain(next_look(attempt, now, rest)));
    } else {
        // Done, or gone with its stream. If it is done, its result was stored before, and comes.
        let message = "its work is no longer in NATS, and no result came: the stream, or what was in it, was deleted";
        let ending = Ending {
            outcome: Outcome::Lost,
            code: None,
            message: message.into(),
            removed: true,
            then: Then::Retry,
        };
        return Ok(What::EndAt(later(now, parts.config.lease), ending));
    };
    remove_and_end(parts, check, work, now, ending, parts.config.lease).await.map_err(Into::into)
}

/// Stands where nobody looks any more: those that knew priorities have gone, and others are there. It
/// moves to where those look.
async fn ignored(
    parts: &Parts,
    check: &ToCheck,
    work: Work<'_>,
    now: DateTime<Utc>,
) -> Result<What, ReadError> {
    let ending = |outcome, had_it: &str| Ending {
        outcome,
        code: Some(Code::ExecutorLost),
        message: format!(
            "{had_it}; the executors that are there now look for no work of priority {}",
            work.1
        ),
        removed: true,
        then: Then::Move,
    };
    Ok(match remove(parts, check, work).await? {
        Removed::Untouched => What::End(ending(Outcome::NotStarted, "no executor had it")),
        Removed::Delivered | Removed::Absent => {
            let ending = ending(Outcome::Lost, "an executor may have had it, and has gone");
            What::EndAt(later(now, parts.config.lease), ending)
        }
    })
}

fn next_look(attempt: &Attempt, now: DateTime<Utc>, rest: Duration) -> DateTime<Utc> {
    let soon = later(now, SOON);
    let at = later(now, rest);
    let deadline = attempt.start_by.map_or(at, |start_by| later(start_by, SOON * 2));
    at.min(deadline).max(soon)
}

fn not_started_ending(code: Code, message: String) -> Ending {
    let outcome = Outcome::NotStarted;
    Ending { outcome, code: Some(code), message, removed: false, then: Then::Retry }
}

/// At work by the last that was heard.
async fn running(
    parts: &Parts,
    check: &ToCheck,
    handler: &Handler,
    policy: &Policy,
    now: DateTime<Utc>,
) -> Result<What, SweepError> {
    let (grace, work) = (parts.config.lease.saturating_mul(2), (handler, policy.priority));
    let who = check.attempt.instance.as_ref().map_or("its executor".into(), ToString::to_string);
    let lost = |message: String| Ending {
        outcome: Outcome::Lost,
        code: Some(Code::ExecutorLost),
        message,
        removed: true,
        then: Then::Retry,
    };
    if let Some(timeout) = policy.timeout {
        remove(parts, check, work).await?;
        let timeout = duration::format(timeout);
        return Ok(What::End(lost(format!(
            "no result came from {who} within the timeout of {timeout} and two leases"
        ))));
    }
    let gone = absent_for(parts, check, handler)
        .is_some_and(|absent| absent >= policy.no_executor_wait.saturating_add(grace));
    if gone {
        remove(parts, check, work).await?;
        return Ok(What::End(lost(format!(
            "{who} has gone, and no other executor of {}/{handler} came",
            check.app
        ))));
    }
    if dispatch(parts, check, work).await?.is_some() {
        return Ok(What::LookAgain(later(now, grace)));
    }
    // Done, or removed by somebody: a result was stored before, or will never be.
    Ok(What::EndAt(later(now, grace), lost(format!("{who} gave no result"))))
}

/// Of a run that is to stop: takes its work back. An executor that has it has a lease to say that it
/// has stopped; then the attempt ends without that, and as nobody can have the work again, whoever
/// goes on with it all the same has no lease that counts.
async fn cancelled(
    parts: &Parts,
    check: &ToCheck,
    work: Work<'_>,
    now: DateTime<Utc>,
    ending: Ending,
) -> Result<What, SweepError> {
    let removed = remove(parts, check, work).await?;
    let wait = parts.config.lease;
    let words = &ending.message;
    let grace = duration::format(wait);
    let message = match (removed, check.attempt.state) {
        (Removed::Untouched, _) => format!("{words} before an executor had it"),
        (_, RunState::Running) => {
            let who = check.attempt.instance.as_ref().map_or("its executor", |who| who.as_str());
            format!(
                "{words}; {who} was asked to stop and has not answered for {grace}: its handler may still be at work"
            )
        }
        _ => format!("{words}; an executor may have had it, and none has answered for {grace}"),
    };
    let ending = Ending { message, removed: true, ..ending };
    Ok(match removed {
        Removed::Untouched => What::End(ending),
        Removed::Delivered | Removed::Absent => What::EndAt(later(now, wait), ending),
    })
}

/// Removes the dispatch; ends the attempt at once when nobody can have it, else in `wait`.
async fn remove_and_end(
    parts: &Parts,
    check: &ToCheck,
    work: Work<'_>,
    now: DateTime<Utc>,
    ending: Ending,
    wait: Duration,
) -> Result<What, ReadError> {
    let removed = remove(parts, check, work).await?;
    let ending = Ending { removed: true, ..ending };
    Ok(match removed {
        Removed::Untouched => What::End(ending),
        Removed::Delivered | Removed::Absent => What::EndAt(later(now, wait), ending),
    })
}

pub(super) async fn remove(
    parts: &Parts,
    check: &ToCheck,
    work: Work<'_>,
) -> Result<Removed, ReadError> {
    let nats = parts.buckets.nats();
    let stream = nats.names().dispatch_stream(&check.app);
    let Some(found) = dispatch(parts, check, work).await? else { return Ok(Removed::Absent) };
    if !delete_message(nats.js(), &stream, found.record.seq).await? {
        return Ok(Removed::Absent);
    }
    // Asked after the removal: what was not delivered by now never will be.
    let anyones = of_priority(work.0, found.priority);
    let name = check.attempt.target.as_ref().map_or(anyones, on_instance);
    let consumer = consumer_info(nats.js(), &stream, &name).await?;
    let untouched = consumer.is_some_and(|consumer| consumer.delivered < found.record.seq);
    Ok(if untouched { Removed::Untouched } else { Removed::Delivered })
}

/// The attempt's dispatch, as the leader of its stream has it.
async fn dispatch(
    parts: &Parts,
    check: &ToCheck,
    (handler, priority): Work<'_>,
) -> Result<Option<Found>, ReadError> {
    let nats = parts.buckets.nats();
    let names = nats.names();
    let stream = names.dispatch_stream(&check.app);
    let (run, shard, number) = (check.run, check.shard, check.number);
    let look = async |subject: String, priority| match last_by_subject(nats.js(), &stream, &subject)
        .await
    {
        Err(ReadError::NoStream(_)) => Ok(None),
        found => Ok(found?.map(|record| Found { record, priority })),
    };
    if let Some(target) = &check.attempt.target {
        let subject = names.direct(&check.app, target, handler, run, shard, number);
        return look(subject, Priority::default()).await;
    }
    // It stands in its own line, or where work of no priority does.
    let own = names.dispatch_by(&check.app, handler, priority, (run, shard, number));
    let found = look(own, priority).await?;
    if found.is_some() || priority.is_default() {
        return Ok(found);
    }
    look(names.dispatch(&check.app, handler, run, shard, number), Priority::default()).await
}

/// For how long there has been no executor of the handler; none while there is one, or while it
/// is not known. Work for one executor alone waits for that one.
fn absent_for(parts: &Parts, check: &ToCheck, handler: &Handler) -> Option<Duration> {
    if !parts.registry.is_ready() || check.attempt.target.is_some() {
        return None;
    }
    parts.registry.absent_since(&check.app, handler).map(|since| since.elapsed())
}

fn since(at: Option<DateTime<Utc>>, now: DateTime<Utc>) -> Duration {
    at.and_then(|at| (now - at).to_std().ok()).unwrap_or_default()
}

pub(super) fn later(at: DateTime<Utc>, by: Duration) -> DateTime<Utc> {
    TimeDelta::from_std(by)
        .ok()
        .and_then(|by| at.checked_add_signed(by))
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
}
