//! The job spec: what is read is what was meant, and what is wrong is said so that it can be mended.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use taskparty_common::job::{Invalid, Job, JobSpec, MAX_PARAMS, Unknown};

fn minimal() -> Value {
    json!({ "id": "a", "app": "shop", "handler": "settle", "overlap": "skip" })
}

fn with(fields: Value) -> Value {
    let mut spec = minimal();
    for (field, value) in fields.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

fn strict(value: &Value) -> Result<JobSpec, Invalid> {
    JobSpec::from_json(value, Unknown::Refuse)
}

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

#[test]
fn everything_that_is_written_is_read_back() {
    let full = with(json!({
        "title": "每日对账", "description": "d", "owner": "o",
        "schedule": { "cron": "0 0 2 * * ?", "timezone": "Asia/Shanghai",
            "from": "2027-01-01T00:00:00", "spread": "30s", "gap": "skip", "fold": "both" },
        "params": { "deep": [1, "two", null] },
        "shards": 2, "shard_params": ["x", { "y": 1 }],
        "misfire": { "policy": "all", "grace": "5s", "window": "2h" },
        "retry": { "max": 3, "initial": "2s", "factor": 1.5, "cap": "1m", "jitter": 0.0 },
        "max_running": 3, "rate": "100/m", "priority": 0, "pause_after_failures": 5, "then": ["b", "c"],
        "redeliveries": 0, "timeout": "none", "start_deadline": "10m", "no_executor_wait": "0s",
        "alert": { "when": [] }, "labels": { "team": "billing" }
    }));
    let routed =
        with(json!({ "shards": "executors", "route": { "by": "consistent_hash", "key": "k" } }));
    let broadcast = with(json!({ "route": "broadcast" }));
    for spec in [minimal(), full, routed, broadcast] {
        let read = strict(&spec).unwrap();
        let written = read.to_json();
        assert_eq!(strict(&written).unwrap(), read);
        assert_eq!(written, spec);
    }
}

#[test]
fn specs_that_mean_the_same_are_equal() {
    let one = with(
        json!({ "timeout": "60s", "schedule": { "cron": "@daily" }, "shards": 1, "rate": "5/60s",
        "route": { "by": "any" } }),
    );
    let two = with(json!({ "timeout": "1m", "schedule": { "cron": ["0 0 * * *"] }, "params": null,
            "rate": "5/m" }));
    assert_eq!(strict(&one).unwrap(), strict(&two).unwrap());
}

#[test]
fn a_change_of_the_schedule_begins_a_new_past_and_another_change_does_not() {
    let spec = |fields| strict(&with(fields)).unwrap();
    let job = Job::new(
        spec(json!({ "schedule": { "fixed_rate": "1m" } })),
        at("2026-01-01T00:00:00Z"),
        "a",
    );
    let later = at("2026-02-01T00:00:00Z");
    let retitled = job.with_spec(
        spec(json!({ "title": "t", "schedule": { "fixed_rate": "60s" } })),
        later,
        "b",
    );
    assert_eq!((retitled.meta.since, retitled.meta.anchor), (job.meta.since, job.meta.anchor));
    let moved = job.with_spec(spec(json!({ "schedule": { "fixed_rate": "2m" } })), later, "b");
    assert_eq!((moved.meta.since, moved.meta.anchor), (later, job.meta.anchor));
    assert_eq!(Job::from_json(&moved.to_json()).unwrap(), moved);
}

#[test]
fn a_stored_job_of_a_newer_version_is_read_and_one_of_another_format_is_not() {
    let job = Job::new(strict(&minimal()).unwrap(), at("2026-01-01T00:00:00Z"), "a");
    let mut stored = job.to_json();
    stored["spec"]["invented_later"] = json!(1);
    assert_eq!(Job::from_json(&stored).unwrap(), job);
    stored["format"] = json!(2);
    assert!(Job::from_json(&stored).unwrap_err().to_string().contains("reads format 1"));
}

#[test]
fn params_have_a_limit_to_the_byte() {
    for (length, fits) in [(MAX_PARAMS - 1, true), (MAX_PARAMS, true), (MAX_PARAMS + 1, false)] {
        let text = "x".repeat(length - 2);
        assert_eq!(strict(&with(json!({ "params": text }))).is_ok(), fits, "{length}");
    }
}

#[test]
fn errors_name_field_value_and_what_would_be_right() {
    let mistakes = [
        json!({ "schedul": {} }),
        json!({ "schedule": { "cron": "0 0 2 * * ?", "timezone": "Asia/Beijing" } }),
        json!({ "schedule": { "cron": ["0 0 2 * * ?", "0 0 25 * * ?"] } }),
        json!({ "schedule": { "cron": 5 } }),
        json!({ "schedule": {} }),
        json!({ "schedule": { "every": "5s" } }),
        json!({ "timeout": 30 }),
        json!({ "timeout": "-30s" }),
        json!({ "id": "user/234", "app": null }),
        json!({ "overlap": "queu", "queue_limit": 0 }),
        json!({ "route": "round_robbin" }),
        json!({ "route": { "by": "first", "key": "x" } }),
        json!({ "route": { "key": "x", "of": 1 } }),
        json!({ "route": ["any"] }),
        json!({ "route": "broadcast", "shards": 3, "shard_params": [1, 2, 3] }),
        json!({ "priority": 10, "then": ["b", "b"], "max_running": 0, "pause_after_failures": "3" }),
        json!({ "rate": 100 }),
        json!({ "rate": "100/min" }),
        json!({ "rate": "0/m" }),
        json!({ "rate": "5/week", "max_running": 2000 }),
        json!({ "then": ["a"] }),
        json!({ "then": "b" }),
        json!({ "then": ["b c"] }),
        json!({ "shards": "executor" }),
        json!({ "shards": "executors", "shard_params": [1] }),
        json!({ "shards": 2, "shard_params": [1] }),
        json!({ "misfire": { "policy": "onec" } }),
        json!({ "retry": { "max": -1, "jitter": 2 } }),
        json!({ "alert": { "on": ["failed"] } }),
        json!({ "alert": { "when": ["recovered"], "channels": ["ops"] } }),
        json!({ "labels": { "a b": "c" } }),
        json!({ "title": 5 }),
    ];
    let said: Vec<String> = mistakes
        .into_iter()
        .map(|mistake| format!("{mistake}\n{}", strict(&with(mistake.clone())).unwrap_err()))
        .collect();
    insta::assert_snapshot!(said.join("\n\n"));
}
