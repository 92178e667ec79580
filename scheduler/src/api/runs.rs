//! `run.list`, `run.get`: what happened, from history.

use taskparty_common::name::{JobId, Key};
use taskparty_common::outcome::{RunState, Trigger};
use uuid::Uuid;

use super::problem::Problem;
use super::wire::{ListRuns, OneRun};
use super::{Api, waits};
use crate::store::{Page, RunDetail, RunFilter, RunRow, StoreError};

/// The most runs of a page: an answer must fit into one message.
const MOST: usize = 500;

/// Runs, the latest first.
pub(super) async fn list(api: &Api, request: ListRuns) -> Result<Page<RunRow>, Problem> {
    let wrong = |field: &str, value: &str, problem: String| {
        Problem::field(field, Some(format!("{value:?}")), problem)
    };
    let job = match &request.job {
        None => None,
        Some(job) => {
            Some(JobId::new(job).map_err(|error| Problem::field("job", None, error.to_string()))?)
        }
    };
    let states = match &request.state {
        None => Vec::new(),
        Some(word) => vec![RunState::from_word(word).ok_or_else(|| {
            let known: Vec<&str> = RunState::ALL.iter().map(|(word, _)| *word).collect();
            wrong("state", word, format!("it is one of {}", known.join(", ")))
        })?],
    };
    let trigger = match &request.trigger {
        None => None,
        Some(word) => Some(Trigger::from_word(word).ok_or_else(|| {
            let known: Vec<&str> = Trigger::ALL.iter().map(|(word, _)| *word).collect();
            wrong("trigger", word, format!("it is one of {}", known.join(", ")))
        })?),
    };
    let after =
        match &request.after {
            None => None,
            Some(after) => Some(Uuid::parse_str(after).map_err(|_| {
                wrong("after", after, "send the `next` of an earlier answer".into())
            })?),
        };
    let limit = page_size(request.limit, 50, MOST)?;
    let filter = RunFilter {
        job,
        states,
        since: request.since,
        until: request.until,
        trigger,
        after,
        limit: u32::try_from(limit).ok(),
        ..RunFilter::default()
    };
    api.history.store().await?.runs(&filter).await.map_err(unavailable)
}

/// One run with its attempts and alerts.
pub(super) async fn get(api: &Api, request: OneRun) -> Result<RunDetail, Problem> {
    let run = detail(api, &request).await?;
    let waits = waits::of(api, &run.run).await;
    Ok(RunDetail { waits, ..run })
}

pub(super) async fn detail(api: &Api, named: &OneRun) -> Result<RunDetail, Problem> {
    let store = api.history.store().await?;
    let id = match (&named.run, &named.job, &named.key) {
        (Some(run), None, None) => Uuid::parse_str(run).map_err(|_| {
            Problem::field(
                "run",
                Some(format!("{run:?}")),
                "it is no run id; `taskparty run list` shows them",
            )
        })?,
        (None, Some(job), Some(key)) => {
            let job = JobId::new(job);
            let job = job.map_err(|error| Problem::field("job", None, error.to_string()))?;
            let name = Key::new(key);
            let name = name.map_err(|error| Problem::field("key", None, error.to_string()))?;
            let found = store.run_of_key(&job, &name).await.map_err(unavailable)?;
            found.ok_or_else(|| Problem::no_run_of_key(job.as_str(), key))?
        }
        _ => return Err(Problem::invalid("name the run by `run`, or by `job` and `key`")),
    };
    store.run(id).await.map_err(unavailable)?.ok_or_else(|| Problem::no_run(&id.to_string()))
}

/// How many items a page has: `default` where nobody says, and never more than `most`.
pub(super) fn page_size(
    limit: Option<usize>,
    default: usize,
    most: usize,
) -> Result<usize, Problem> {
    match limit {
        Some(0) => {
            Err(Problem::field("limit", Some("0".into()), format!("it is from 1 to {most}")))
        }
        limit => Ok(limit.unwrap_or(default).min(most)),
    }
}

pub(super) fn unavailable(error: StoreError) -> Problem {
    Problem::unavailable(format!("history cannot be read: {error}"))
}
