//! How late fires are when their owner is killed, and when it ends in order.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use chrono::TimeDelta;
use taskparty_lab::facts;
use taskparty_lab::journal::{Journal, Voice};
use taskparty_lab::servers::Kind;
use taskparty_lab::site::{Parts, Programs, Site, Starts, Ways};

use crate::{load, run};

/// How the owner goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// kill -9.
    Kill,
    /// SIGTERM.
    Stop,
}

impl Way {
    /// What a fire may be late at most.
    pub fn target(self) -> Duration {
        match self {
            Self::Kill => Duration::from_secs(5),
            Self::Stop => Duration::from_millis(500),
        }
    }
}

/// What is measured.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// How the owner goes.
    pub way: Way,
    /// What NATS is.
    pub nats: Kind,
    /// How often.
    pub rounds: usize,
    /// Jobs, each due once a second.
    pub jobs: usize,
}

/// How long after the end fires count as late because of it.
const AFTER: Duration = Duration::from_secs(9);

/// How long all schedulers run before the next one goes.
const BEFORE: Duration = Duration::from_secs(4);

const SCHEDULERS: usize = 3;

/// The largest lateness around the end of an owner, each round.
///
/// # Errors
/// When something does not start.
pub async fn measure(config: Config, programs: &Programs, dir: &Path) -> Result<Vec<Duration>> {
    let journal = Journal::open(dir, Voice::Out)?;
    let parts = Parts {
        nats: config.nats.into(),
        nodes: vec!["scheduler,log-writer,api"; SCHEDULERS],
        lease: run::LEASE,
        log: run::LOG,
        executors: 1,
        starts: Starts::NotWritten,
        ways: Ways::Direct,
    };
    let site = Site::start(&parts, programs, dir, &journal).await?;
    site.apply(&load::ticks(config.jobs)).await?;
    let mut all = Vec::new();
    for round in 0..config.rounds {
        tokio::time::sleep(BEFORE).await;
        let seats: Vec<_> = site.schedulers().collect();
        let seat = seats[round % SCHEDULERS];
        // Not always at the same place between two fires.
        tokio::time::sleep(Duration::from_millis(round as u64 * 137 % 1_000)).await;
        let went = journal.clock().now();
        match config.way {
            Way::Kill => seat.kill().await,
            Way::Stop => seat.stop(Duration::from_secs(30)).await?,
        }
        tokio::time::sleep(AFTER).await;
        let mut fired = facts::fired(&site, went - TimeDelta::seconds(2)).await?;
        fired.retain(|fired| fired.fire_time >= went - TimeDelta::seconds(1));
        let mut late = run::lateness(&fired);
        late.sort_unstable();
        let at = |share: usize| late.get(late.len() * share / 100).copied().unwrap_or_default();
        let max = late.last().copied().unwrap_or_default();
        journal.say(format!(
            "round {}: {} went; {} fires, late p50 {} ms, p90 {} ms, p99 {} ms, max {max} ms",
            round + 1,
            seat.name,
            late.len(),
            at(50),
            at(90),
            at(99),
        ));
        all.push(Duration::from_millis(u64::try_from(max).unwrap_or_default()));
        seat.start().await?;
        site.members(SCHEDULERS).await?;
    }
    site.stop().await?;
    Ok(all)
}
