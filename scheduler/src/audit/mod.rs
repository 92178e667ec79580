//! The audit: whether nothing was lost and nothing done twice, in a period.
//!
//! It reads what each part wrote by itself (the locks and the job definitions in their buckets,
//! the records in RESULTS, the rows in SQL, what is left in the dispatch streams, and what
//! executors wrote into files of their own) and holds them against each other. It is `doctor
//! --audit` for users and the judge in the tests, so it shares no code with what it judges but the
//! schedules' instants and the shapes of what is stored.
//!
//! *Invariants.* It changes nothing. What is younger than the settle time is never called wrong.
//! What it cannot know (an edit, a past that is no longer kept) it leaves open and says so.
//!
//! It is read in the order SQL, RESULTS, locks, dispatch streams. What happens meanwhile is younger
//! than the audit's begin and is not judged.
//!
//! Limits: memory grows with the runs of the period, some 900 bytes each, and an error ends it
//! beyond [`AuditConfig::max_runs`]. Of a fixed delay only the first instant can be known; the
//! others hang on the ends of runs. Instants are judged by records, which are kept for 7 days, and
//! by definitions, of which a job has 10. Starts are compared by the executors' clocks.

mod attempts;
mod bounds;
mod eras;
mod facts;
mod files;
mod held;
mod history;
mod instants;
mod ledger;
mod locks;
mod read;
mod report;
mod runs;
mod starts;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::history::ReadError;

pub use bounds::{Bounds, Starts};
pub use facts::{
    AskRuns, FiredFact, HistoryAttempt, HistoryPage, HistoryRun, Installation, LaggingFact,
    LateResult, Leftovers, Limits, LockFact, ResultFact, Revision, RevisionKind, SetAsideFact,
    StartFact, WaitingFact,
};
pub use history::History;
pub use ledger::Ledger;
pub use report::{Judged, Kind, Note, NoteKind, Place, Report, Violation};

/// How long decisions that wait in the outbox are watched before they count as stuck.
const OUTBOX_PATIENCE: Duration = Duration::from_secs(5);

/// What to audit.
#[derive(Debug, Clone)]
pub struct AuditConfig {
    /// Instants and runs from this on.
    pub from: DateTime<Utc>,
    /// And before this; what lies after the audit's begin is left out.
    pub to: DateTime<Utc>,
    /// What is younger may still be under way. Default 60 s. Too short, and it calls wrong what
    /// only takes its time: a lease, a catching up.
    pub settle: Duration,
    /// How long around an edit it is open which definition holds. Default 5 s.
    pub edit_margin: Duration,
    /// The lease of a dispatch. Default 30 s.
    pub lease: Duration,
    /// The files in which executors wrote their starts; none: starts are not judged. All executors
    /// of the period must have written one.
    pub starts: Vec<PathBuf>,
    /// When NATS may have forgotten what had just been delivered or acked: a server ended or stood
    /// still, or a consumer was deleted. Two starts of one delivery, one on each side, are a note
    /// then, and so is a start of an attempt that was reported before and has a successor that
    /// succeeded. Default: none.
    pub forgot: Vec<DateTime<Utc>>,
    /// The most runs of the period. Default 1 000 000, about 900 MiB.
    pub max_runs: usize,
    /// How many violations are put into words. Default 1000.
    pub most: usize,
    /// How long reading one stream may take. Default 10 min.
    pub patience: Duration,
    /// The wall clock.
    pub clock: Clock,
}

