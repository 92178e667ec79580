//! Reading what is in NATS, stream by stream; nothing is kept but what the ledger takes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::TryStreamExt;
use serde::Deserialize;
use serde_json::value::RawValue;
use taskparty_common::dispatch::{ResultRecord, SchedulerEntry};
use taskparty_common::fire::{FireId, Intent, Plan, Skipped};
use taskparty_common::job::{Job, JobSpec, Unknown};
use taskparty_common::name::JobId;
use taskparty_common::outcome::TriggerResult;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::history::{self, ReadError, Record, Start};
use taskparty_nats::subject::Bucket;
use tokio::time::timeout;
use uuid::Uuid;

use super::facts::{
    FiredFact, Installation, LaggingFact, Limits, LockFact, ResultFact, Revision, RevisionKind,
    WaitingFact,
};
use super::{Ledger, Step};

/// How many definitions' limits are kept, to be read once.
const KEPT: usize = 10_000;

/// How often progress is said.
const EVERY: u64 = 1000;

/// The parts of a fired record that are judged.
#[derive(Deserialize)]
struct Fired<'a> {
    lock: String,
    run: Uuid,
    job: JobId,
    result: TriggerResult,
    fire_time: DateTime<Utc>,
    plan: Plan,
    #[serde(default)]
    skipped: Option<Skipped>,
    #[serde(default)]
    start_by: Option<DateTime<Utc>>,
    #[serde(borrow)]
    definition: &'a RawValue,
}

/// The part of a watermark that is judged.
#[derive(Deserialize)]
struct Watermark {
    handled: DateTime<Utc>,
}

/// The parts of the cursor of a job that lags that are judged.
#[derive(Deserialize)]
struct Cursor {
    since: DateTime<Utc>,
    handled: DateTime<Utc>,
}

/// Where to read from.
pub(super) struct Source<'a, P> {
    pub(super) buckets: &'a Buckets,
    /// How long reading one stream may take.
    pub(super) patience: Duration,
    pub(super) progress: &'a mut P,
}

