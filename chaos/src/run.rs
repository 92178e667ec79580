//! The run: load, faults, healing, quiet, audit.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;
use taskparty_common::fire::Fired;
use taskparty_lab::facts;
use taskparty_lab::journal::{Journal, Voice};
use taskparty_lab::process::tail;
use taskparty_lab::servers;
use taskparty_lab::site::{Parts, Programs, Site, Starts, Ways, wait};
use taskparty_scheduler::audit::{AuditConfig, Report};
use taskparty_scheduler::store::Store;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::inflict::{Done, follow, heal};
use crate::load;
use crate::plan::{Crowd, lanes};
use crate::quiet::quiet;
use crate::triggers::{self, Promised};

/// The lease of a dispatch: short, so that much happens.
pub(crate) const LEASE: Duration = Duration::from_secs(5);

/// What nodes log.
pub(crate) const LOG: &str = "info,async_nats=warn";

/// How long what is left may take when all is healed: catching up, leases, retries.
const QUIET: Duration = Duration::from_secs(240);

/// How long after the faults every job must have fired again.
const AGAIN: Duration = Duration::from_secs(120);

/// How long something may still be under way when all is quiet.
const SETTLE: Duration = Duration::from_secs(3);

/// How long before the end of the faults a lock can have been taken that has no record yet.
const LOCKED: TimeDelta = TimeDelta::seconds(120);

/// Violations that are put into words.
const MOST: usize = 100_000;

const SCHEDULERS: usize = 3;
const EXECUTORS: usize = 4;
const NODES: usize = 3;

/// What is to be done.
#[derive(Debug, Clone)]
pub struct Config {
    /// Which faults.
    pub seed: u64,
    /// For how long.
    pub length: Duration,
    /// Fires a second.
    pub rate: f64,
}

/// What came of it.
#[derive(Debug)]
pub struct Verdict {
    /// The audit's report.
    pub report: Report,
    /// What else is wrong, a sentence each.
    pub wrong: Vec<String>,
    /// How many faults there were.
    pub faults: usize,
}

impl Verdict {
    /// Whether no promise was broken.
    pub fn is_clean(&self) -> bool {
        self.report.violations_total == 0 && self.wrong.is_empty()
    }
}

/// Does it all. Logs stay in `dir`.
///
/// # Errors
/// When something does not start, or does not come to rest: that is a failure of the run too.
pub async fn run(config: &Config, programs: &Programs, dir: &Path) -> Result<Verdict> {
    let journal = Journal::open(dir, Voice::Out)?;
    journal.say(format!("seed {}", config.seed));
    let parts = Parts {
        nats: servers::Kind::Cluster.into(),
        nodes: vec!["scheduler,log-writer,api"; SCHEDULERS],
        lease: LEASE,
        log: LOG,
        executors: EXECUTORS,
        starts: Starts::Written,
        ways: Ways::Proxied,
    };
    let site = Arc::new(Site::start(&parts, programs, dir, &journal).await?);
    let jobs = load::jobs(config.rate);
    let from = journal.clock().now();
    site.apply(&jobs).await.context("saving the jobs")?;
    journal.say(format!("{} jobs, about {} fires a second", jobs.len(), config.rate));
    let (Done { faults, forgot }, ended, promised) = storm(&site, config).await;
    let verdict = calm(&site, &jobs, from, &promised, forgot).await;
    // Whatever is wrong is looked for in the logs of the nodes too.
    for node in 0..NODES {
        site.servers.lock().await.keep_log(node, dir)?;
    }
    let (report, mut wrong) = verdict?;
    wrong.extend(promised.wrong);
    if let Err(error) = site.stop().await {
        wrong.push(format!("{error:#}"));
    }
    wrong.extend(panics(&site));
    journal.say(format!("{faults} faults; processes that ended by themselves: {ended}"));
    Ok(Verdict { report, wrong, faults })
}

/// Load and faults, for as long as the plan says. Gives what was done, the number of processes that
/// ended by themselves, and what was promised.
async fn storm(site: &Arc<Site>, config: &Config) -> (Done, u64, Promised) {
    let crowd = Crowd { schedulers: SCHEDULERS, executors: EXECUTORS, nodes: NODES };
    let (stop, over) = (CancellationToken::new(), CancellationToken::new());
    let mut following = JoinSet::new();
    for lane in lanes(config.seed, config.length, crowd) {
        following.spawn(follow(site.clone(), lane, stop.clone()));
    }
    let mut watching = JoinSet::new();
    for number in 0..SCHEDULERS + EXECUTORS {
        let (site, over) = (site.clone(), over.clone());
        watching.spawn(async move {
            let seat = site.seats().nth(number);
            match seat {
                Some(seat) => seat.supervise(&site.journal, &over).await,
                None => 0,
            }
        });
    }
    let triggering = tokio::spawn(triggers::run(site.clone(), config.seed, stop.clone()));
    let telling = tokio::spawn(tell(site.clone(), over.clone()));
    tokio::time::sleep(config.length).await;
    stop.cancel();
    let mut done = Done::default();
    for of_lane in following.join_all().await {
        done.faults += of_lane.faults;
        done.forgot.extend(of_lane.forgot);
    }
    site.journal.say("the faults are over");
    let promised = triggering.await.unwrap_or_default();
    if let Err(error) = heal(site).await {
        site.journal.say(format!("healing: {error:#}"));
    }
    over.cancel();
    let ended = watching.join_all().await.into_iter().sum();
    let _ = telling.await;
    (done, ended, promised)
}

