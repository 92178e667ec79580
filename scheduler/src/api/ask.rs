//! `run.cancel`, `run.retry`: what is asked of a run that is there.
//!
//! It is stored among what happened, for the log writer to take it in order with all else.
//! *Invariant: whoever got an answer can rely on it*: it is stored by then, and whatever dies
//! afterwards, it comes to pass. Asking twice is asking once.

use std::time::Duration;

use chrono::DateTime;
use taskparty_common::ask::{Ask, Asked, Which};
use taskparty_common::outcome::RunState;
use taskparty_nats::fail_point;
use taskparty_nats::publish::Draft;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::definitions::refused;
use super::problem::{Code, Problem};
use super::wire::{AskRun, OneRun, RetryRun, RunAsked};
use super::{Api, runs};
use crate::store::{RunDetail, RunRow};

/// How long history may take to show a run that was triggered a moment ago.
const YOUNG: Duration = Duration::from_secs(2);

/// How long history may take to show what was asked.
const SHOWN: Duration = Duration::from_secs(3);

/// How often history is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Asks a run to stop.
pub(super) async fn cancel(api: &Api, request: AskRun) -> Result<RunAsked, Problem> {
    let found = find(api, request.named()).await?;
    if found.run.state.is_terminal() || found.run.cancel_requested_at.is_some() {
        return Ok(answer(found, Known::Before));
    }
    store(api, &found, Ask::Cancel { round: Some(found.run.round) }, request.by).await?;
    let done =
        |now: &RunDetail| now.run.cancel_requested_at.is_some() || now.run.state.is_terminal();
    shown(api, found, done).await
}

/// Tries a run again that has ended: new attempts of it, with the definition that it was made with.
pub(super) async fn retry(api: &Api, request: RetryRun) -> Result<RunAsked, Problem> {
    let found = find(api, request.named()).await?;
    let shards = if request.all_shards { Which::All } else { Which::Failed };
    if let Some(why) = not_retryable(&found, shards) {
        return Err(Problem::new(Code::Conflict, why).titled("The run cannot be retried"));
    }
    api.definitions.job(found.run.job.as_str()).await?;
    let round = found.run.round;
    store(api, &found, Ask::Retry { shards, round }, request.by).await?;
    shown(api, found, |now| now.run.round > round).await
}

/// Why there is nothing to try again.
fn not_retryable(found: &RunDetail, shards: Which) -> Option<String> {
    let RunRow { run, job, state, .. } = &found.run;
    let trigger = format!("`taskparty job trigger {job}` makes a new run");
    let defined = found.definition.as_ref().is_some_and(|json| json.get() != "null");
    match state {
        state if !state.is_terminal() => Some(format!(
            "run {run} has not ended, it is {state}: wait for its end, or cancel it first"
        )),
        RunState::Skipped => {
            Some(format!("run {run} was left out, so there is nothing to try again; {trigger}"))
        }
        _ if !defined || found.run.shards == Some(0) => Some(format!(
            "run {run} has nothing that could be tried again: it ended before it was known what it was to do; {trigger}"
        )),
        RunState::Succeeded if shards == Which::Failed => Some(format!(
            "all shards of run {run} succeeded; --all-shards (`all_shards`) runs them again all the same"
        )),
        _ => None,
    }
}

/// The run as history has it. One that was triggered a moment ago may be on its way there.
async fn find(api: &Api, named: OneRun) -> Result<RunDetail, Problem> {
    let id = named.run.as_deref().and_then(|run| Uuid::parse_str(run).ok());
    let made = id.and_then(|id| i64::try_from(id.as_u128() >> 80).ok());
    let made = made.and_then(DateTime::from_timestamp_millis);
    let young = made.is_some_and(|at| api.clock.now() - at < chrono::TimeDelta::seconds(10));
    let end = Instant::now() + YOUNG;
    loop {
        match runs::detail(api, &named).await {
            Err(problem)
                if problem.code == Code::NotFound
                    && (young || named.key.is_some())
                    && Instant::now() < end => {}
            found => return found,
        }
        sleep(LOOK).await;
    }
}

/// Stores what is asked.
async fn store(api: &Api, run: &RunDetail, ask: Ask, by: String) -> Result<(), Problem> {
    let asked = Asked {
        v: 1,
        run: run.run.run,
        job: run.run.job.clone(),
        app: run.run.app.clone(),
        ask,
        by,
        at: api.clock.now(),
    };
    let body = serde_json::to_vec(&asked)
        .map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    let subject = api.nats.names().asked(&asked.app);
    let draft = Draft::new(subject, body).id(asked.message_id());
    api.publisher.publish(draft).await.map_err(refused)?;
    fail_point!("api.after_asked");
    Ok(())
}

/// Waits until history shows what was asked, and answers with it; if that takes long, without.
async fn shown(
    api: &Api,
    before: RunDetail,
    is_done: impl Fn(&RunDetail) -> bool,
) -> Result<RunAsked, Problem> {
    let named = OneRun { run: Some(before.run.run.to_string()), ..OneRun::default() };
    let end = Instant::now() + SHOWN;
    while Instant::now() < end {
        // That it is stored is what counts: a history that cannot be read now is none to complain of.
        if let Ok(now) = runs::detail(api, &named).await
            && is_done(&now)
        {
            return Ok(answer(now, Known::Now));
        }
        sleep(LOOK).await;
    }
    Ok(answer(before, Known::NotYet))
}

/// Since when history knows what is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// There was nothing to ask.
    Before,
    Now,
    NotYet,
}

fn answer(found: RunDetail, known: Known) -> RunAsked {
    RunAsked {
        run: found.run.run,
        job: found.run.job.to_string(),
        state: found.run.state.as_str().into(),
        changed: known != Known::Before,
        shown: known != Known::NotYet,
        cancel_requested_at: found.run.cancel_requested_at,
        cancel_requested_by: found.run.cancel_requested_by,
        round: found.run.round,
    }
}
