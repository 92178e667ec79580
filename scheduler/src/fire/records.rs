//! A look at what is recorded and reported since some time, for whoever completes fires.
//!
//! Many fires are found half done at once, as after an outage of NATS; each look is a consumer and
//! reads all that was stored since. *Invariants: one look at a time*, however many ask; *it shows
//! everything that was stored when it was asked for*; and *what it shows is not old*: while a look
//! takes long another scheduler may have completed the fire, and its work be done, acked, and
//! forgotten by a server that restarted. So what was stored during a long look is read after it.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use taskparty_common::dispatch::ResultRecord;
use taskparty_common::fire::Fired;
use taskparty_nats::connect::Nats;
use taskparty_nats::history::{self, ReadError, Start};
use tokio::time::Instant;
use uuid::Uuid;

/// How long one look may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a look shows is at most this old.
const FRESH: Duration = Duration::from_secs(1);

/// Looks at records and results. Cheap to clone; clones share what they see.
#[derive(Debug, Clone, Default)]
pub(crate) struct Records(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Since when those want to know who wait for a look.
    wanted: Mutex<Wanted>,
    last: tokio::sync::Mutex<Option<Look>>,
}

/// Those who wait for the next look.
#[derive(Debug, Default)]
struct Wanted {
    by: usize,
    since: Option<DateTime<Utc>>,
}

/// One look, and what came of it.
#[derive(Debug)]
struct Look {
    begun: Instant,
    since: DateTime<Utc>,
    outcome: Result<Arc<Known>, ReadError>,
}

/// What the results stream knows of fires: which are recorded, which shards are done.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) recorded: HashSet<String>,
    /// Those of `recorded` that do not wait for a place.
    pub(super) placed: HashSet<String>,
    done: HashMap<(Uuid, u32), Vec<u32>>,
    as_of: Instant,
}

impl Known {
    /// What was stored before this is in here.
    pub(super) fn as_of(&self) -> Instant {
        self.as_of
    }

    /// The shards of an attempt that have results.
    pub(super) fn done(&self, run: Uuid, attempt: u32) -> &[u32] {
        self.done.get(&(run, attempt)).map_or(&[], Vec::as_slice)
    }
}

impl Records {
    /// What was recorded and reported since `since`, or longer.
    pub(super) async fn since(
        &self,
        nats: &Nats,
        since: DateTime<Utc>,
    ) -> Result<Arc<Known>, ReadError> {
        let asked = Instant::now();
        self.want(since);
        let mut last = self.0.last.lock().await;
        let (others, earliest) = self.wanted();
        let fits = |look: &Look| look.begun >= asked && look.since <= since;
        let look = match last.take().filter(fits) {
            Some(look) => look,
            None => {
                let (begun, since) = (Instant::now(), earliest.map_or(since, |e| e.min(since)));
                let outcome = look(nats, since).await.map(Arc::new);
                Look { begun, since, outcome }
            }
        };
        let outcome = look.outcome.clone();
        // It is large: it stays for those who wait for it, and no longer.
        *last = (others > 0 || self.is_wanted()).then_some(look);
        outcome
    }

    fn want(&self, since: DateTime<Utc>) {
        let mut wanted = self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.by += 1;
        wanted.since = Some(wanted.since.map_or(since, |earliest| earliest.min(since)));
    }

    /// One of those who wait waits no more: how many others do, and since when all want to know.
    fn wanted(&self) -> (usize, Option<DateTime<Utc>>) {
        let mut wanted = self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.by = wanted.by.saturating_sub(1);
        let since = wanted.since;
        if wanted.by == 0 {
            wanted.since = None;
        }
        (wanted.by, since)
    }

    fn is_wanted(&self) -> bool {
        self.0.wanted.lock().unwrap_or_else(PoisonError::into_inner).by > 0
    }
}

/// Reads until what is known is fresh: each time what was stored during the last.
async fn look(nats: &Nats, since: DateTime<Utc>) -> Result<Known, ReadError> {
    let mut known = Known {
        recorded: HashSet::new(),
        placed: HashSet::new(),
        done: HashMap::new(),
        as_of: Instant::now(),
    };
    let mut start = Start::Time(since);
    let end = Instant::now() + PATIENCE;
    loop {
        let begun = Instant::now();
        let patience = end.saturating_duration_since(begun);
        let last = read(nats, &mut known, start, patience).await?;
        if begun.elapsed() <= FRESH {
            known.as_of = begun;
            return Ok(known);
        }
        start = last.map_or(start, |last| Start::Seq(last + 1));
    }
}

/// Adds what is stored from `start` on; says what was stored last of it.
async fn read(
    nats: &Nats,
    known: &mut Known,
    start: Start,
    patience: Duration,
) -> Result<Option<u64>, ReadError> {
    let mut last = None;
    let names = nats.names();
    let subjects = [names.fired_all(), names.result_all()];
    let stream = names.results_stream();
    let visit = |message: history::Record| {
        last = Some(message.seq);
        let fired = message.subject.contains(".fired.");
        for line in message.payload.split(|byte| *byte == b'\n') {
            if fired {
                if let Ok(fired) = serde_json::from_slice::<Fired>(line) {
                    if !fired.awaits_place() {
                        known.placed.insert(fired.lock.clone());
                    }
                    known.recorded.insert(fired.lock);
                }
            } else if let Ok(result) = serde_json::from_slice::<ResultRecord>(line) {
                let done = known.done.entry((result.run, result.attempt)).or_default();
                done.push(result.shard.index);
            }
        }
        ControlFlow::Continue(())
    };
    history::read(nats.js(), &stream, &subjects, start, patience, visit).await?;
    Ok(last)
}
