//! What is measured on: an installation of real processes, with its folder, and how much
//! processor time each of them takes.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::{DateTime, Utc};
use taskparty_common::dispatch::SchedulerEntry;
use taskparty_lab::journal::{Journal, Voice};
use taskparty_lab::process::{memory, processor};
use taskparty_lab::servers::{Kind, Shape};
use taskparty_lab::site::{Parts, Programs, Site, Starts, Ways};
use taskparty_nats::server::{Search, find};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::{Topology, TopologyConfig};
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

use crate::report::Report;

/// What nodes log: nothing that a benchmark would wait for.
const LOG: &str = "warn,async_nats=error,taskparty_nats::consume=error";

/// What this was built from, when whoever built it said so, as `make build` does.
const COMMIT: Option<&str> = option_env!("TASKPARTY_COMMIT");

/// How long the schedulers may take to know the jobs: so long, and for each job so much.
const KNOWN: Duration = Duration::from_secs(30);
const KNOWN_EACH: Duration = Duration::from_micros(200);

/// What every measurement can be told.
#[derive(Debug, Clone)]
pub struct Setting {
    /// One nats-server, or three that store everything three times.
    pub nats: Kind,
    /// NATS syncs each write to the disk before it confirms it.
    pub sync: Sync,
    /// What is started.
    pub programs: Programs,
    /// Where logs, history and the executors' files go, and stay. None: a new folder that goes.
    pub keep: Option<PathBuf>,
    /// Where progress is said.
    pub voice: Voice,
}

/// When NATS syncs to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// As a nats-server does by itself: every two minutes.
    Default,
    /// Before each confirmation.
    Always,
}

impl Setting {
    /// How NATS is started.
    pub(crate) fn shape(&self) -> Shape {
        let jetstream = match self.sync {
            Sync::Default => String::new(),
            Sync::Always => "sync_interval: always".into(),
        };
        Shape { kind: self.nats, jetstream }
    }

    /// What a report says about it.
    ///
    /// # Errors
    /// When there is no nats-server.
    pub(crate) fn words(&self) -> Result<Vec<(&'static str, String)>> {
        let nats = match self.nats {
            Kind::Single => "one nats-server",
            Kind::Cluster => "three nats-servers, everything stored three times",
        };
        let version = find(&Search::from_env())?.version;
        let sync = match self.sync {
            Sync::Default => "the server's default, each 2 minutes",
            Sync::Always => "before each confirmation",
        };
        let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
        let commit = COMMIT.filter(|commit| !commit.is_empty());
        let mut words: Vec<_> =
            commit.into_iter().map(|commit| ("commit", commit.to_owned())).collect();
        words.extend([
            ("cores", format!("{cores}, all processes on this machine")),
            ("nats", format!("{nats}, version {version}")),
            ("storage", "file".into()),
            ("fsync", sync.into()),
        ]);
        Ok(words)
    }

    /// The same, of a measurement that has a history.
    ///
    /// # Errors
    /// As [`Setting::words`].
    pub(crate) fn words_and_history(&self) -> Result<Vec<(&'static str, String)>> {
        let history = "SQLite, the only database there is in this version";
        let mut words = self.words()?;
        words.push(("history", history.into()));
        Ok(words)
    }

    /// A folder for what is written.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(crate) fn folder(&self) -> Result<(PathBuf, Option<TempDir>)> {
        match &self.keep {
            Some(path) => {
                std::fs::create_dir_all(path).with_context(|| path.display().to_string())?;
                Ok((std::path::absolute(path)?, None))
            }
            None => {
                let dir = tempfile::Builder::new().prefix("taskparty-bench-").tempdir()?;
                Ok((dir.path().to_owned(), Some(dir)))
            }
        }
    }
}

/// An installation that is measured. Its folder goes with it, unless it is to be kept.
#[derive(Debug)]
pub(crate) struct Bed {
    pub(crate) site: Site,
    _folder: Option<TempDir>,
}

impl Bed {
    /// NATS runs, streams and buckets are there; nothing else is started yet.
    pub(crate) async fn open(
        setting: &Setting,
        nodes: Vec<&'static str>,
        executors: usize,
    ) -> Result<Self> {
        let (path, folder) = setting.folder()?;
        let journal = Journal::open(&path, setting.voice)?;
        let lease = TopologyConfig::default().lease;
        let parts = Parts {
            nats: setting.shape(),
            nodes,
            log: LOG,
            lease,
            executors,
            starts: Starts::Written,
            ways: Ways::Direct,
        };
        let site = Site::open(&parts, &setting.programs, &path, &journal).await?;
        Topology::new(site.nats.clone(), TopologyConfig::default()).create_missing().await?;
        Ok(Self { site, _folder: folder })
    }

