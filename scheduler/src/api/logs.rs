//! `run.logs`: what a run's handlers wrote.
//!
//! The stream has a subject for each job, never one for each run; so the job's lines since the run
//! was made are read, and those of other runs are left out.

use std::ops::ControlFlow;
use std::time::Duration;

use chrono::TimeDelta;
use taskparty_nats::history::{self, Record, Start};

use super::Api;
use super::definitions::unreadable;
use super::problem::Problem;
use super::runs::{detail, page_size};
use super::wire::{LogLine, LogPage, RunLogs};

/// How many messages a page has when nothing is said, and at most.
const PAGE: usize = 500;
const MOST: usize = 1_000;

/// An answer must fit into one message.
const MOST_BYTES: usize = 600 * 1024;

/// How long reading may take.
const READ: Duration = Duration::from_secs(10);

/// A line may be stored a little before its run's instant by the server's clock.
const CLOCKS: TimeDelta = TimeDelta::seconds(30);

/// A page of what the run's handlers wrote.
pub(super) async fn logs(api: &Api, request: RunLogs) -> Result<LogPage, Problem> {
    let run = detail(api, &request.named()).await?.run;
    // Before the lines are read: what is written after this is on the next page.
    let ended = run.state.is_terminal();
    let limit = page_size(request.limit, PAGE, MOST)?;
    let began = run.fired_at.or(run.fire_time).or(run.started_at);
    let start = match (request.after_seq, began) {
        (0, Some(began)) => Start::Time(began - CLOCKS),
        (0, None) => Start::First,
        (seq, _) => Start::Seq(seq + 1),
    };
    let names = api.nats.names();
    let subjects = [names.log(&run.app, &run.job)];
    let id = run.run.to_string();
    let mut page = LogPage { items: Vec::new(), next: None, ended };
    let mut bytes = 0;
    history::read(api.nats.js(), &names.logs_stream(), &subjects, start, READ, |record| {
        if header(&record, "Taskparty-Run") != Some(&id) {
            return ControlFlow::Continue(());
        }
        bytes += record.payload.len() + 200;
        if page.items.len() == limit || (bytes > MOST_BYTES && !page.items.is_empty()) {
            page.next = page.items.last().map(|line| line.seq);
            return ControlFlow::Break(());
        }
        page.items.push(line(&record));
        ControlFlow::Continue(())
    })
    .await
    .map_err(unreadable)?;
    Ok(page)
}

fn header<'a>(record: &'a Record, name: &str) -> Option<&'a str> {
    record.headers.get(name).map(|value| value.as_str())
}

fn line(record: &Record) -> LogLine {
    let number = |name| header(record, name).and_then(|text| text.parse().ok());
    LogLine {
        seq: record.seq,
        at: record.stored_at,
        shard: number("Taskparty-Shard"),
        attempt: number("Taskparty-Attempt"),
        level: header(record, "Taskparty-Level").unwrap_or_default().to_owned(),
        text: String::from_utf8_lossy(&record.payload).into_owned(),
    }
}
