//! `job.backfill`: run instants of the past.
//!
//! *Invariant: whoever got an answer can rely on it*: the instants are stored by then, and whatever
//! dies afterwards, each runs. Those that ran are left out, unless they are asked for again.
//! *Invariant: no instant runs twice that is still the schedule's*: which those are is said by the
//! watermarks, by the job's own cursor where it lags, and by a history that knows all that was recorded until they were read.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use taskparty_common::backfill::{Backfill, MAX_INSTANTS};
use taskparty_common::fire::TriggerRequest;
use taskparty_common::job::{Job, Overlap};
use taskparty_common::outcome::{RunState, Trigger};
use taskparty_common::schedule::{OccurrenceKind, Timing};
use taskparty_nats::fail_point;
use taskparty_nats::history;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::LOG_WRITER;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::Api;
use super::definitions::{job_id, refused, unreadable};
use super::problem::{Code, Problem};
use super::runs::unavailable;
use super::trigger::{fits, has_room, overlap};
use super::wire::{BackfillJob, Backfilled};
use crate::store::RunFilter;
use crate::{cursor, recover};

/// How long history may take to know what is recorded.
const TAKEN_IN: Duration = Duration::from_secs(5);

/// How often is looked.
const LOOK: Duration = Duration::from_millis(50);

/// Runs of a page of history.
const PAGE: u32 = 1000;

/// The most runs of the period that are looked at.
const MOST_RUNS: usize = 50_000;

/// Backfills a job.
pub(super) async fn backfill(api: &Api, request: BackfillJob) -> Result<Backfilled, Problem> {
    let id = job_id(&request.id)?;
    let wanted = overlap(request.overlap.as_deref())?;
    let (from, to, now) = (request.from, request.to, api.clock.now());
    if from >= to {
        return Err(Problem::field("to", Some(shown(to)), "it is not after `from`"));
    }
    if to > now {
        let problem = "it is ahead: a backfill is of the past, and what is to come fires by itself";
        return Err(Problem::field("to", Some(shown(to)), problem));
    }
    let (job, _) = api.definitions.job(id.as_str()).await?;
    fits(&job, wanted)?;
    let instants = instants(&job, from, to)?;
    let place = place(api, &job, now).await?;
    known_by_history(api).await?;
    let runs = runs(api, &job, from, to).await?;
    let (mut left, mut to_come) = (Vec::new(), 0);
    for at in &instants {
        match runs.get(at) {
            None if place.is_some_and(|place| *at > place.timestamp_millis()) => to_come += 1,
            None => left.push((*at, 0)),
            Some(known) if request.again || !known.ran => left.push((*at, known.backfills)),
            Some(_) => {}
        }
    }
    let backfill = Backfill { id: Uuid::now_v7().simple().to_string(), left };
    let answer = Backfilled {
        job: id.to_string(),
        backfill: backfill.id.clone(),
        instants: instants.len(),
        to_run: backfill.left.len(),
        left_out: instants.len() - backfill.left.len() - to_come,
        to_come,
        known: runs.values().map(|known| known.backfills as usize).sum(),
        from,
        to,
    };
    let Some((first, _)) = backfill.left.first().copied() else { return Ok(answer) };
    // Where the job may overlap itself, so may these; else they take turns, and leave nothing out.
    let policy = wanted.unwrap_or(match job.spec.overlap {
        Overlap::Allow => Overlap::Allow,
        Overlap::Queue | Overlap::Skip | Overlap::Replace => Overlap::Queue,
    });
    has_room(api).await?;
    let whose = (job.spec.app.clone(), job.spec.handler.clone());
    let at = DateTime::from_timestamp_millis(first).unwrap_or(from);
    let id = format!("backfill.{}", backfill.id);
    let kind = Trigger::Backfill;
    let trigger = TriggerRequest {
        by: request.by,
        overlap: Some(policy.as_str().to_owned()),
        backfill: Some(backfill),
        // Each instant makes a run of its own, and this none.
        ..TriggerRequest::new(id, job.spec.id.clone(), whose, kind, Uuid::nil(), at)
    };
    let body = serde_json::to_vec(&trigger)
        .map_err(|error| Problem::new(Code::Internal, error.to_string()))?;
    let draft = Draft::new(api.nats.names().trigger(&job.spec.id), body).id(&trigger.id);
    api.publisher.publish(draft).await.map_err(refused)?;
    fail_point!("api.after_backfill");
    Ok(answer)
}

fn shown(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::AutoSi, true)
}

