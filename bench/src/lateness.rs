//! How late handlers start: at a steady rate beside many idle jobs, and when all are due at once.

use std::time::Duration;

use anyhow::{Result, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::counts::{Follow, Start};
use crate::jobs;
use crate::report::{Report, percentile};

/// What `bench lateness` measures.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Jobs that are due each second.
    pub due: usize,
    /// Jobs that are not.
    pub idle: usize,
    /// For how long.
    pub length: Duration,
    /// How many executors there are.
    pub executors: usize,
}

impl Default for Config {
    fn default() -> Self {
        Self { due: 1_000, idle: 100_000, length: Duration::from_secs(30), executors: 1 }
    }
}

/// What `bench herd` measures.
#[derive(Debug, Clone, Copy)]
pub struct Herd {
    /// Jobs that are due at the same instant.
    pub jobs: usize,
    /// How many executors there are.
    pub executors: usize,
}

impl Default for Herd {
    fn default() -> Self {
        Self { jobs: 10_000, executors: 1 }
    }
}

/// How long a job may take to be saved.
const EACH_JOB: Duration = Duration::from_micros(200);

/// Fires right after the start are let pass: connections, caches.
const WARM_UP: TimeDelta = TimeDelta::seconds(5);

/// And so long for each idle job: the other node still reads them.
const WARM_UP_EACH: TimeDelta = TimeDelta::microseconds(10);

/// After this long with nothing more it is given up.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often the files of the executors are looked at.
const LOOK: Duration = Duration::from_millis(250);

/// The nodes: the roles that are measured, and history beside them.
const NODES: [&str; 2] = ["scheduler", "log-writer,api"];

/// Handler start minus nominal instant, at a steady rate.
///
/// # Errors
/// When something does not start, or handlers do not.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let mut report = Report::new("lateness", setting.words_and_history()?);
    report.on.push(("due each second", config.due.to_string()));
    report.on.push(("idle jobs", config.idle.to_string()));
    report.on.push(("seconds", config.length.as_secs().to_string()));
    let warm_up = WARM_UP + WARM_UP_EACH * i32::try_from(config.idle)?;
    let said = format!("{} s, of which nothing counts", warm_up.num_seconds());
    report.on.push(("warm-up before them", said));
    report.on.push(("executors", config.executors.to_string()));
    let bed = Bed::open(setting, NODES.to_vec(), config.executors).await?;
    let journal = &bed.site.journal;
    journal.say(format!("saving {} idle jobs", config.idle));
    let now = journal.clock().now();
    jobs::store(&bed.site, jobs::idle(config.idle, now), now).await?;
    journal.say("starting");
    bed.site.begin().await?;
    // The idle ones are known before the others are there.
    bed.wait_for_jobs(config.idle).await?;
    let now = journal.clock().now();
    let from = now + TimeDelta::seconds(3);
    jobs::store(&bed.site, jobs::each_second(config.due, from), now).await?;
    let begin = from.max(journal.clock().now()) + warm_up;
    let end = begin + TimeDelta::from_std(config.length)?;
    let mut follow = Follow::new(&bed.site.starts);
    let mut late = Vec::new();
    bed.wait_until(begin).await;
    let used = bed.used().await;
    let expected = config.due as u64 * config.length.as_secs();
    let between =
        |start: &Start| (begin.timestamp_millis()..end.timestamp_millis()).contains(&start.due_ms);
    let mut moved = Instant::now();
    let mut spent = None;
    while (late.len() as u64) < expected {
        sleep(LOOK).await;
        if spent.is_none() && journal.clock().now() >= end {
            spent = Some(bed.used().await.since(&used));
        }
        let more: Vec<Start> = follow.more()?.into_iter().filter(between).collect();
        if !more.is_empty() || journal.clock().now() < end {
            moved = Instant::now();
        }
        ensure!(moved.elapsed() < PATIENCE, "only {} of {expected} handlers started", late.len());
        late.extend(more.iter().map(|start| start.late_us));
    }
    add(&mut report, &mut late);
    let spent = match spent {
        Some(spent) => spent,
        None => bed.used().await.since(&used),
    };
    for (kind, time) in spent.each() {
        let share = time.as_secs_f64() / config.length.as_secs_f64() * 100.0;
        report.add(format!("processor, of one core: {kind}"), share, "%");
    }
    Ok(report)
}

/// First and last handler start of jobs that are all due at once.
///
/// # Errors
/// When something does not start, or handlers do not.
pub async fn herd(config: Herd, setting: &Setting) -> Result<Report> {
    let mut report = Report::new("herd", setting.words_and_history()?);
    report.on.push(("jobs due at once", config.jobs.to_string()));
    report.on.push(("executors", config.executors.to_string()));
    let bed = Bed::open(setting, NODES.to_vec(), config.executors).await?;
    let journal = &bed.site.journal;
    // The streams and the consumer of the handler are there before it counts.
    let now = journal.clock().now();
    jobs::store(&bed.site, jobs::each_second(1, now), now).await?;
    bed.site.begin().await?;
    let mut follow = Follow::new(&bed.site.starts);
    follow.wait().await?;
    let now = journal.clock().now();
    let room = EACH_JOB * u32::try_from(config.jobs)? + Duration::from_secs(5);
    let at = whole_second(now + TimeDelta::from_std(room)?);
    journal.say(format!("{} jobs are due at {at}", config.jobs));
    jobs::store(&bed.site, jobs::at_once(config.jobs, at), now).await?;
    ensure!(journal.clock().now() < at, "the jobs were not saved in time; try fewer");
    bed.wait_until(at).await;
    let mut late = Vec::new();
    let mut moved = Instant::now();
    // One that ticks each second is due in the same moment, and is not of the herd.
    while late.len() <= config.jobs {
        sleep(LOOK).await;
        let more = follow.more()?;
        let of_herd = more.iter().filter(|start| start.due_ms == at.timestamp_millis());
        let before = late.len();
        late.extend(of_herd.map(|start| start.late_us));
        if late.len() > before {
            moved = Instant::now();
        }
        if late.len() == config.jobs && moved.elapsed() > Duration::from_secs(1) {
            break;
        }
        ensure!(moved.elapsed() < PATIENCE, "only {} of {} started", late.len(), config.jobs);
    }
    late.sort_unstable();
    report.add("last start", ms(late.last().copied().unwrap_or_default()), "ms");
    report.add("first start", ms(late.first().copied().unwrap_or_default()), "ms");
    for share in [10.0, 50.0, 90.0, 99.0] {
        report.add(format!("p{share}"), ms(percentile(&late, share)), "ms");
    }
    Ok(report)
}

fn add(report: &mut Report, late_us: &mut [i64]) {
    late_us.sort_unstable();
    report.add("p99", ms(percentile(late_us, 99.0)), "ms");
    report.add("max", ms(late_us.last().copied().unwrap_or_default()), "ms");
    report.add("p50", ms(percentile(late_us, 50.0)), "ms");
    report.add("p99.9", ms(percentile(late_us, 99.9)), "ms");
    report.add("handler starts", late_us.len() as f64, "");
}

fn ms(micros: i64) -> f64 {
    micros as f64 / 1000.0
}

fn whole_second(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(at.timestamp() + 1, 0).unwrap_or(at)
}
