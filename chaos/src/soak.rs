//! Many runs that do nothing: whether the memory of each process stays as it is.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use taskparty_lab::facts;
use taskparty_lab::journal::{Journal, Voice};
use taskparty_lab::process::memory;
use taskparty_lab::servers::Kind;
use taskparty_lab::site::{PATIENCE, Parts, Programs, Site, Starts, Ways, wait};
use taskparty_nats::server::Server;
use tokio::time::Instant;

use crate::{load, run};

/// What is done.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How many runs.
    pub runs: u64,
    /// How many a second.
    pub rate: usize,
}

/// The memory of a process over time.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Which process.
    pub name: String,
    /// KiB, a sample each few seconds.
    pub samples: Vec<u64>,
}

impl Memory {
    /// KiB at a share of the time, the median of some samples around it.
    fn at(&self, percent: usize) -> u64 {
        let middle = self.samples.len() * percent / 100;
        let width = self.samples.len() / 20 + 1;
        let from = middle.saturating_sub(width);
        let mut around: Vec<u64> =
            self.samples.iter().skip(from).take(2 * width).copied().collect();
        around.sort_unstable();
        around.get(around.len() / 2).copied().unwrap_or_default()
    }

    /// How much more it is at the end than after the first third, in KiB.
    pub fn growth(&self) -> i64 {
        self.at(97).cast_signed() - self.at(33).cast_signed()
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Soaked {
    /// Each process.
    pub memory: Vec<Memory>,
    /// Fires that were recorded.
    pub fires: u64,
    /// Handlers that were started.
    pub starts: u64,
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
    let mut watched = vec![("nats".to_owned(), server)];
    for seat in site.seats() {
        watched.push((seat.name.clone(), seat.pid().await));
    }
    let mut all: Vec<Memory> = watched
        .iter()
        .map(|(name, _)| Memory { name: name.clone(), samples: Vec::new() })
        .collect();
    let every = Duration::from_secs(1);
    let longest = Duration::from_secs(config.runs / config.rate as u64 * 4 + 120);
    let (began, mut said) = (Instant::now(), Instant::now());
    let starts = loop {
        tokio::time::sleep(every).await;
        for (memory_of, (name, pid)) in all.iter_mut().zip(&watched) {
            let now = pid.and_then(memory).with_context(|| format!("{name} has ended"))?;
            memory_of.samples.push(now);
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
    let seconds = began.elapsed().as_secs_f64();
    journal.say(format!("{starts} runs in {seconds:.0} s"));
    site.pause(&load::ticks(config.rate)).await?;
    let store = site.store().await?;
    crate::quiet::quiet(&site, &store, PATIENCE).await?;
    let starts: u64 = site.starts.iter().map(|path| facts::lines(path)).sum();
    let fires = wait("the fired records", PATIENCE, async || {
        let all = facts::fired(&site, chrono::DateTime::UNIX_EPOCH).await.ok()?;
        Some(all.iter().filter(|fired| fired.skipped.is_none()).count() as u64)
    })
    .await?;
    site.stop().await?;
    Ok(Soaked { memory: all, fires, starts })
}

/// The report for people.
pub fn print(soaked: &Soaked) {
    println!("\n{} fires, {} handlers started", soaked.fires, soaked.starts);
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
    }
}
