//! How late handlers start when a scheduler goes away under load, and whether any start is missing
//! or too many.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::counts::{Follow, Start};
use crate::jobs;
use crate::report::{Report, percentile};

/// How the scheduler goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// kill -9.
    Kill,
    /// SIGTERM.
    Stop,
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How the scheduler goes.
    pub way: Way,
    /// How often.
    pub rounds: usize,
    /// Jobs, each due once a second.
    pub due: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { way: Way::Kill, rounds: 6, due: 200 }
    }
}

/// How long all schedulers run before the next one goes.
const BEFORE: Duration = Duration::from_secs(4);

/// How long after the end starts count as late because of it.
const AFTER: Duration = Duration::from_secs(9);

/// After this long what has not started is missing.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many schedulers there are; one goes at a time.
const SCHEDULERS: usize = 3;

/// Measures.
///
/// # Errors
/// When something does not start.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let mut report = Report::new("failover", setting.words());
    let way = match config.way {
        Way::Kill => "kill -9",
        Way::Stop => "SIGTERM",
    };
    report.on.push(("how a scheduler goes", way.into()));
    report.on.push(("schedulers", SCHEDULERS.to_string()));
    report.on.push(("rounds", config.rounds.to_string()));
    report.on.push(("due each second", config.due.to_string()));
    let bed = Bed::open(setting, vec!["scheduler,log-writer,api"; SCHEDULERS], 1).await?;
    let site = &bed.site;
    site.begin().await?;
    let now = site.journal.clock().now();
    let from = now + TimeDelta::seconds(3);
    jobs::store(site, jobs::each_second(config.due, from), now).await?;
    let mut follow = Follow::new(&site.starts);
    let mut starts = Vec::new();
    let mut worst = Vec::new();
    for round in 0..config.rounds {
        sleep(BEFORE).await;
        // Not always at the same place between two fires.
        sleep(Duration::from_millis(round as u64 * 137 % 1_000)).await;
        let seats: Vec<_> = site.schedulers().collect();
        let seat = seats[round % SCHEDULERS];
        let went = site.journal.clock().now();
        match config.way {
            Way::Kill => seat.kill().await,
            Way::Stop => seat.stop(Duration::from_secs(30)).await?,
        }
        sleep(AFTER).await;
        starts.extend(follow.more()?);
        let around = |start: &&Start| start.due_ms >= went.timestamp_millis() - 1_000;
        let mut late: Vec<i64> = starts.iter().filter(around).map(|start| start.late_us).collect();
        late.sort_unstable();
        let max = late.last().copied().unwrap_or_default();
        site.journal.say(format!(
            "round {}: {} went; p50 {} ms, p99 {} ms, max {} ms",
            round + 1,
            seat.name,
            percentile(&late, 50.0) / 1000,
            percentile(&late, 99.0) / 1000,
            max / 1000,
        ));
        worst.push(max);
        seat.start().await?;
        site.members(SCHEDULERS).await?;
    }
    // What is due until now must have started a while later.
    let to = site.journal.clock().now();
    let begun = Instant::now();
    let (mut lost, mut twice) = (0, 0);
    while begun.elapsed() < PATIENCE {
        sleep(Duration::from_secs(1)).await;
        starts.extend(follow.more()?);
        (lost, twice) = compare(&starts, config.due, from, to);
        if lost == 0 {
            break;
        }
    }
    ensure!(!starts.is_empty(), "no handler started");
    bed.wait_for_jobs(config.due).await?;
    report.add("largest lateness", worst.iter().max().copied().unwrap_or(0) as f64 / 1000.0, "ms");
    report.add("lost", lost as f64, "");
    report.add("twice", twice as f64, "");
    report.add("handler starts", starts.len() as f64, "");
    Ok(report)
}

/// How many starts are missing, and how many are too many, of what was due from `from` to `to`.
fn compare(starts: &[Start], due: usize, from: DateTime<Utc>, to: DateTime<Utc>) -> (u64, u64) {
    // Several jobs share a millisecond when there are more than a thousand.
    let mut at: BTreeMap<i64, u64> = BTreeMap::new();
    for number in 0..due {
        *at.entry(i64::try_from(number * 1000 / due).unwrap_or_default()).or_default() += 1;
    }
    let mut found: BTreeMap<i64, u64> = BTreeMap::new();
    for start in starts {
        *found.entry(start.due_ms).or_default() += 1;
    }
    let (from, to) = (from.timestamp_millis(), to.timestamp_millis());
    let (mut lost, mut twice) = (0, 0);
    for second in (from..to).step_by(1000) {
        for (offset, expected) in &at {
            let instant = second + offset;
            if instant < to {
                let found = found.get(&instant).copied().unwrap_or_default();
                lost += expected.saturating_sub(found);
                twice += found.saturating_sub(*expected);
            }
        }
    }
    (lost, twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_and_what_is_too_many_is_counted() {
        let from = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let start = |ms: i64| Start { due_ms: from.timestamp_millis() + ms, late_us: 0 };
        let all: Vec<Start> = [0, 500, 1000, 1500].map(start).to_vec();
        let to = from + TimeDelta::seconds(2);
        assert_eq!(compare(&all, 2, from, to), (0, 0));
        assert_eq!(compare(&all[1..], 2, from, to), (1, 0));
        assert_eq!(compare(&[&all[..], &all[2..3]].concat(), 2, from, to), (0, 1));
        assert_eq!(compare(&all, 4, from, to), (4, 0));
    }
}
