//! A look at the results before a dispatch is sent a second time.
//!
//! A dispatch whose PubAck was lost may have been stored, run and acked; and once its server has
//! restarted, the stream knows neither its id nor its subject any more. But a result is stored
//! before its dispatch is acked: so whoever finds no result after the loss may send again.
//!
//! *Invariant: a look shows everything that was stored when it was asked for.* Many dispatches are
//! lost at once; they share looks.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde::Deserialize;
use taskparty_nats::connect::Nats;
use taskparty_nats::history::{self, ReadError, Start};
use tokio::sync::Mutex;
use tokio::time::Instant;
use uuid::Uuid;

/// How far the clocks of this machine and of the servers may be apart, with room to spare. Only
/// makes a look longer.
const MARGIN: TimeDelta = TimeDelta::seconds(30);

/// How long one look may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a look shows is at most this old: later the work may be done, and forgotten once more.
const FRESH: Duration = Duration::from_secs(1);

/// One shard of one attempt of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Piece {
    pub(crate) run: Uuid,
    pub(crate) shard: u32,
    pub(crate) attempt: u32,
}

/// Looks at the results. Cheap to clone; clones share what they see.
#[derive(Debug, Clone, Default)]
pub(crate) struct Looks(Arc<Mutex<Option<Look>>>);

/// What one look saw.
#[derive(Debug)]
struct Look {
    begun: Instant,
    since: DateTime<Utc>,
    done: HashSet<Piece>,
}

/// The part of a result that says what it is of.
#[derive(Deserialize)]
struct ResultPart {
    run: Uuid,
    shard: ShardPart,
    attempt: u32,
}

#[derive(Deserialize)]
struct ShardPart {
    index: u32,
}

impl Looks {
    /// Whether `piece`, which was dispatched at `dispatched_at` or later, has a result now.
    pub(crate) async fn has_result(
        &self,
        nats: &Nats,
        piece: Piece,
        dispatched_at: DateTime<Utc>,
    ) -> Result<bool, ReadError> {
        self.has_any_result(nats, vec![piece], dispatched_at).await
    }

    /// Whether any of `pieces`, which were dispatched at `dispatched_at` or later, has a result now.
    pub(crate) async fn has_any_result(
        &self,
        nats: &Nats,
        pieces: Vec<Piece>,
        dispatched_at: DateTime<Utc>,
    ) -> Result<bool, ReadError> {
        let asked = Instant::now();
        let since = dispatched_at - MARGIN;
        let mut last = self.0.lock().await;
        let look = match last.take().filter(|look| look.begun >= asked && look.since <= since) {
            Some(look) => look,
            None => look(nats, since).await?,
        };
        let found = pieces.iter().any(|piece| look.done.contains(piece));
        *last = Some(look);
        Ok(found)
    }
}

/// Looks until what was seen is fresh: each time at what was stored during the last look.
async fn look(nats: &Nats, since: DateTime<Utc>) -> Result<Look, ReadError> {
    let mut look = Look { begun: Instant::now(), since, done: HashSet::new() };
    let names = nats.names();
    let (stream, subjects) = (names.results_stream(), [names.result_all()]);
    let (mut start, end) = (Start::Time(since), Instant::now() + PATIENCE);
    loop {
        let (begun, mut last) = (Instant::now(), None);
        let visit = |message: history::Record| {
            last = Some(message.seq);
            let lines = message.payload.split(|byte| *byte == b'\n');
            let parts = lines.filter_map(|line| serde_json::from_slice::<ResultPart>(line).ok());
            look.done.extend(parts.map(|part| Piece {
                run: part.run,
                shard: part.shard.index,
                attempt: part.attempt,
            }));
            ControlFlow::Continue(())
        };
        let patience = end.saturating_duration_since(begun);
        history::read(nats.js(), &stream, &subjects, start, patience, visit).await?;
        if begun.elapsed() <= FRESH {
            return Ok(look);
        }
        start = last.map_or(start, |last| Start::Seq(last + 1));
    }
}
