//! How many runs a second, from their due time to their committed row, and how that compares with
//! the bare messages.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::TimeDelta;
use taskparty_common::outcome::RunState;
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::counts::{Follow, Start};
use crate::report::Report;
use crate::{jobs, raw};

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many runs, and as many raw ones. Rounded up to whole seconds of what is due.
    pub runs: u64,
    /// How many are due each second; None: four fifths of what the bare messages did before. What
    /// cannot be done in its second waits, and counts all the same.
    pub due: Option<usize>,
    /// How many executors there are.
    pub executors: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { runs: 100_000, due: None, executors: 1 }
    }
}

/// How long until the first is due: so long, and for each job so much.
const LEAD: Duration = Duration::from_secs(8);
const LEAD_EACH: Duration = Duration::from_micros(200);

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_millis(100);

/// After this long with nothing committed it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures, from the first due instant to the last committed row, as the bare messages are from
/// the first lock to the last ack: what waits anywhere in between counts. Half of the bare messages go
/// before and half after: a machine is faster and slower from one minute to the next.
///
/// # Errors
/// When something does not start, or stands still.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let (path, _folder) = setting.folder()?;
    let half = config.runs.div_ceil(2);
    let before = raw::rate(half, setting, &path).await?;
    let due = config.due.unwrap_or((before * 0.8) as usize).max(1);
    let seconds = config.runs.div_ceil(due as u64);
    let runs = seconds * due as u64;
    let mut report = Report::new("throughput", setting.words_and_history()?);
    report.on.push(("runs", runs.to_string()));
    report.on.push(("due each second", due.to_string()));
    report.on.push(("executors", config.executors.to_string()));

    let nodes = vec!["scheduler", "log-writer", "api"];
    let bed = Bed::open(setting, nodes, config.executors).await?;
    let journal = &bed.site.journal;
    let now = journal.clock().now();
    let lead = LEAD + LEAD_EACH * u32::try_from(due)?;
    let from = now + TimeDelta::from_std(lead)?;
    jobs::store(&bed.site, jobs::for_seconds(due, from, seconds), now).await?;
    bed.site.begin().await?;
    bed.wait_for_jobs(due).await?;
    let store = bed.site.store().await?;
    let mut starts = Follow::new(&bed.site.starts);
    let mut last_start_us = 0;
    ensure!(journal.clock().now() < from, "the jobs were not known in time; try fewer a second");
    bed.wait_until(from).await;
    let used = bed.used().await;

    let (mut said, mut moved, mut count) = (Instant::now(), Instant::now(), 0);
    while count < runs {
        sleep(LOOK).await;
        let now = store.count(RunState::Succeeded).await?;
        if now > count {
            (count, moved) = (now, Instant::now());
        }
        let more = starts.more()?;
        last_start_us = more.iter().map(Start::at_us).fold(last_start_us, i64::max);
        ensure!(moved.elapsed() < PATIENCE, "only {count} runs, and no more for {PATIENCE:?}");
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            journal.say(format!("{count} runs committed"));
        }
    }
    let took = (journal.clock().now() - from).as_seconds_f64();
    let used = bed.used().await.since(&used);
    drop(bed);
    let after = raw::rate(half, setting, &path).await?;
    // As many messages each: their times add up.
    let bare = 2.0 / (1.0 / before + 1.0 / after);
    let started = (last_start_us - from.timestamp_micros()) as f64 / 1e6;
    report.add("of the bare messages", runs as f64 / took / bare, "");
    report.add("runs", runs as f64 / took, "/s");
    report.add("bare messages of as many runs", bare, "/s");
    report.add("those before", before, "/s");
    report.add("those after", after, "/s");
    report.add("handler starts", runs as f64 / started, "/s");
    for (kind, time) in used.each() {
        let share = time.as_secs_f64() / used.total().as_secs_f64() * 100.0;
        report.add(format!("processor: {kind}"), share, "%");
    }
    used.report_per_run(runs, &mut report);
    Ok(report)
}
