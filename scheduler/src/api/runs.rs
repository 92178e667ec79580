//! `run.list`, `run.get`: what happened, from history.

use taskparty_common::name::JobId;
use taskparty_common::outcome::RunState;
use uuid::Uuid;

use super::Api;
use super::problem::Problem;
use super::wire::{ListRuns, OneRun};
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
    let after =
        match &request.after {
            None => None,
            Some(after) => Some(Uuid::parse_str(after).map_err(|_| {
                wrong("after", after, "send the `next` of an earlier answer".into())
            })?),
        };
    let limit = request.limit.unwrap_or(50).clamp(1, MOST);
    let filter = RunFilter {
        job,
        states,
        since: request.since,
        after,
        limit: u32::try_from(limit).ok(),
        ..RunFilter::default()
    };
    api.history.store().await?.runs(&filter).await.map_err(unavailable)
}

/// One run with its attempts and alerts.
pub(super) async fn get(api: &Api, request: OneRun) -> Result<RunDetail, Problem> {
    detail(api, &request.run).await
}

pub(super) async fn detail(api: &Api, run: &str) -> Result<RunDetail, Problem> {
    let id = Uuid::parse_str(run).map_err(|_| {
        Problem::field(
            "run",
            Some(format!("{run:?}")),
            "it is no run id; `taskparty run list` shows them",
        )
    })?;
    api.history
        .store()
        .await?
        .run(id)
        .await
        .map_err(unavailable)?
        .ok_or_else(|| Problem::no_run(run))
}

pub(super) fn unavailable(error: StoreError) -> Problem {
    Problem::unavailable(format!("history cannot be read: {error}"))
}
