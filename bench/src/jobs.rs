//! The jobs that are measured: they do nothing, each of them when it is told to.

use anyhow::{Context, Result};
use chrono::{DateTime, SecondsFormat, TimeDelta, Timelike, Utc};
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use taskparty_common::job::{Job, JobSpec, Unknown};
use taskparty_lab::site::Site;
use taskparty_nats::subject::Bucket;

/// The app of all jobs.
pub(crate) const APP: &str = "bench";

/// Their handler.
pub(crate) const HANDLER: &str = "nothing";

/// Saves that wait for their confirmation at once.
const AT_ONCE: usize = 1024;

/// `count` jobs that are due each second from `from` on, evenly over the second.
pub(crate) fn each_second(count: usize, from: DateTime<Utc>) -> impl Iterator<Item = Value> {
    ticks(count, from, None)
}

/// The same, for so many seconds.
pub(crate) fn for_seconds(
    count: usize,
    from: DateTime<Utc>,
    seconds: u64,
) -> impl Iterator<Item = Value> {
    let length = TimeDelta::seconds(i64::try_from(seconds).unwrap_or(i64::MAX / 1000));
    ticks(count, from, Some(length))
}

fn ticks(
    count: usize,
    from: DateTime<Utc>,
    length: Option<TimeDelta>,
) -> impl Iterator<Item = Value> {
    (0..count).map(move |number| {
        let from = from + offset(number, count);
        let mut schedule = json!({ "fixed_rate": "1s", "from": text(from) });
        if let Some(length) = length {
            schedule["until"] = text(from + length).into();
        }
        job(&format!("tick-{number}"), schedule)
    })
}

/// Where in its second job `number` of `count` is due.
pub(crate) fn offset(number: usize, count: usize) -> TimeDelta {
    TimeDelta::milliseconds(i64::try_from(number * 1000 / count).unwrap_or_default())
}

fn text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// `count` jobs that are all due at `at`.
pub(crate) fn at_once(count: usize, at: DateTime<Utc>) -> impl Iterator<Item = Value> {
    let at = text(at);
    (0..count).map(move |number| job(&format!("herd-{number}"), json!({ "at": at })))
}

/// `count` jobs of which none is due before an hour from `now`: each daily, at a time of its own.
pub(crate) fn idle(count: usize, now: DateTime<Utc>) -> impl Iterator<Item = Value> {
    (0..count).map(move |number| {
        // Shanghai is eight hours ahead, all year.
        let hour = (now.hour() as usize + 8 + 2 + number % 20) % 24;
        let cron = format!("{} {} {hour} * * ?", number / 1200 % 60, number / 20 % 60);
        job(&format!("idle-{number}"), json!({ "cron": cron, "timezone": "Asia/Shanghai" }))
    })
}

fn job(id: &str, schedule: Value) -> Value {
    json!({
        "id": id, "app": APP, "handler": HANDLER, "overlap": "allow", "schedule": schedule,
        // Late is late here, and runs all the same.
        "misfire": { "policy": "all", "grace": "1h" },
    })
}

/// Saves jobs as a scheduler finds them at its start: into the bucket, without the API.
pub(crate) async fn store(
    site: &Site,
    specs: impl Iterator<Item = Value> + Send,
    now: DateTime<Utc>,
) -> Result<()> {
    futures::stream::iter(specs.map(|spec| async move {
        let spec = JobSpec::from_json(&spec, Unknown::Refuse)?;
        let key = spec.id.clone();
        let value = serde_json::to_vec(&Job::new(spec, now, "bench").to_json())?;
        site.buckets.put(Bucket::Jobs, key.as_str(), value, None).await?;
        anyhow::Ok(())
    }))
    .buffer_unordered(AT_ONCE)
    .try_collect()
    .await
    .context("saving the jobs")
}

#[cfg(test)]
mod tests {
    use taskparty_common::schedule::upcoming;

    use super::*;

    fn first(spec: &Value, now: DateTime<Utc>) -> DateTime<Utc> {
        instants(spec, now, 1)[0]
    }

    /// The first ones, so many at most.
    fn instants(spec: &Value, now: DateTime<Utc>, most: usize) -> Vec<DateTime<Utc>> {
        let job = Job::new(JobSpec::from_json(spec, Unknown::Refuse).unwrap(), now, "bench");
        let schedule = job.spec.schedule.as_ref().unwrap();
        upcoming(schedule, job.meta.anchor, now).map(|one| one.at).take(most).collect()
    }

    #[test]
    fn each_job_is_due_when_it_is_meant_to_be() {
        let now: DateTime<Utc> = "2027-05-05T17:59:59.5Z".parse().unwrap();
        for spec in idle(5_000, now) {
            let wait = first(&spec, now) - now;
            assert!(wait > TimeDelta::hours(1), "{spec}: {wait}");
        }
        let from = now + TimeDelta::seconds(5);
        let due: Vec<_> = each_second(4, from).map(|spec| first(&spec, now) - from).collect();
        assert_eq!(due, [0, 250, 500, 750].map(TimeDelta::milliseconds));
        for spec in for_seconds(4, from, 3) {
            assert_eq!(instants(&spec, now, 10).len(), 3, "{spec}");
        }
        assert!(at_once(3, from).all(|spec| first(&spec, now) == from));
    }
}
