//! The jobs: schedules of all kinds, and handlers that take their time, fail and hang.
//!
//! Pure. A mix is a number of fires a second, divided over kinds; each kind has as many jobs as its
//! share needs at its period.

use serde_json::{Value, json};

/// The app of all jobs.
pub const APP: &str = "chaos";

/// Jobs that are only triggered: [`crate::triggers`] does.
pub const ON_DEMAND: usize = 5;

/// How many jobs get which share of the fires, and what they are.
struct Kind {
    name: &'static str,
    /// Of a thousand fires.
    share: f64,
    /// Seconds between two fires of one job.
    period: f64,
    handler: &'static str,
    schedule: fn() -> Value,
    more: fn() -> Value,
}

/// Nothing may be left out silently, nor by policy: every missed instant is made up for.
fn all() -> Value {
    json!({ "policy": "all", "grace": "10s", "window": "1h" })
}

fn every(rate: &str) -> Value {
    json!({ "fixed_rate": rate })
}

#[rustfmt::skip]
const KINDS: &[Kind] = &[
    Kind { name: "tick", share: 360.0, period: 1.0, handler: "quick",
        schedule: || json!({ "cron": "* * * * * ?" }), more: || json!({ "misfire": all() }) },
    Kind { name: "often", share: 120.0, period: 0.7, handler: "quick",
        schedule: || every("700ms"), more: || json!({ "misfire": all() }) },
    Kind { name: "oftener", share: 60.0, period: 0.333, handler: "quick",
        schedule: || every("333ms"), more: || json!({ "misfire": all() }) },
    Kind { name: "odd", share: 80.0, period: 7.0, handler: "quick",
        schedule: || every("7s"), more: || json!({ "misfire": all() }) },
    Kind { name: "spread", share: 40.0, period: 5.0, handler: "quick",
        schedule: || json!({ "cron": "*/5 * * * * ?", "spread": "4s" }), more: || json!({ "misfire": all() }) },
    Kind { name: "chain", share: 60.0, period: 1.2, handler: "work",
        schedule: || json!({ "fixed_delay": "1s" }), more: || json!({ "params": 50, "misfire": all() }) },
    Kind { name: "shards", share: 30.0, period: 4.0, handler: "quick",
        schedule: || every("4s"), more: || json!({ "shards": 4, "misfire": all() }) },
    Kind { name: "flaky", share: 50.0, period: 3.0, handler: "flaky",
        schedule: || every("3s"), more: || json!({ "params": 2, "misfire": all(),
            "retry": { "max": 3, "initial": "500ms" }, "shards": 2 }) },
    Kind { name: "hopeless", share: 20.0, period: 5.0, handler: "flaky",
        schedule: || every("5s"), more: || json!({ "params": 99, "misfire": all(), "alert": { "when": [] },
            "retry": { "max": 2, "initial": "300ms" } }) },
    Kind { name: "slow", share: 90.0, period: 2.0, handler: "work",
        schedule: || json!({ "cron": "*/2 * * * * ?" }), more: || json!({ "params": 300, "misfire": all() }) },
    Kind { name: "lease", share: 10.0, period: 11.0, handler: "work",
        schedule: || every("11s"), more: || json!({ "params": 5_200, "misfire": all(), "redeliveries": 20 }) },
    Kind { name: "hangs", share: 20.0, period: 6.0, handler: "work",
        schedule: || every("6s"), more: || json!({ "params": 60_000, "timeout": "800ms", "misfire": all(),
            "alert": { "when": [] }, "retry": { "max": 1, "initial": "200ms" } }) },
    Kind { name: "once", share: 30.0, period: 2.0, handler: "quick",
        schedule: || every("2s"), more: || json!({ "misfire": { "policy": "once", "grace": "1s" } }) },
    Kind { name: "skip", share: 30.0, period: 2.0, handler: "quick",
        schedule: || json!({ "cron": "*/2 * * * * ?" }), more: || json!({ "misfire": { "policy": "skip", "grace": "1s" } }) },
];

/// Specs of jobs that fire about `rate` times a second all together, and of those on demand.
pub fn jobs(rate: f64) -> Vec<Value> {
    let whole: f64 = KINDS.iter().map(|kind| kind.share).sum();
    let mut jobs = Vec::new();
    for kind in KINDS {
        let count = (rate * kind.share / whole * kind.period).round().max(1.0);
        // Small and positive.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let count = count as usize;
        for number in 0..count {
            let mut job = job(&format!("{}-{number}", kind.name), kind.handler);
            job["schedule"] = (kind.schedule)();
            extend(&mut job, &(kind.more)());
            jobs.push(job);
        }
    }
    for number in 0..ON_DEMAND {
        let mut job = job(&on_demand(number), "flaky");
        let more = json!({ "params": number % 2, "retry": { "max": 2, "initial": "200ms" } });
        extend(&mut job, &more);
        jobs.push(job);
    }
    jobs
}

/// The id of a job on demand.
pub fn on_demand(number: usize) -> String {
    format!("asked-{number}")
}

/// `count` jobs that do nothing, each second.
pub fn ticks(count: usize) -> Vec<Value> {
    let tick = |number| {
        let mut job = job(&format!("tick-{number}"), "quick");
        extend(&mut job, &json!({ "schedule": every("1s"), "misfire": all() }));
        job
    };
    (0..count).map(tick).collect()
}

fn job(id: &str, handler: &str) -> Value {
    json!({ "id": id, "app": APP, "handler": handler, "overlap": "allow", "redeliveries": 8 })
}

fn extend(job: &mut Value, more: &Value) {
    for (field, value) in more.as_object().into_iter().flatten() {
        job[field] = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use taskparty_common::job::{JobSpec, Unknown};

    use super::*;

    #[test]
    fn every_job_of_the_mix_is_a_job_and_the_rate_is_what_was_asked_for() {
        let jobs = jobs(200.0);
        let mut ids = std::collections::BTreeSet::new();
        for job in &jobs {
            let spec = JobSpec::from_json(job, Unknown::Refuse).unwrap();
            assert!(ids.insert(spec.id.to_string()));
        }
        let whole: f64 = KINDS.iter().map(|kind| kind.share).sum();
        let fires = |kind: &Kind| {
            let of_kind = ids.iter().filter(|id| id.starts_with(&format!("{}-", kind.name)));
            of_kind.count() as f64 / kind.period
        };
        assert!((whole - 1000.0).abs() < 0.1, "{whole}");
        let rate: f64 = KINDS.iter().map(fires).sum();
        assert!((190.0..=210.0).contains(&rate), "{rate}");
    }
}
