//! How many runs a second, from their due time to their committed row, and how that compares with
//! the bare messages.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::TimeDelta;
use taskparty_common::outcome::RunState;
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting, Used};
use crate::counts::Follow;
use crate::report::Report;
use crate::{jobs, raw};

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many runs are counted, and as many raw ones.
    pub runs: u64,
    /// How many are due each second: more than can be done.
    pub due: usize,
    /// How many executors there are.
    pub executors: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { runs: 100_000, due: 20_000, executors: 1 }
    }
}

/// What part of as many runs passes before it counts: connections, caches, a first growth.
const WARM_UP: u64 = 5;

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(250);

/// After this long with nothing committed it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures.
///
/// # Errors
/// When something does not start, or stands still.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let (path, _folder) = setting.folder()?;
    let bare = raw::rate(config.runs, setting, &path).await?;
    let mut report = Report::new("throughput", setting.words());
    report.on.push(("runs", config.runs.to_string()));
    report.on.push(("due each second", config.due.to_string()));
    report.on.push(("executors", config.executors.to_string()));

    let nodes = vec!["scheduler", "log-writer", "api"];
    let bed = Bed::open(setting, nodes, config.executors).await?;
    let journal = &bed.site.journal;
    let now = journal.clock().now();
    jobs::store(&bed.site, jobs::each_second(config.due, now + TimeDelta::seconds(10)), now)
        .await?;
    bed.site.begin().await?;
    let store = bed.site.store().await?;
    let committed = async || store.count(RunState::Succeeded).await;
    let mut starts = Follow::new(&bed.site.starts);

    let (mut said, mut moved, mut last) = (Instant::now(), Instant::now(), 0);
    let mut warm: Option<Mark> = None;
    let mut starts_so_far = 0;
    loop {
        sleep(LOOK).await;
        let (count, at) = (committed().await?, Instant::now());
        starts_so_far += starts.more()?.len() as u64;
        if count > last {
            (last, moved) = (count, at);
        }
        ensure!(moved.elapsed() < PATIENCE, "only {count} runs, and no more for {PATIENCE:?}");
        if said.elapsed() > Duration::from_secs(5) {
            said = at;
            journal.say(format!("{count} runs committed, {starts_so_far} started"));
        }
        let is_end = warm.as_ref().is_some_and(|warm| count >= warm.runs + config.runs);
        if !is_end && (warm.is_some() || count < config.runs / WARM_UP) {
            continue;
        }
        let now = Mark { at, runs: count, starts: starts_so_far, used: bed.used().await };
        match warm {
            Some(warm) => {
                figures(&mut report, &warm, &now, bare);
                return Ok(report);
            }
            None => warm = Some(now),
        }
    }
}

/// How far it was at one moment.
struct Mark {
    at: Instant,
    runs: u64,
    starts: u64,
    used: Used,
}

/// What was done between two marks, beside the rate of the `bare` messages.
fn figures(report: &mut Report, from: &Mark, to: &Mark, bare: f64) {
    let seconds = (to.at - from.at).as_secs_f64();
    let runs = (to.runs - from.runs) as f64;
    let used = to.used.since(&from.used);
    report.add("of the bare messages", runs / seconds / bare, "");
    report.add("runs", runs / seconds, "/s");
    report.add("bare messages of as many runs", bare, "/s");
    report.add("handler starts", (to.starts - from.starts) as f64 / seconds, "/s");
    for (kind, time) in used.each() {
        let share = time.as_secs_f64() / used.total().as_secs_f64() * 100.0;
        report.add(format!("processor: {kind}"), share, "%");
    }
    for (kind, time) in used.each() {
        report.add(format!("processor a run: {kind}"), time.as_secs_f64() * 1e6 / runs, "us");
    }
}