impl<P: FnMut(Step, u64)> Source<'_, P> {
    async fn read(
        &mut self,
        (stream, subjects): (&str, &[String]),
        start: Start,
        step: Step,
        mut visit: impl FnMut(Record),
    ) -> Result<(), ReadError> {
        let mut count = 0;
        let progress = &mut *self.progress;
        let js = self.buckets.nats().js();
        history::read(js, stream, subjects, start, self.patience, |record| {
            visit(record);
            count += 1;
            if count % EVERY == 0 {
                progress(step, count);
            }
            ControlFlow::Continue(())
        })
        .await?;
        (self.progress)(step, count);
        Ok(())
    }

    /// Every revision of every job that is kept.
    pub(super) async fn jobs(&mut self, ledger: &mut Ledger) -> Result<(), ReadError> {
        let names = self.buckets.nats().names();
        let (stream, subjects) =
            (names.bucket_stream(Bucket::Jobs), [names.key(Bucket::Jobs, ">")]);
        let prefix = names.key(Bucket::Jobs, "");
        self.read((&stream, &subjects), Start::First, Step::Jobs, |record| {
            let Some(job) = record.subject.strip_prefix(&prefix) else { return };
            let what = if record.is_marker() {
                RevisionKind::Deleted
            } else {
                let read = serde_json::from_slice(&record.payload).ok();
                match read.and_then(|value| Job::from_json(&value).ok()) {
                    Some(read) if read.spec.id.as_str() == job => {
                        RevisionKind::Saved(Box::new(read))
                    }
                    _ => RevisionKind::Unreadable,
                }
            };
            let (job, stored_at) = (job.to_owned(), record.stored_at);
            ledger.revision(Revision { job, revision: record.seq, stored_at, what });
        })
        .await
    }

    /// What is known of the installation.
    pub(super) async fn installation(&mut self, ledger: &mut Ledger) -> Result<(), ReadError> {
        let nats = self.buckets.nats();
        let names = nats.names();
        let stream = names.results_stream();
        let info = history::stream_info(nats.js(), &stream).await?;
        let mut first_fired = None;
        let fired = [names.fired_all()];
        history::read(nats.js(), &stream, &fired, Start::First, self.patience, |record| {
            first_fired = Some(record.stored_at);
            ControlFlow::Break(())
        })
        .await?;
        let records_from = match info.first_seq {
            0 | 1 => None,
            first => history::message(nats.js(), &stream, first).await?.map(|m| m.stored_at),
        };
        let live = self.buckets.entries(Bucket::Schedulers, ">").await?;
        let started = live.iter().filter_map(|entry| {
            serde_json::from_slice::<SchedulerEntry>(entry.value.as_deref()?).ok()
        });
        let began = started.map(|entry| entry.started_at).chain(first_fired).min();
        let marks = self.buckets.entries(Bucket::Cursors, "scheduler.*").await?;
        let handled = marks.iter().filter_map(|mark| {
            Some(serde_json::from_slice::<Watermark>(mark.value.as_deref()?).ok()?.handled)
        });
        let watermark = handled.min();
        ledger.installation(Installation { began, records_from, watermark });
        for entry in self.buckets.entries(Bucket::Cursors, "job.*").await? {
            let cursor = entry.value.as_deref().map(serde_json::from_slice::<Cursor>);
            if let (Some(job), Some(Ok(cursor))) = (entry.key.strip_prefix("job."), cursor) {
                let (job, Cursor { since, handled }) = (job.to_owned(), cursor);
                ledger.lagging(LaggingFact { job, since, handled });
            }
        }
        Ok(())
    }

    /// Fired records and results since `since`.
    pub(super) async fn records(
        &mut self,
        ledger: &mut Ledger,
        since: DateTime<Utc>,
    ) -> Result<(), ReadError> {
        let names = self.buckets.nats().names();
        let stream = names.results_stream();
        let subjects = [names.fired_all(), names.result_all()];
        let mut limits = HashMap::new();
        self.read((&stream, &subjects), Start::Time(since), Step::Records, |record| {
            let fired = record.subject.contains(".fired.");
            let lines = record.payload.split(|byte| *byte == b'\n');
            for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
                let read = match fired {
                    true => take_fired(ledger, line, record.stored_at, &mut limits),
                    false => take_result(ledger, line, record.stored_at),
                };
                if let Err(error) = read {
                    let place = format!("message {} of {stream}", record.seq);
                    ledger.unreadable(&place, &error.to_string());
                }
            }
        })
        .await
    }

    /// Locks that were taken since `since`.
    pub(super) async fn locks(
        &mut self,
        ledger: &mut Ledger,
        since: DateTime<Utc>,
    ) -> Result<(), ReadError> {
        let names = self.buckets.nats().names();
        let stream = names.bucket_stream(Bucket::Fires);
        let (subjects, prefix) = ([names.key(Bucket::Fires, ">")], names.key(Bucket::Fires, ""));
        self.read((&stream, &subjects), Start::Time(since), Step::Locks, |record| {
            let key = record.subject.strip_prefix(&prefix).unwrap_or_default();
            if record.is_marker() {
                return;
            }
            match (FireId::from_lock_key(key), serde_json::from_slice::<Intent>(&record.payload)) {
                (Some(_), Ok(intent)) => ledger.lock(LockFact {
                    key: key.to_owned(),
                    run: intent.run,
                    skipped: intent.skipped,
                    stored_at: record.stored_at,
                }),
                (None, _) => ledger.unreadable(key, "it is no lock's key"),
                (_, Err(error)) => ledger.unreadable(key, &format!("it holds no intent: {error}")),
            }
        })
        .await
    }

    /// What is in the dispatch streams, by their subjects: a stream that is a queue is not read
    /// beside its consumers.
    pub(super) async fn waiting(&mut self, ledger: &mut Ledger) -> Result<(), ReadError> {
        let nats = self.buckets.nats();
        let unanswered = |error: String| ReadError::Unanswered(error);
        let mut streams = Vec::new();
        let all = async {
            let mut names = nats.js().stream_names();
            while let Some(name) = names.try_next().await.map_err(|e| unanswered(e.to_string()))? {
                streams.extend(nats.names().app_of(&name).map(|_| name));
            }
            Ok(())
        };
        within(self.patience, all).await?;
        let mut count = 0;
        for name in streams {
            let read = async {
                let handle = nats.js().get_stream_no_info(&name).await;
                let handle = handle.map_err(|error| ReadError::Refused(error.to_string()))?;
                let subjects = handle.info_with_subjects(">").await;
                let mut subjects = subjects.map_err(|error| unanswered(error.to_string()))?;
                while let Some((subject, _)) =
                    subjects.try_next().await.map_err(|error| unanswered(error.to_string()))?
                {
                    count += 1;
                    match work_of(&subject) {
                        Some(fact) => ledger.waiting(fact),
                        None => ledger.unreadable(&subject, "it is no subject of work"),
                    }
                }
                Ok(())
            };
            within(self.patience, read).await?;
        }
        (self.progress)(Step::Waiting, count);
        Ok(())
    }
}

