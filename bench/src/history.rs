//! The history: how fast the log writer fills it, and how fast it answers when it is full.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use futures::{StreamExt, TryStreamExt};
use serde_json::Value;
use taskparty_common::name::{App, JobId};
use taskparty_common::outcome::RunState;
use taskparty_nats::publish::Draft;
use taskparty_scheduler::store::{RunFilter, Store};
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::jobs::APP;
use crate::report::Report;
use crate::wire::Run;

/// Where a run ends here.
const ENDS: [RunState; 2] = [RunState::Succeeded, RunState::Failed];

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many runs are written, and then looked through.
    pub runs: u64,
    /// So many further runs are fired before a run's result comes, rounded up to whole messages. At 0
    /// both are written together; with many in between, each run is written twice.
    pub apart: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { runs: 200_000, apart: 0 }
    }
}

/// Runs whose records one message holds, as busy senders join them.
const JOINED: u64 = 16;

/// The jobs whose runs they are.
const JOBS: u64 = 1_000;

/// Messages that wait for their confirmation at once.
const AT_ONCE: usize = 256;

/// How often it is looked how many are written.
const LOOK: Duration = Duration::from_millis(100);

/// After this long with nothing more it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often each question is asked.
const ASKED: u32 = 20;

/// Measures.
///
/// # Errors
/// When something does not start, or the log writer stands still.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let mut report = Report::new("store", setting.words_and_history()?);
    report.on.push(("runs", config.runs.to_string()));
    report.on.push(("runs a message", JOINED.to_string()));
    report.on.push(("runs fired before a result comes", config.apart.to_string()));
    let bed = Bed::open(setting, vec!["scheduler", "log-writer"], 0).await?;
    let site = &bed.site;
    site.journal.say(format!("publishing the records of {} runs", config.runs));
    let oldest = site.journal.clock().now() - milliseconds(config.runs)?;
    publish(&bed, config, oldest).await?;
    site.journal.say("starting the log writer");
    let (begun, used) = (Instant::now(), bed.used().await);
    site.begin().await?;
    let store = site.store().await?;
    let (mut first, mut count, mut moved) = (None, 0, begun);
    while count < config.runs {
        sleep(LOOK).await;
        let mut now = 0;
        for state in ENDS {
            now += store.count(state).await?;
        }
        if now > count {
            (count, moved) = (now, Instant::now());
            first.get_or_insert((count, moved));
        }
        ensure!(moved.elapsed() < PATIENCE, "only {count} of {} runs were written", config.runs);
    }
    // All at the first look: from the start, then.
    let (some, from) = first.filter(|(some, _)| *some < config.runs).unwrap_or((0, begun));
    let seconds = (moved - from).as_secs_f64();
    let rate = (config.runs - some) as f64 / seconds;
    let rows = rows_of_a_run(&store, config.runs).await?;
    report.add("runs written", rate, "/s");
    report.add("rows written", rate * rows, "/s");
    report.add("rows a run: itself, its attempt, the alert when it failed", rows, "");
    bed.used().await.since(&used).report_per_run(config.runs, &mut report);
    report.add("failed runs", store.count(RunState::Failed).await? as f64, "");
    site.journal.say("asking");
    for (name, filter) in questions(config.runs, oldest)? {
        let each = ask(&store, &filter).await?;
        report.add(name, each.as_secs_f64() * 1000.0, "ms");
    }
    store.close().await;
    Ok(report)
}

/// How many rows one run leaves, by what is stored of the newest that succeeded and that failed.
async fn rows_of_a_run(store: &Store, runs: u64) -> Result<f64> {
    let mut rows = 0.0;
    for state in ENDS {
        let filter = RunFilter { states: vec![state], limit: Some(1), ..RunFilter::default() };
        let Some(newest) = store.runs(&filter).await?.items.pop() else { continue };
        let Some(run) = store.run(newest.run).await? else { continue };
        let each = 1 + run.attempt_rows.len() + run.alerts.len();
        rows += each as f64 * store.count(state).await? as f64;
    }
    Ok(rows / runs as f64)
}

fn milliseconds(count: u64) -> Result<TimeDelta> {
    Ok(TimeDelta::milliseconds(i64::try_from(count)?))
}

/// The runs are a millisecond after each other, the first at `from`.
async fn publish(bed: &Bed, Config { runs, apart }: Config, from: DateTime<Utc>) -> Result<()> {
    let (publisher, names) = (bed.site.buckets.publisher(), bed.site.nats.names());
    let app = App::new(APP)?;
    let lines = |first: u64, line: fn(&Run) -> Value| {
        let of = |number| anyhow::Ok(line(&Run::new(number, JOBS, from)?).to_string());
        let lines: Result<Vec<_>> = (first..(first + JOINED).min(runs)).map(of).collect();
        anyhow::Ok(lines?.join("\n"))
    };
    let behind = apart.next_multiple_of(JOINED);
    let publish = async |subject: String, first: u64, line: fn(&Run) -> Value| {
        if first < runs {
            publisher.publish(Draft::new(subject, lines(first, line)?)).await?;
        }
        anyhow::Ok(())
    };
    let message = async |first: u64| {
        let results = async {
            let Some(first) = first.checked_sub(behind) else { return Ok(()) };
            publish(names.result(&app), first, Run::result).await
        };
        tokio::try_join!(publish(names.fired(&app), first, Run::fired), results).map(drop)
    };
    let firsts = (0..runs + behind).step_by(usize::try_from(JOINED)?);
    futures::stream::iter(firsts).map(message).buffer_unordered(AT_ONCE).try_collect().await
}

/// What people ask of a history. All that is asked for is there: of the job `bench-0` the first run
/// fails.
fn questions(runs: u64, from: DateTime<Utc>) -> Result<Vec<(&'static str, RunFilter)>> {
    let all = RunFilter::default;
    let (job, app) = (Some(JobId::new("bench-0")?), Some(App::new(APP)?));
    let states = vec![RunState::Failed, RunState::TimedOut, RunState::Lost];
    let (since, until) = (from + milliseconds(runs * 4 / 10)?, from + milliseconds(runs * 6 / 10)?);
    let after = Some(Run::new(runs / 2, JOBS, from)?.id);
    let times = RunFilter { since: Some(since), until: Some(until), ..all() };
    Ok(vec![
        ("the newest 50 runs", all()),
        ("the newest 50 of a job", RunFilter { job: job.clone(), ..all() }),
        ("the newest 50 of an app", RunFilter { app: app.clone(), ..all() }),
        ("the newest 50 of an app between two times", RunFilter { app, ..times }),
        ("the 50 after the middle of all", RunFilter { after, ..all() }),
        ("those that failed", RunFilter { states: states.clone(), ..all() }),
        ("those of a job that failed", RunFilter { job, states, ..all() }),
    ])
}

async fn ask(store: &Store, filter: &RunFilter) -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..ASKED {
        store.runs(filter).await?;
    }
    Ok(begun.elapsed() / ASKED)
}