impl AuditConfig {
    /// The audit of a period, with the defaults.
    pub fn new(from: DateTime<Utc>, to: DateTime<Utc>) -> Self {
        Self {
            from,
            to,
            settle: Duration::from_secs(60),
            edit_margin: Duration::from_secs(5),
            lease: Duration::from_secs(30),
            starts: Vec::new(),
            forgot: Vec::new(),
            max_runs: 1_000_000,
            most: 1000,
            patience: Duration::from_secs(600),
            clock: Clock::system(),
        }
    }
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum AuditError {
    /// The period is none.
    #[error("the period from {from} to {to} is empty: give one that ends after it begins")]
    Empty {
        /// Its begin.
        from: DateTime<Utc>,
        /// Its end, or now.
        to: DateTime<Utc>,
    },
    /// There are too many runs for the memory that the audit may take.
    #[error("the period has more than {0} runs: audit a shorter one")]
    TooLarge(usize),
    /// A stream or a bucket.
    #[error("NATS cannot be read: {0}")]
    Read(#[from] ReadError),
    /// History.
    #[error("history cannot be read: {0}")]
    History(String),
    /// A file of starts.
    #[error("{}, line {line}: {problem}", path.display())]
    Starts {
        /// The file.
        path: PathBuf,
        /// The line, from 1; 0: the file as a whole.
        line: u64,
        /// What is wrong.
        problem: String,
    },
}

/// What is being read, for a progress line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The job definitions.
    Jobs,
    /// Runs in SQL.
    History,
    /// Fired records and results.
    Records,
    /// Locks.
    Locks,
    /// The files of starts.
    Starts,
    /// The dispatch streams.
    Waiting,
}

/// Audits a period.
///
/// # Errors
/// [`AuditError`]; then nothing can be said.
pub async fn run(
    buckets: &Buckets,
    history: &impl History,
    config: AuditConfig,
) -> Result<Report, AuditError> {
    run_watched(buckets, history, config, |_, _| {}).await
}

/// As [`run`]; `progress` hears what is being read, and how many of it so far.
///
/// # Errors
/// [`AuditError`].
pub async fn run_watched(
    buckets: &Buckets,
    history: &impl History,
    config: AuditConfig,
    mut progress: impl FnMut(Step, u64),
) -> Result<Report, AuditError> {
    let now = config.clock.now();
    let to = config.to.min(now);
    if to <= config.from {
        return Err(AuditError::Empty { from: config.from, to });
    }
    let starts = if config.starts.is_empty() { Starts::NotGiven } else { Starts::Given };
    let mut ledger = Ledger::new(Bounds {
        from: config.from,
        to,
        now,
        settle: config.settle,
        edit_margin: config.edit_margin,
        lease: config.lease,
        max_runs: config.max_runs,
        most: config.most,
        starts,
        forgot: config.forgot.clone(),
    });
    let mut source = read::Source { buckets, patience: config.patience, progress: &mut progress };
    source.jobs(&mut ledger).await?;
    let waiting = history.leftovers(config.from).await?;
    let mut ask = AskRuns { from: config.from, to, after: None };
    let mut read = 0;
    loop {
        let page = history.runs(&ask).await?;
        read += page.items.len() as u64;
        (source.progress)(Step::History, read);
        page.items.into_iter().for_each(|run| ledger.history(run));
        bounded(&ledger, &config)?;
        ask.after = page.next;
        if ask.after.is_none() {
            break;
        }
    }
    // Clocks differ a little: a record may be stored "before" the instant that it is about.
    let since = config.from - TimeDelta::seconds(60);
    source.installation(&mut ledger).await?;
    source.records(&mut ledger, since).await?;
    bounded(&ledger, &config)?;
    source.locks(&mut ledger, since).await?;
    source.waiting(&mut ledger).await?;
    for path in &config.starts {
        let count = files::read(path, &mut ledger)?;
        (source.progress)(Step::Starts, count);
    }
    bounded(&ledger, &config)?;
    ledger.leftovers(&still_there(history, config.from, waiting).await?);
    Ok(ledger.judge())
}

fn bounded(ledger: &Ledger, config: &AuditConfig) -> Result<(), AuditError> {
    if ledger.is_full() { Err(AuditError::TooLarge(config.max_runs)) } else { Ok(()) }
}

/// What of `before` is still there a little later: decisions come and go, and only those that
/// stay are stuck.
async fn still_there(
    history: &impl History,
    from: DateTime<Utc>,
    before: Leftovers,
) -> Result<Leftovers, AuditError> {
    let end = tokio::time::Instant::now() + OUTBOX_PATIENCE;
    loop {
        let mut now = history.leftovers(from).await?;
        now.outbox.retain(|id| before.outbox.contains(id));
        if now.outbox.is_empty() || tokio::time::Instant::now() >= end {
            return Ok(now);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