async fn within(
    patience: Duration,
    work: impl Future<Output = Result<(), ReadError>>,
) -> Result<(), ReadError> {
    let done = timeout(patience, work).await;
    done.map_err(|_| ReadError::Unanswered("the streams were not listed in time".into()))?
}

fn take_fired(
    ledger: &mut Ledger,
    line: &[u8],
    stored_at: DateTime<Utc>,
    known: &mut HashMap<Box<str>, Option<Limits>>,
) -> Result<(), serde_json::Error> {
    let fired: Fired<'_> = serde_json::from_slice(line)?;
    let limits = match known.get(fired.definition.get()) {
        Some(limits) => *limits,
        None => {
            if known.len() >= KEPT {
                known.clear();
            }
            let limits = limits_of(fired.definition);
            known.insert(fired.definition.get().into(), limits);
            limits
        }
    };
    ledger.fired(FiredFact {
        lock: fired.lock,
        run: fired.run,
        job: fired.job,
        result: fired.result,
        fire_time: fired.fire_time,
        plan: fired.plan,
        skipped: fired.skipped,
        awaits_place: fired.result == TriggerResult::Queued && fired.start_by.is_none(),
        limits,
        stored_at,
    });
    Ok(())
}

fn limits_of(definition: &RawValue) -> Option<Limits> {
    let value = serde_json::from_str(definition.get()).ok()?;
    let spec = JobSpec::from_json(&value, Unknown::Ignore).ok()?;
    Some(Limits { retries: spec.retry.max, timeout: spec.timeout })
}

fn take_result(
    ledger: &mut Ledger,
    line: &[u8],
    stored_at: DateTime<Utc>,
) -> Result<(), serde_json::Error> {
    let result: ResultRecord = serde_json::from_slice(line)?;
    ledger.result(ResultFact {
        run: result.run,
        job: result.job,
        shard: result.shard.index,
        attempt: result.attempt,
        delivery: result.delivery,
        instance: result.instance,
        outcome: result.outcome,
        finished_at: result.finished_at,
        stored_at,
    });
    Ok(())
}

/// The attempt that a subject of work is about: its last three tokens.
fn work_of(subject: &str) -> Option<WaitingFact> {
    let mut tokens = subject.rsplit('.');
    let attempt = tokens.next()?.parse().ok()?;
    let shard = tokens.next()?.parse().ok()?;
    let run = Uuid::parse_str(tokens.next()?).ok()?;
    Some(WaitingFact { run, shard, attempt })
}
