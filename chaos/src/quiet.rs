//! Waits until an installation whose jobs are paused has nothing left to do.

use std::time::Duration;

use anyhow::{Result, bail};
use taskparty_common::name::App;
use taskparty_common::outcome::RunState;
use taskparty_lab::site::Site;
use taskparty_nats::history::{consumer_info, stream_info};
use taskparty_scheduler::store::{RunFilter, Store};
use tokio::time::{Instant, sleep};

use crate::load::APP;

/// What is left to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// Messages in the stream of work.
    pub work: u64,
    /// Triggers that nobody has taken, or whose time has not come.
    pub triggers: u64,
    /// Messages that the log writer has not taken in.
    pub records: u64,
    /// Runs in SQL that have not ended: at most 1000 are counted.
    pub open: usize,
}

impl Left {
    fn is_nothing(&self) -> bool {
        (self.work, self.triggers, self.records, self.open) == (0, 0, 0, 0)
    }
}

/// Looks what is left.
///
/// # Errors
/// When NATS or SQL cannot be asked.
pub async fn left(site: &Site, store: &Store) -> Result<Left> {
    let (js, names) = (site.nats.js(), site.nats.names());
    let results = consumer_info(js, &names.results_stream(), "log-writer").await?;
    let open: Vec<RunState> = RunState::ALL
        .iter()
        .map(|(_, state)| *state)
        .filter(|state| !state.is_terminal())
        .collect();
    let filter = RunFilter { states: open, limit: Some(1000), ..RunFilter::default() };
    Ok(Left {
        work: stream_info(js, &names.dispatch_stream(&App::new(APP)?)).await?.messages,
        triggers: stream_info(js, &names.triggers_stream()).await?.messages,
        records: results.map_or(0, |info| info.pending + info.ack_pending),
        open: store.runs(&filter).await?.items.len(),
    })
}

/// Waits until nothing is left.
///
/// # Errors
/// When `patience` is over, with what is left.
pub async fn quiet(site: &Site, store: &Store, patience: Duration) -> Result<()> {
    let end = Instant::now() + patience;
    let mut said = Instant::now();
    let mut before = false;
    loop {
        let now = left(site, store).await?;
        // Twice in a row: what one place has let go of is not in the next one yet.
        if now.is_nothing() && before {
            return Ok(());
        }
        before = now.is_nothing();
        if Instant::now() >= end {
            let open = RunFilter {
                states: vec![
                    RunState::Dispatched,
                    RunState::Running,
                    RunState::Retrying,
                    RunState::Waiting,
                    RunState::Scheduled,
                ],
                limit: Some(5),
                ..RunFilter::default()
            };
            let such = store.runs(&open).await?.items;
            bail!("after {patience:?} there is still {now:?}; such as {such:#?}");
        }
        if said.elapsed() > Duration::from_secs(5) {
            said = Instant::now();
            site.journal.say(format!("left: {now:?}"));
        }
        sleep(Duration::from_millis(500)).await;
    }
}
