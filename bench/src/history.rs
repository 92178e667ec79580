//! The history: how fast the log writer fills it, and how fast it answers when it is full.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::TimeDelta;
use futures::{StreamExt, TryStreamExt};
use taskparty_common::name::{App, JobId};
use taskparty_common::outcome::RunState;
use taskparty_nats::publish::Draft;
use taskparty_scheduler::store::{RunFilter, Store};
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::jobs::APP;
use crate::report::Report;
use crate::wire::Run;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many runs are written, and then looked through.
    pub runs: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self { runs: 200_000 }
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
    let mut report = Report::new("store", setting.words());
    report.on.push(("runs", config.runs.to_string()));
    report.on.push(("runs a message", JOINED.to_string()));
    let bed = Bed::open(setting, vec!["scheduler", "log-writer"], 0).await?;
    let site = &bed.site;
    site.journal.say(format!("publishing the records of {} runs", config.runs));
    publish(&bed, config.runs).await?;
    site.journal.say("starting the log writer");
    let begun = Instant::now();
    site.begin().await?;
    let store = site.store().await?;
    let (mut first, mut count, mut moved) = (None, 0, begun);
    while count < config.runs {
        sleep(LOOK).await;
        let now = store.count(RunState::Succeeded).await?;
        if now > count {
            (count, moved) = (now, Instant::now());
            first.get_or_insert((count, moved));
        }
        ensure!(moved.elapsed() < PATIENCE, "only {count} of {} runs were written", config.runs);
    }
    // All at the first look: from the start, then.
    let (some, from) = first.filter(|(some, _)| *some < config.runs).unwrap_or((0, begun));
    let seconds = (moved - from).as_secs_f64();
    report.add("runs written", (config.runs - some) as f64 / seconds, "/s");
    site.journal.say("asking");
    for (name, filter) in questions()? {
        let each = ask(&store, &filter).await?;
        report.add(name, each.as_secs_f64() * 1000.0, "ms");
    }
    store.close().await;
    Ok(report)
}

async fn publish(bed: &Bed, runs: u64) -> Result<()> {
    let (publisher, names) = (bed.site.buckets.publisher(), bed.site.nats.names());
    let app = App::new(APP)?;
    let from = bed.site.journal.clock().now() - TimeDelta::milliseconds(i64::try_from(runs)?);
    let message = async |first: u64| {
        let (mut fired, mut results) = (String::new(), String::new());
        for number in first..(first + JOINED).min(runs) {
            let run = Run::new(number, JOBS, from)?;
            fired += &format!("{}\n", run.fired());
            results += &format!("{}\n", run.result());
        }
        publisher.publish(Draft::new(names.fired(&app), fired.trim_end().to_owned())).await?;
        publisher.publish(Draft::new(names.result(&app), results.trim_end().to_owned())).await?;
        anyhow::Ok(())
    };
    let firsts = (0..runs).step_by(usize::try_from(JOINED)?);
    futures::stream::iter(firsts).map(message).buffer_unordered(AT_ONCE).try_collect().await
}

/// What people ask of a history.
fn questions() -> Result<[(&'static str, RunFilter); 4]> {
    let job = Some(JobId::new("bench-7")?);
    let states = vec![RunState::Failed, RunState::TimedOut, RunState::Lost];
    Ok([
        ("the newest 50 runs", RunFilter::default()),
        ("the newest 50 of a job", RunFilter { job: job.clone(), ..RunFilter::default() }),
        ("those that failed", RunFilter { states: states.clone(), ..RunFilter::default() }),
        ("those of a job that failed", RunFilter { job, states, ..RunFilter::default() }),
    ])
}

async fn ask(store: &Store, filter: &RunFilter) -> Result<Duration> {
    let begun = Instant::now();
    for _ in 0..ASKED {
        store.runs(filter).await?;
    }
    Ok(begun.elapsed() / ASKED)
}