    /// The processes by name: `nats`, then those of TaskParty.
    async fn pids(&self) -> Vec<(String, u32)> {
        let mut pids = Vec::new();
        for server in self.site.servers.lock().await.nodes() {
            pids.extend(server.pid().map(|pid| ("nats".to_owned(), pid)));
        }
        for seat in self.site.seats() {
            let kind = seat.name.rsplit_once('-').map_or(seat.name.as_str(), |(kind, _)| kind);
            pids.extend(seat.pid().await.map(|pid| (kind.to_owned(), pid)));
        }
        pids
    }

    /// How much processor time they have used so far.
    pub(crate) async fn used(&self) -> Used {
        let mut used = BTreeMap::new();
        for (kind, pid) in self.pids().await {
            *used.entry(kind).or_default() += processor(pid).unwrap_or_default();
        }
        Used(used)
    }

    /// Waits until `at`.
    pub(crate) async fn wait_until(&self, at: DateTime<Utc>) {
        while self.site.journal.clock().now() < at {
            sleep(Duration::from_millis(10)).await;
        }
    }

    /// What the live schedulers say of themselves.
    pub(crate) async fn schedulers(&self) -> Result<Vec<SchedulerEntry>> {
        let entries = self.site.buckets.entries(Bucket::Schedulers, "*").await?;
        let values = entries.into_iter().filter_map(|entry| entry.value);
        Ok(values.map(|value| serde_json::from_slice(&value)).collect::<Result<_, _>>()?)
    }

    /// Waits until the schedulers say that they fire so many jobs.
    pub(crate) async fn wait_for_jobs(&self, jobs: usize) -> Result<()> {
        let patience = KNOWN + KNOWN_EACH * u32::try_from(jobs)?;
        taskparty_lab::site::wait("the scheduler to know the jobs", patience, async || {
            let found = self.schedulers().await.ok()?;
            (found.iter().map(|entry| entry.jobs).sum::<u64>() >= jobs as u64).then_some(())
        })
        .await
    }

    /// Counts for `length` what share of one core each kind of process takes, in percent.
    pub(crate) async fn shares_of_a_core(&self, length: Duration) -> Vec<(String, f64)> {
        self.site.journal.say(format!("counting processor time for {} s", length.as_secs()));
        let (used, from) = (self.used().await, Instant::now());
        sleep(length).await;
        let (spent, took) = (self.used().await.since(&used), from.elapsed());
        let share = |time: Duration| time.as_secs_f64() / took.as_secs_f64() * 100.0;
        spent.each().map(|(kind, time)| (kind.to_owned(), share(time))).collect()
    }

    /// How much memory the processes of this kind hold, in KiB.
    pub(crate) async fn memory(&self, kind: &str) -> u64 {
        let pids = self.pids().await;
        pids.iter().filter(|(of, _)| of == kind).filter_map(|(_, pid)| memory(*pid)).sum()
    }
}

/// Processor time by kind of process.
#[derive(Debug, Clone, Default)]
pub(crate) struct Used(BTreeMap<String, Duration>);

impl Used {
    /// What was used since `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let since = |(kind, now): (&String, &Duration)| {
            let before = before.0.get(kind).copied().unwrap_or_default();
            (kind.clone(), now.saturating_sub(before))
        };
        Self(self.0.iter().map(since).collect())
    }

    /// Each kind's time.
    pub(crate) fn each(&self) -> impl Iterator<Item = (&str, Duration)> {
        self.0.iter().map(|(kind, time)| (kind.as_str(), *time))
    }

    /// Adds each kind's time, divided by `runs`, to `report`.
    pub(crate) fn report_per_run(&self, runs: u64, report: &mut Report) {
        for (kind, time) in self.each() {
            let each = time.as_secs_f64() * 1e6 / runs as f64;
            report.add(format!("processor a run: {kind}"), each, "us");
        }
    }

    /// All of it.
    pub(crate) fn total(&self) -> Duration {
        self.0.values().sum()
    }
}