/// After the faults: everything goes on, comes to rest, and is audited.
async fn calm(
    site: &Site,
    jobs: &[Value],
    from: DateTime<Utc>,
    promised: &Promised,
    forgot: Vec<DateTime<Utc>>,
) -> Result<(Report, Vec<String>)> {
    let journal = &site.journal;
    let healed = journal.clock().now();
    site.members(SCHEDULERS).await?;
    let mut wrong = Vec::new();
    let mut silent: BTreeSet<&str> = jobs
        .iter()
        .filter(|job| !job["schedule"].is_null())
        .filter_map(|job| job["id"].as_str())
        .collect();
    let again = wait("a fire of each job after the faults", AGAIN, async || {
        for fired in facts::fired(site, healed).await.ok()? {
            if fired.fire_time > healed && fired.plan.attempt == 1 {
                silent.remove(fired.job.as_str());
            }
        }
        silent.is_empty().then_some(())
    });
    if let Err(error) = again.await {
        wrong.push(format!("{error}: {silent:?} did not"));
    }
    journal.say("the jobs have fired again; now all are paused");
    let to = journal.clock().now();
    site.pause(jobs).await.context("pausing the jobs")?;
    let store = site.store().await?;
    // What a killed scheduler had locked and must not run late is left out after a while.
    let recorded = wait("a fired record of each lock", AGAIN, async || {
        facts::half_done(site, healed - LOCKED).await.ok()?.is_empty().then_some(())
    });
    if let Err(error) = recorded.await {
        wrong.push(format!("{error:#}"));
    }
    match quiet(site, &store, QUIET).await {
        Ok(()) => journal.say("all is quiet"),
        Err(error) => wrong.push(format!("{error:#}")),
    }
    tokio::time::sleep(SETTLE).await;
    wrong.extend(kept(&store, promised).await?);
    let config = AuditConfig {
        settle: SETTLE,
        lease: LEASE,
        most: MOST,
        starts: site.starts.clone(),
        forgot,
        ..AuditConfig::new(from, to)
    };
    let report = taskparty_scheduler::audit::run(&site.buckets, &store, config).await?;
    let open = report.judged.runs - report.judged.runs_ended;
    if open > 0 {
        wrong.push(format!("{open} runs had not ended when they were judged"));
    }
    Ok((report, wrong))
}

/// Whether each run that was promised has come to its end.
async fn kept(store: &Store, promised: &Promised) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for (run, key) in &promised.runs {
        match store.run(*run).await? {
            None => wrong.push(format!("{key} was promised the run {run}, and there is none")),
            Some(found) if !found.run.state.is_terminal() => {
                wrong.push(format!("{key}: its run {run} is {}", found.run.state));
            }
            Some(_) => {}
        }
    }
    Ok(wrong)
}

/// A panic is wrong, whatever came of it.
fn panics(site: &Site) -> Vec<String> {
    let said = |seat: &taskparty_lab::seat::Seat| {
        let log = std::fs::read_to_string(&seat.spec.log).unwrap_or_default();
        let panic = log.lines().find(|line| line.contains("panicked at"))?;
        Some(format!("{}: {panic}", seat.name))
    };
    site.seats().filter_map(said).collect()
}

/// Says each few seconds how it goes.
async fn tell(site: Arc<Site>, over: CancellationToken) {
    let mut before = 0;
    let every = Duration::from_secs(5);
    while over.run_until_cancelled(tokio::time::sleep(every)).await.is_some() {
        let starts: u64 = site.starts.iter().map(|path| facts::lines(path)).sum();
        let rate = (starts - before) / every.as_secs();
        before = starts;
        site.journal.say(format!("{starts} handlers were started, {rate} a second"));
    }
}

/// The report for people.
pub fn print(verdict: &Verdict, journal: &str) {
    let report = &verdict.report;
    println!("\nfaults: {}\njudged: {:?}", verdict.faults, report.judged);
    println!("notes: {:?}", report.notes_by_kind);
    println!("violations: {} {:?}", report.violations_total, report.by_kind);
    for violation in report.violations.iter().take(50) {
        println!("  {violation}");
    }
    for wrong in &verdict.wrong {
        println!("  {wrong}");
    }
    if verdict.is_clean() {
        println!("no instant was lost, no attempt was dispatched twice, every run has ended");
    } else {
        println!("logs, history and starts are in {journal}");
    }
}

/// The ends of the logs, for a test that failed.
pub fn tails(dir: &Path) -> String {
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let logs = files.filter(|path| path.extension().is_some_and(|ext| ext == "log"));
    let shown = logs.map(|path| format!("--- {}\n{}", path.display(), tail(&path, 15)));
    shown.collect::<Vec<_>>().join("\n")
}

/// How late the fires of `fired` were, in milliseconds: what was left out does not count.
pub fn lateness(fired: &[Fired]) -> Vec<i64> {
    let made = fired.iter().filter(|fired| fired.skipped.is_none());
    made.map(|fired| (fired.fired_at - fired.fire_time).num_milliseconds()).collect()
}
