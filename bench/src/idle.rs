//! What many stored jobs cost while none of them is due: memory, the start, processor time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::counts::{Follow, Start};
use crate::jobs;
use crate::report::Report;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many jobs there are.
    pub jobs: usize,
    /// For how long the processor time is counted.
    pub length: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { jobs: 1_000_000, length: Duration::from_secs(30) }
    }
}

/// How long the first fire may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Measures.
///
/// # Errors
/// When something does not start.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let mut report = Report::new("idle", setting.words_and_history()?);
    report.on.push(("jobs", config.jobs.to_string()));
    let bed = Bed::open(setting, vec!["scheduler", "log-writer,api"], 1).await?;
    let site = &bed.site;
    let now = site.journal.clock().now();
    // One that is due each second shows when the scheduler fires.
    jobs::store(site, jobs::each_second(1, now), now).await?;
    site.begin().await?;
    let mut follow = Follow::new(&site.starts);
    follow.wait().await?;
    let empty = bed.memory("scheduler").await;
    let seat = site.schedulers().next().context("a scheduler")?;
    seat.stop(Duration::from_secs(30)).await?;

    site.journal.say(format!("saving {} jobs", config.jobs));
    jobs::store(site, jobs::idle(config.jobs, now), now).await?;
    follow.more()?;
    site.journal.say("starting");
    let started = site.journal.clock().now();
    let begun = Instant::now();
    seat.start().await?;
    let first = loop {
        let fresh = |start: &Start| start.due_ms > started.timestamp_millis();
        if let Some(first) = follow.more()?.into_iter().find(fresh) {
            break first;
        }
        ensure!(begun.elapsed() < PATIENCE, "nothing fired within {PATIENCE:?}");
        sleep(Duration::from_millis(20)).await;
    };
    let at = first.at_us() - started.timestamp_micros();
    report.add("start until the first fire", at as f64 / 1e6, "s");
    bed.wait_for_jobs(config.jobs).await?;
    report.add("until all jobs are known", begun.elapsed().as_secs_f64(), "s");
    let tick = serde_json::json!({ "id": "tick-0" });
    site.pause(&[tick]).await?;
    sleep(Duration::from_secs(2)).await;
    let full = bed.memory("scheduler").await;
    let each = (full.saturating_sub(empty) * 1024) as f64 / config.jobs as f64;
    report.add("memory a job, in the scheduler", each, "B");
    report.add("memory of the scheduler", full as f64 / 1024.0, "MiB");
    report.add("memory of the scheduler without jobs", empty as f64 / 1024.0, "MiB");
    for (kind, share) in bed.shares_of_a_core(config.length).await {
        report.add(format!("processor, of one core: {kind}"), share, "%");
    }
    Ok(report)
}
