//! Many runs that do nothing: whether each of them is there once, in the records, in the history and
//! at the executor, and whether the memory of each process stays as it is.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use taskparty_common::outcome::RunState;
use taskparty_lab::facts;
use taskparty_lab::journal::{Journal, Voice};
use taskparty_lab::process::memory;
use taskparty_lab::servers::Kind;
use taskparty_lab::site::{PATIENCE, Parts, Programs, Site, Starts, Ways, wait};
use taskparty_nats::server::Server;
use tokio::time::Instant;

use crate::memory::{Memory, Whose};
use crate::{load, run};

/// What is done.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many runs.
    pub runs: u64,
    /// How many a second.
    pub rate: usize,
}

/// What came of it.
#[derive(Debug)]
pub struct Soaked {
    /// Each process.
    pub memory: Vec<Memory>,
    /// For how long memory was sampled.
    pub length: Duration,
    /// Fires that were recorded.
    pub fires: u64,
    /// Handlers that were started.
    pub starts: u64,
    /// Runs of the history that succeeded.
    pub succeeded: u64,
}

impl Soaked {
    /// What is wrong, a sentence each; nothing: all is well.
    pub fn wrong(&self) -> Vec<String> {
        let (fires, starts, succeeded) = (self.fires, self.starts, self.succeeded);
        let mut wrong = Vec::new();
        if fires != starts || fires != succeeded {
            wrong.push(format!(
                "{fires} fires, {starts} handlers started, {succeeded} runs of the history \
                 succeeded: not each run is there once"
            ));
        }
        wrong.extend(self.memory.iter().filter_map(|memory| memory.verdict(self.length)));
        wrong
    }
}

/// Runs so many, and samples.
///
/// # Errors
/// When something does not start, or the runs do not come.
pub async fn soak(config: Config, programs: &Programs, dir: &Path) -> Result<Soaked> {
    let journal = Journal::open(dir, Voice::Out)?;
    let parts = Parts {
        nats: Kind::Single.into(),
        nodes: vec!["scheduler,api", "log-writer"],
        lease: run::LEASE,
        log: run::LOG,
        executors: 1,
        starts: Starts::Written,
        ways: Ways::Direct,
    };
    let site = Site::start(&parts, programs, dir, &journal).await?;
    site.apply(&load::ticks(config.rate)).await?;
    let server = site.servers.lock().await.nodes().iter().find_map(Server::pid);
    let mut all = vec![Memory::new("nats", Whose::Nats)];
    let mut pids = vec![server];
    for seat in site.seats() {
        let writes = seat.name.starts_with("log-writer");
        all.push(Memory::new(&seat.name, if writes { Whose::LogWriter } else { Whose::Ours }));
        pids.push(seat.pid().await);
    }
    let every = Duration::from_secs(1);
    let longest = Duration::from_secs(config.runs / config.rate as u64 * 4 + 120);
    let (began, mut said) = (Instant::now(), Instant::now());
    let starts = loop {
        tokio::time::sleep(every).await;
        for (of, pid) in all.iter_mut().zip(&pids) {
            let now = pid.and_then(memory).with_context(|| format!("{} has ended", of.name))?;
            of.samples.push(now);
        }
        let starts: u64 = site.starts.iter().map(|path| facts::lines(path)).sum();
        if said.elapsed() > Duration::from_secs(10) {
            said = Instant::now();
            let now: Vec<String> = all
                .iter()
                .map(|m| {
                    format!("{} {} MiB", m.name, m.samples.last().copied().unwrap_or(0) / 1024)
                })
                .collect();
            journal.say(format!("{starts} runs; {}", now.join(", ")));
        }
        if starts >= config.runs {
            break starts;
        }
        anyhow::ensure!(began.elapsed() < longest, "only {starts} runs in {longest:?}");
    };
    let length = began.elapsed();
    journal.say(format!("{starts} runs in {:.0} s", length.as_secs_f64()));
    site.pause(&load::ticks(config.rate)).await?;
    let store = site.store().await?;
    crate::quiet::quiet(&site, &store, PATIENCE).await?;
    let starts: u64 = site.starts.iter().map(|path| facts::lines(path)).sum();
    let fires = wait("the fired records", PATIENCE, async || {
        let all = facts::fired(&site, chrono::DateTime::UNIX_EPOCH).await.ok()?;
        Some(all.iter().filter(|fired| fired.skipped.is_none()).count() as u64)
    })
    .await?;
    let succeeded = store.count(RunState::Succeeded).await?;
    store.close().await;
    site.stop().await?;
    Ok(Soaked { memory: all, length, fires, starts, succeeded })
}

/// The report for people.
pub fn print(soaked: &Soaked) {
    println!(
        "\n{} fires, {} handlers started, {} runs of the history succeeded",
        soaked.fires, soaked.starts, soaked.succeeded
    );
    println!("MiB at        10%    33%    50%    75%    97%   growth since 33%");
    for memory in &soaked.memory {
        let mib = |percent| memory.at(percent) as f64 / 1024.0;
        println!(
            "{:<12} {:>6.1} {:>6.1} {:>6.1} {:>6.1} {:>6.1}   {:+.1}",
            memory.name,
            mib(10),
            mib(33),
            mib(50),
            mib(75),
            mib(97),
            memory.growth() as f64 / 1024.0
        );
        if memory.judged_from(soaked.length).is_none() {
            println!("  {}: not judged, since the run is shorter than locks live", memory.name);
        }
    }
    let wrong = soaked.wrong();
    for wrong in &wrong {
        println!("WRONG: {wrong}");
    }
    if wrong.is_empty() {
        println!("no run is missing or twice, and no process that is judged grows");
    }
}
