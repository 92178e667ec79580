//! `job.list`, `job.get`, `job.next`: looking at jobs.

use chrono::{DateTime, Utc};
use taskparty_common::duration;
use taskparty_common::fire::TriggerRequest;
use taskparty_common::job::Job;
use taskparty_common::schedule::{OccurrenceKind, Timing};
use taskparty_nats::history;

use super::Api;
use super::apply::fires;
use super::definitions::{Stored, job_id, unreadable};
use super::problem::Problem;
use super::runs::page_size;
use super::wire::{JobView, ListJobs, NextFires, OneJob, Page, Upcoming, UpcomingFire};

/// How many jobs a page has when nothing is said, and at most.
const PAGE: usize = 100;
const MOST: usize = 1_000;

/// An answer must fit into one message; the rest is for the headers around it.
const MOST_BYTES: usize = 700 * 1024;

/// How many fires at most.
const MOST_FIRES: usize = 1_000;

/// The jobs that the filters let through, by id.
pub(super) async fn list(api: &Api, request: ListJobs) -> Result<Page<JobView>, Problem> {
    let limit = page_size(request.limit, PAGE, MOST)?;
    let mut page = Page { items: Vec::new(), next: None };
    let mut bytes = 0;
    for (id, stored) in api.definitions.all().await? {
        if request.after.as_ref().is_some_and(|after| id <= *after) {
            continue;
        }
        let Some(view) = view(api, &id, &stored).filter(|view| wanted(&request, view)) else {
            continue;
        };
        bytes += stored.body.as_ref().map_or(0, bytes::Bytes::len) + 200;
        if page.items.len() == limit || (bytes > MOST_BYTES && !page.items.is_empty()) {
            page.next = page.items.last().map(|last: &JobView| last.id.clone());
            break;
        }
        page.items.push(view);
    }
    Ok(page)
}

fn wanted(request: &ListJobs, view: &JobView) -> bool {
    let field = |field: &str| view.spec.as_ref().and_then(|spec| spec.get(field));
    let text_is = |name: &str, wanted: &Option<String>| {
        wanted.as_ref().is_none_or(|wanted| field(name).and_then(|v| v.as_str()) == Some(wanted))
    };
    // What is broken has no labels that could be read; it is shown where nothing is asked of it.
    let labelled = request.labels.iter().all(|(name, text)| {
        field("labels").and_then(|labels| labels.get(name)).and_then(|v| v.as_str()) == Some(text)
    });
    labelled
        && text_is("app", &request.app)
        && text_is("handler", &request.handler)
        && request.paused.is_none_or(|paused| view.broken.is_none() && view.paused == paused)
}

/// One job.
pub(super) async fn get(api: &Api, request: OneJob) -> Result<JobView, Problem> {
    let id = job_id(&request.id)?;
    let stored = api.definitions.read(&id).await?;
    view(api, id.as_str(), &stored).ok_or_else(|| Problem::no_job(id.as_str()))
}

/// A stored job for people; none when it is deleted. A broken one is shown as broken.
fn view(api: &Api, id: &str, stored: &Stored) -> Option<JobView> {
    let now = api.clock.now();
    let base = JobView {
        id: id.into(),
        revision: stored.revision,
        spec: None,
        meta: None,
        paused: false,
        next_fire: None,
        broken: None,
    };
    Some(match stored.job()? {
        Err(why) => JobView { broken: Some(why), ..base },
        Ok(job) if job.spec.id.as_str() != id => JobView {
            broken: Some(format!("it is stored as {id} and calls itself {}", job.spec.id)),
            ..base
        },
        Ok(job) => JobView {
            paused: job.is_paused(now),
            next_fire: fires(&job, now).first().copied(),
            spec: Some(job.spec.to_json()),
            meta: Some(job.meta),
            ..base
        },
    })
}

/// The upcoming fires of a job.
pub(super) async fn next(api: &Api, request: NextFires) -> Result<Upcoming, Problem> {
    let (job, _) = api.definitions.job(&request.id).await?;
    let now = api.clock.now();
    let after = request.after.unwrap_or(now);
    let n = request.n.unwrap_or(5).min(MOST_FIRES);
    let mut items = Vec::new();
    let mut after_each_run = None;
    if let Some(schedule) = &job.spec.schedule {
        let zone = schedule.timezone();
        if let Timing::FixedDelay(delay) = schedule.timing() {
            after_each_run = Some(duration::format(*delay));
            let next = match chained(api, &job).await? {
                Some(next) => Some(next),
                None => schedule.first_delayed(job.meta.since),
            };
            let next = next.filter(|next| *next > after && n > 0);
            items.extend(next.map(|at| UpcomingFire::at(at, zone)));
        }
        items.extend(schedule.upcoming(job.meta.anchor, after).take(n).map(|occurrence| {
            let skipped = occurrence.kind == OccurrenceKind::Gap;
            UpcomingFire { skipped, ..UpcomingFire::at(occurrence.at, zone) }
        }));
    }
    Ok(Upcoming {
        id: request.id,
        timezone: job.spec.timezone().into(),
        paused: job.is_paused(now),
        after_each_run,
        items,
    })
}

/// When the next run of a fixed delay is due, where one waits for its time.
async fn chained(api: &Api, job: &Job) -> Result<Option<DateTime<Utc>>, Problem> {
    let names = api.nats.names();
    let (stream, subject) = (names.triggers_stream(), names.next_delay(&job.spec.id));
    let waits = history::last_by_subject(api.nats.js(), &stream, &subject);
    let record = waits.await.map_err(unreadable)?;
    let trigger: Option<TriggerRequest> =
        record.and_then(|record| serde_json::from_slice(&record.payload).ok());
    // One of an earlier past of the job will fire nothing. History keeps milliseconds.
    let past = job.meta.since.timestamp_millis();
    let ours = |next: &TriggerRequest| next.since.is_some_and(|at| at.timestamp_millis() == past);
    Ok(trigger.filter(ours).map(|next| next.at))
}
