//! The demo's four jobs, as a job file would have them.

use serde_json::{Value, json};

use super::service::APP;

/// One that runs each 5 s.
pub(super) const HEARTBEAT: &str = "heartbeat";
/// One that fails twice and then succeeds.
pub(super) const FLAKY: &str = "flaky-import";
/// One that fails until its retries are used up, and ends in an alert.
pub(super) const FAILS: &str = "always-fails";
/// One that settles all bills, in four shards.
pub(super) const RECONCILE: &str = "reconcile-bills";

/// What is triggered at the start, so that nobody has to wait for it.
pub(super) const TRIGGERED: [&str; 3] = [FLAKY, FAILS, RECONCILE];

/// How many shards the bills are settled in.
pub(super) const SHARDS: u32 = 4;

/// All of them.
pub(super) fn all() -> Vec<Value> {
    let labels = json!({"demo": "yes"});
    let retry = |max: u32| json!({"max": max, "initial": "500ms", "factor": 2, "cap": "5s"});
    vec![
        json!({
            "id": HEARTBEAT, "title": "Each 5 seconds", "app": APP, "handler": "heartbeat",
            "schedule": {"fixed_rate": "5s"}, "overlap": "allow", "timeout": "10s", "labels": labels,
        }),
        json!({
            "id": FLAKY, "title": "Fails twice, then succeeds", "app": APP, "handler": "flakyImport",
            "schedule": {"fixed_rate": "1m"}, "overlap": "allow", "retry": retry(3), "labels": labels,
        }),
        json!({
            "id": FAILS, "title": "Always fails: ends in an alert", "app": APP, "handler": "alwaysFails",
            "schedule": {"fixed_rate": "2m"}, "overlap": "allow", "retry": retry(2), "labels": labels,
        }),
        json!({
            "id": RECONCILE, "title": "Settles 100 000 bills", "app": APP, "handler": "reconcileBills",
            "shards": SHARDS, "overlap": "allow", "retry": retry(3), "timeout": "5m", "labels": labels,
        }),
    ]
}

#[cfg(test)]
mod tests {
    use taskparty_common::job::{JobSpec, Unknown};

    #[test]
    fn the_jobs_are_valid() {
        for job in super::all() {
            JobSpec::from_json(&job, Unknown::Refuse).unwrap();
        }
    }
}
