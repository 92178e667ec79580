//! How late handlers start when a scheduler goes away under load, and whether any start is missing
//! or too many.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use taskparty_nats::topology::TopologyConfig;
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::counts::{Follow, Start};
use crate::jobs::{self, offset};
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

/// What goes with each.
const ROLES: &str = "scheduler,log-writer,api";

/// Measures.
///
/// # Errors
/// When something does not start.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let mut report = Report::new("failover", setting.words_and_history()?);
    let way = match config.way {
        Way::Kill => "kill -9",
        Way::Stop => "SIGTERM",
    };
    report.on.push(("how a scheduler goes", way.into()));
    report.on.push(("nodes", format!("{SCHEDULERS}, each with the roles {ROLES}")));
    let lease = TopologyConfig::default().lease.as_secs();
    report.on.push(("lease of a dispatch", format!("{lease} s")));
    report.on.push(("rounds", config.rounds.to_string()));
    report.on.push(("due each second", config.due.to_string()));
    let bed = Bed::open(setting, vec![ROLES; SCHEDULERS], 1).await?;
    let site = &bed.site;
    site.begin().await?;
    let now = site.journal.clock().now();
    let from = now + TimeDelta::seconds(3);
    jobs::store(site, jobs::each_second(config.due, from), now).await?;
    let mut follow = Follow::new(&site.starts);
    let mut starts = Vec::new();
    let mut first_went = None;
    for round in 0..config.rounds {
        sleep(BEFORE).await;
        // Not always at the same place between two fires.
        sleep(Duration::from_millis(round as u64 * 137 % 1_000)).await;
        let seats: Vec<_> = site.schedulers().collect();
        let seat = seats[round % SCHEDULERS];
        let went = site.journal.clock().now();
        first_went.get_or_insert(went);
        match config.way {
            Way::Kill => seat.kill().await,
            Way::Stop => seat.stop(Duration::from_secs(30)).await?,
        }
        sleep(AFTER).await;
        starts.extend(follow.more()?);
        let late = lateness(&starts, went);
        site.journal.say(format!(
            "round {}: {} went; so far p50 {} ms, p99 {} ms, max {} ms",
            round + 1,
            seat.name,
            percentile(&late, 50.0) / 1000,
            percentile(&late, 99.0) / 1000,
            late.last().copied().unwrap_or_default() / 1000,
        ));
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
    // Only now: what was still missing when its round was over is the latest of all.
    let late = lateness(&starts, first_went.unwrap_or(from));
    let largest = late.last().copied().unwrap_or_default();
    report.add("largest lateness", largest as f64 / 1000.0, "ms");
    report.add("lost", lost as f64, "");
    report.add("twice", twice as f64, "");
    report.add("handler starts", starts.len() as f64, "");
    Ok(report)
}

/// How late the starts were that a scheduler's end at `went` can have held up, in microseconds,
/// sorted.
fn lateness(starts: &[Start], went: DateTime<Utc>) -> Vec<i64> {
    let around = |start: &&Start| start.due_ms >= went.timestamp_millis() - 1_000;
    let mut late: Vec<i64> = starts.iter().filter(around).map(|start| start.late_us).collect();
    late.sort_unstable();
    late
}

/// How many starts are missing, and how many are too many, of what was due from `from` to `to`. By
/// job and instant: one job's double does not stand for what another has lost.
fn compare(starts: &[Start], due: usize, from: DateTime<Utc>, to: DateTime<Utc>) -> (u64, u64) {
    let mut found: HashMap<(u32, i64), u64> = HashMap::new();
    for start in starts {
        *found.entry((start.job, start.due_ms)).or_default() += 1;
    }
    let (mut lost, mut twice) = (0, 0);
    for (number, job) in (0..due).zip(0..) {
        let mut instant = from + offset(number, due);
        while instant < to {
            match found.get(&(job, instant.timestamp_millis())) {
                None => lost += 1,
                Some(count) => twice += count - 1,
            }
            instant += TimeDelta::seconds(1);
        }
    }
    (lost, twice)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn start(job: u32, ms: i64) -> Start {
        Start { due_ms: from().timestamp_millis() + ms, late_us: 0, job }
    }

    #[test]
    fn what_is_missing_and_what_is_too_many_is_counted() {
        let (from, to) = (from(), from() + TimeDelta::seconds(2));
        let all = [start(0, 0), start(1, 500), start(0, 1000), start(1, 1500)];
        assert_eq!(compare(&all, 2, from, to), (0, 0));
        assert_eq!(compare(&all[1..], 2, from, to), (1, 0));
        assert_eq!(compare(&[&all[..], &all[2..3]].concat(), 2, from, to), (0, 1));
        assert_eq!(compare(&all, 4, from, to), (6, 0));
    }

    #[test]
    fn a_double_does_not_hide_what_another_job_has_lost_at_the_same_millisecond() {
        let (from, to) = (from(), from() + TimeDelta::seconds(1));
        let mut all: Vec<Start> =
            (0..2_000).zip(0..).map(|(job, number)| start(job, number / 2)).collect();
        assert_eq!(compare(&all, 2_000, from, to), (0, 0));
        all[7] = all[6];
        assert_eq!(compare(&all, 2_000, from, to), (1, 1));
    }

    #[test]
    fn what_starts_long_after_its_round_is_among_the_late() {
        let late = Start { late_us: 30_000_000, ..start(0, 500) };
        let before = Start { late_us: 90_000_000, ..start(0, -2_000) };
        let found = lateness(&[late, start(0, 20_000), before], from());
        assert_eq!(found, [0, 30_000_000]);
    }
}
