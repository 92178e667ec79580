//! One executor by itself: handlers a second, and what it costs at rest.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, TryStreamExt};
use taskparty_common::name::{App, Handler};
use taskparty_nats::publish::Draft;
use taskparty_nats::topology::{Topology, TopologyConfig};
use tokio::time::{Instant, sleep};

use crate::bed::{Bed, Setting};
use crate::counts::Follow;
use crate::executor::handler_name;
use crate::jobs::{APP, HANDLER};
use crate::report::Report;
use crate::wire::Run;

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many runs wait for it.
    pub runs: u64,
    /// How many handlers it has.
    pub handlers: u32,
    /// For how long the processor time at rest is counted.
    pub length: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self { runs: 100_000, handlers: 50, length: Duration::from_secs(20) }
    }
}

/// Messages that wait for their confirmation at once.
const AT_ONCE: usize = 1024;

/// How often it is looked how many have begun.
const LOOK: Duration = Duration::from_millis(100);

/// How long after the last start it is at rest.
const COOL_DOWN: Duration = Duration::from_secs(2);

/// After this long with nothing more it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Measures.
///
/// # Errors
/// When something does not start, or the executor stands still.
pub async fn measure(config: Config, setting: &Setting) -> Result<Report> {
    let mut report = Report::new("executor", setting.words()?);
    report.on.push(("runs", config.runs.to_string()));
    report.on.push(("handlers", config.handlers.to_string()));
    let mut setting = setting.clone();
    setting.programs.executor.1.extend(["--handlers".into(), config.handlers.to_string()]);
    let bed = Bed::open(&setting, Vec::new(), 1).await?;
    let site = &bed.site;
    let topology = Topology::new(site.nats.clone(), TopologyConfig::default());
    let (app, handler) = (App::new(APP)?, Handler::new(HANDLER)?);
    for number in 0..config.handlers {
        topology.ensure_handler(&app, &Handler::new(&handler_name(number))?).await?;
    }
    site.journal.say(format!("publishing {} dispatches", config.runs));
    let from = site.journal.clock().now();
    let (publisher, names) = (site.buckets.publisher(), site.nats.names());
    let one = async |number: u64| {
        let run = Run::new(number, 1_000, from)?;
        let subject = names.dispatch(&app, &handler, run.id, 0, 1);
        publisher.publish(Draft::new(subject, run.dispatch().to_string())).await?;
        anyhow::Ok(())
    };
    futures::stream::iter(0..config.runs)
        .map(one)
        .buffer_unordered(AT_ONCE)
        .try_collect::<()>()
        .await?;

    site.journal.say("starting the executor");
    let seat = site.executors.first().context("an executor")?;
    let mut follow = Follow::new(&site.starts);
    seat.start().await?;
    let begun = (Instant::now(), bed.used().await);
    let (mut first, mut count, mut moved) = (None, 0, begun.0);
    while count < config.runs {
        sleep(LOOK).await;
        let more = follow.more()?.len() as u64;
        if more > 0 {
            (count, moved) = (count + more, Instant::now());
            if first.is_none() {
                first = Some((count, (moved, bed.used().await)));
            }
        }
        ensure!(moved.elapsed() < PATIENCE, "only {count} of {} handlers started", config.runs);
    }
    // All at the first look: from the executor's start, then.
    let (some, (from, used)) = first.filter(|(some, _)| *some < config.runs).unwrap_or((0, begun));
    let spent = bed.used().await.since(&used);
    let seconds = (moved - from).as_secs_f64();
    let runs = (config.runs - some) as f64;
    report.add("handlers", runs / seconds, "/s");
    for (kind, time) in spent.each() {
        report.add(format!("processor a run: {kind}"), time.as_secs_f64() * 1e6 / runs, "us");
    }
    sleep(COOL_DOWN).await;
    for (kind, share) in bed.shares_of_a_core(config.length).await {
        report.add(format!("processor at rest, of one core: {kind}"), share, "%");
    }
    report.add("memory of the executor", bed.memory("executor").await as f64 / 1024.0, "MiB");
    Ok(report)
}
