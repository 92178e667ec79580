//! Whatever becomes of work, there is one result that says it.

use std::time::Duration;

use serde_json::{Value, json};
use taskparty_common::dispatch::{Cancel, MAX_MESSAGE, MAX_OUTPUT};
use taskparty_common::name::Handler;
use taskparty_common::outcome::{Code, Outcome};
use uuid::Uuid;

use super::expect;
use crate::site::{JOB, Site, until};
use crate::subject::Subject;

/// A handler gets all it is due and its output is kept; fields that nobody knows are ignored.
pub async fn success_with_output_and_log(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let mut work = site.work("echo", json!({"day": "2027-01-31", "of": [1, 2.5, "日本"]}));
    work["shard"] = json!({"index": 2, "total": 5, "param": "south"});
    work["attempt"] = json!(4);
    let result = site.outcome(&work).await;
    expect(&result, Outcome::Succeeded, None);
    let output: Value = serde_json::from_str(result.output.unwrap().get()).unwrap();
    assert_eq!(output["params"], work["params"]);
    assert_eq!(output["key"], work["idempotency_key"]);
    assert_eq!(output["shard"], work["shard"]);
    assert_eq!((&output["attempt"], &output["delivery"]), (&json!(4), &json!(1)));
    assert_eq!((result.shard.index, result.shard.total, result.attempt), (2, 5, 4));
    assert_eq!((result.job.as_str(), result.delivery), (JOB, 1));
    assert_eq!(result.instance, executor.instance);
    assert_eq!(json!(result.fire_time), work["fire_time"]);
    assert!(result.started_at.unwrap() <= result.finished_at && !result.truncated);

    let subject = format!("taskparty.log.{}.{JOB}", site.app);
    let lines = until("a line in the log", async || {
        site.stored(site.nats.names().logs_stream(), subject.clone()).await.pop()
    })
    .await;
    assert_eq!(&lines.payload[..], b"echo");
    let headers = lines.headers.unwrap();
    let header = |name: &str| headers.get(name).unwrap().as_str().to_owned();
    assert_eq!(header("Taskparty-Run"), result.run.to_string());
    assert_eq!((header("Taskparty-Shard"), header("Taskparty-Attempt")), ("2".into(), "4".into()));
    assert_eq!(header("Taskparty-Level"), "info");
    executor.stop().await;
}

/// Every way to fail is told apart, and none stops the executor.
pub async fn failures_are_told_apart(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    for (handler, params, code, said, retryable) in [
        ("fail", json!("later"), Code::HandlerError, "later", true),
        ("fatal", json!("ever"), Code::HandlerError, "ever", false),
        ("panic", json!(null), subject.panic, "", true),
        ("sleep", json!({"ms": "long"}), Code::BadParams, "ms", false),
        ("sleep", json!(null), Code::BadParams, "", false),
        ("fail", json!("still here"), Code::HandlerError, "still here", true),
    ] {
        let result = site.outcome(&site.work(handler, params)).await;
        expect(&result, Outcome::Failed, code);
        assert!(result.message.contains(said) && !result.message.is_empty(), "{result:?}");
        assert_eq!(result.retryable, retryable, "{result:?}");
    }
    executor.stop().await;
}

/// What is too long for a result is cut to what fits, and marked.
pub async fn what_is_too_long_is_cut_and_marked(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let result = site.outcome(&site.work("echo", json!("é\"\\\u{0}".repeat(20_000)))).await;
    expect(&result, Outcome::Succeeded, None);
    let output = result.output.unwrap();
    assert!(result.truncated && output.get().len() <= MAX_OUTPUT, "{}", output.get().len());
    let beginning: String = serde_json::from_str(output.get()).unwrap();
    assert!(beginning.starts_with('{') && beginning.len() > MAX_OUTPUT / 4, "{}", beginning.len());

    let result = site.outcome(&site.work("fail", json!("😀".repeat(10_000)))).await;
    expect(&result, Outcome::Failed, Code::HandlerError);
    assert!(result.truncated && result.message.len() <= MAX_MESSAGE);
    assert!(result.message.contains("😀😀") && result.message.len() > MAX_MESSAGE - 64);
    executor.stop().await;
}

/// At its timeout a handler is stopped.
pub async fn timeout(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let mut work = site.work("sleep", json!({"ms": 600_000}));
    work["timeout_ms"] = json!(300);
    let result = site.outcome(&work).await;
    expect(&result, Outcome::TimedOut, Code::Timeout);
    assert!(result.retryable);
    let mut work = site.work("sleep", json!({"ms": 1}));
    work["timeout_ms"] = json!(60_000);
    expect(&site.outcome(&work).await, Outcome::Succeeded, None);
    executor.stop().await;
}

/// Work that must not begin is answered, and what nobody can read is removed.
pub async fn what_cannot_begin_is_answered_or_removed(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let mut late = site.work("echo", json!(null));
    late["start_by"] = json!("2020-01-01T00:00:00Z");
    let result = site.outcome(&late).await;
    expect(&result, Outcome::NotStarted, Code::StartDeadline);
    assert!(result.started_at.is_none(), "it says that it started");

    let mut worn = site.work("echo", json!(null));
    worn["max_deliveries"] = json!(0);
    expect(&site.outcome(&worn).await, Outcome::Lost, Code::ExecutorLost);

    let echo = Handler::new("echo").unwrap();
    let strange = site.work("unheard-of", json!(null));
    let run: Uuid = serde_json::from_value(strange["run"].clone()).unwrap();
    site.put(&echo, run, strange.to_string()).await;
    expect(&site.result(run).await, Outcome::Failed, Code::UnknownHandler);

    site.put(&echo, Uuid::now_v7(), "no JSON".into()).await;
    site.wait_until_done().await;
    expect(&site.outcome(&site.work("echo", json!(1))).await, Outcome::Succeeded, None);
    executor.stop().await;
}

/// A run that is cancelled stops; others, and other shards, do not.
pub async fn cancel(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let meant = site.run("sleep", json!({"ms": 600_000})).await;
    let other = site.run("sleep", json!({"ms": 1_500})).await;
    for run in [meant, other] {
        site.started(run, 1).await;
    }
    let client = site.nats.client();
    for (run, shard) in [(other, Some(7)), (Uuid::now_v7(), None), (meant, None), (meant, None)] {
        let cancel = Cancel { run, shard, by: "alice".into() };
        let subject = site.nats.names().cancel(&site.app, run);
        client.publish(subject, serde_json::to_vec(&cancel).unwrap().into()).await.unwrap();
    }
    let result = site.result(meant).await;
    expect(&result, Outcome::Cancelled, Code::Cancelled);
    assert!(!result.retryable && result.message.contains("alice"), "{result:?}");
    expect(&site.result(other).await, Outcome::Succeeded, None);
    site.wait_until_done().await;
    tokio::time::timeout(Duration::from_secs(30), executor.stop()).await.unwrap();
}