/// Up to where the schedule has surely done with the job's instants: what it has not recorded after
/// that is still to come, because of `spread`, or as the job catches up. Nothing of a job that is paused.
async fn place(api: &Api, job: &Job, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, Problem> {
    if job.is_paused(now) {
        return Ok(None);
    }
    let marks = cursor::all(&api.buckets).await.map_err(unreadable)?;
    // Where no scheduler has been yet, the first one begins with what is due when it comes.
    let watermark = marks.values().map(|mark| mark.handled).min().unwrap_or(now);
    // In this order: a cursor is stored before a watermark passes its job.
    let lagging = cursor::of_jobs(&api.buckets).await.map_err(unreadable)?;
    let own = lagging.get(&job.spec.id);
    let own = own.and_then(|found| recover::cursor_of_past(*found, job.meta.since, now));
    let own = own.and_then(|cursor| DateTime::from_timestamp_millis(cursor.handled_ms));
    Ok(Some(recover::place(job, own.unwrap_or(watermark).min(watermark).min(now))))
}

/// Waits until history knows all that is recorded by now.
async fn known_by_history(api: &Api) -> Result<(), Problem> {
    let js = api.nats.js();
    let stream = api.nats.names().results_stream();
    let last = history::stream_info(js, &stream).await.map_err(unreadable)?.last_seq;
    if last == 0 {
        return Ok(());
    }
    let end = Instant::now() + TAKEN_IN;
    loop {
        let writer = history::consumer_info(js, &stream, LOG_WRITER).await.map_err(unreadable)?;
        let behind = match &writer {
            Some(writer) if writer.ack_floor >= last => return Ok(()),
            Some(writer) if writer.pending == 0 && writer.ack_pending == 0 => return Ok(()),
            Some(writer) => writer.pending + writer.ack_pending,
            None => last,
        };
        if Instant::now() >= end {
            return Err(Problem::unavailable(format!(
                "history has yet to take in {behind} messages of what happened, so it cannot be said which instants ran: see that a log writer runs, and try again"
            )));
        }
        sleep(LOOK).await;
    }
}

/// The job's instants in the period, in milliseconds.
fn instants(job: &Job, from: DateTime<Utc>, to: DateTime<Utc>) -> Result<Vec<i64>, Problem> {
    let Some(schedule) = &job.spec.schedule else {
        return Err(Problem::new(
            Code::Conflict,
            format!(
                "job {} has no schedule, so it has no instants to run: trigger it",
                job.spec.id
            ),
        ));
    };
    if matches!(schedule.timing(), Timing::FixedDelay(_)) {
        return Err(Problem::new(
            Code::Conflict,
            format!(
                "job {} has a fixed delay: its instants hang on when its runs ended, so there are none to make up for",
                job.spec.id
            ),
        ));
    }
    let before = from - TimeDelta::milliseconds(1);
    let all: Vec<i64> = schedule
        .upcoming(job.meta.anchor, before)
        .take_while(|occurrence| occurrence.at < to)
        .filter(|occurrence| occurrence.at >= from && occurrence.kind == OccurrenceKind::Fire)
        .map(|occurrence| occurrence.at.timestamp_millis())
        .take(MAX_INSTANTS + 1)
        .collect();
    if all.len() > MAX_INSTANTS {
        let reached = all.get(MAX_INSTANTS).copied().and_then(DateTime::from_timestamp_millis);
        let reached = reached.map(shown).unwrap_or_default();
        let problem = format!(
            "the period has more than {MAX_INSTANTS} instants, the limit of one backfill, which are reached at {reached}: make several of shorter periods"
        );
        return Err(Problem {
            code: Code::TooLarge,
            ..Problem::field("to", Some(shown(to)), problem)
        });
    }
    Ok(all)
}

/// What history knows of an instant.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    ran: bool,
    backfills: u32,
}

async fn runs(
    api: &Api,
    job: &Job,
    from: DateTime<Utc>,
    to: DateTime<Utc>,
) -> Result<BTreeMap<i64, Known>, Problem> {
    let store = api.history.store().await?;
    let mut filter = RunFilter {
        job: Some(job.spec.id.clone()),
        since: Some(from),
        until: Some(to),
        limit: Some(PAGE),
        ..RunFilter::default()
    };
    let mut known: BTreeMap<i64, Known> = BTreeMap::new();
    let mut seen = 0;
    loop {
        let page = store.runs(&filter).await.map_err(unavailable)?;
        for run in &page.items {
            let Some(at) = run.fire_time else { continue };
            let known = known.entry(at.timestamp_millis()).or_default();
            known.backfills += u32::from(run.trigger == Some(Trigger::Backfill));
            // One that never began has not run; one that goes on, or waits, is going to.
            known.ran |= !matches!(run.state, RunState::Skipped | RunState::NotStarted);
        }
        seen += page.items.len();
        let Some(next) = page.next else { return Ok(known) };
        if seen >= MOST_RUNS {
            let detail = format!(
                "the period has more than {MOST_RUNS} runs of job {}: make several backfills of shorter periods",
                job.spec.id
            );
            return Err(Problem::new(Code::TooLarge, detail));
        }
        filter.after = next.parse().ok();
    }
}
