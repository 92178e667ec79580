//! Whatever a handler does, its run ends, with an outcome that says what it was.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskparty_common::dispatch::{Cancel, MAX_MESSAGE, MAX_OUTPUT};
use taskparty_common::name::Handler;
use taskparty_common::outcome::Outcome;
use taskparty_executor::{Context, HandlerError, slots};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::rig::{Dropped, Rig, Started, assert_outcome, instance, until, within};

#[derive(Deserialize)]
struct Bill {
    amount: u64,
}

#[derive(Serialize)]
struct Settled {
    total: u64,
    shard: (u32, u32),
    region: Option<String>,
    key: String,
    delivery: u64,
    attempt: u32,
}

#[tokio::test]
async fn a_handler_gets_typed_params_and_its_output_is_recorded() {
    let rig = Rig::start().await;
    rig.make_consumer("settle").await;
    let settle = |ctx: Context, bill: Bill| async move {
        Ok(Settled {
            total: bill.amount * 2,
            shard: (ctx.shard_index(), ctx.shard_total()),
            region: ctx.shard_param()?,
            key: ctx.idempotency_key().to_owned(),
            delivery: ctx.delivery(),
            attempt: ctx.attempt(),
        })
    };
    let executor = rig.executor().instance(instance("one")).handler("settle", settle);
    let executor = Started::run(executor);
    let mut work = rig.work("settle", json!({"amount": 21, "unknown": true}));
    work["shard"] = json!({"index": 2, "total": 5, "param": "south"});
    work["attempt"] = json!(4);
    let result = rig.outcome(&work).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    let output: Value = serde_json::from_str(result.output.unwrap().get()).unwrap();
    let key = work["idempotency_key"].clone();
    assert_eq!(
        output,
        json!({"total": 42, "shard": [2, 5], "region": "south", "key": key, "delivery": 1, "attempt": 4})
    );
    assert_eq!((result.shard.index, result.shard.total, result.attempt), (2, 5, 4));
    assert_eq!((result.delivery, result.instance), (1, instance("one")));
    assert_eq!(json!(result.fire_time), work["fire_time"]);
    assert!(result.started_at.unwrap() <= result.finished_at);
    assert!(rig.records("started").await.is_empty(), "a short run is not announced");
    executor.stop().await;
}

async fn misbehaves(_: Context, how: String) -> Result<Value, HandlerError> {
    match how.as_str() {
        "io error" => Err(std::io::Error::other("the disk is full"))?,
        "retry" => Err(HandlerError::retry("later")),
        "fatal" => Err(HandlerError::fatal("never")),
        "panic" => panic!("the till is {}", "open"),
        "spawn and panic" => {
            tokio::spawn(async { panic!("in a task") }).await?;
            unreachable!("the task panics")
        }
        "spawn, forget and panic" => {
            drop(tokio::spawn(async { panic!("unseen") }));
            Ok(Value::Null)
        }
        "5 MB" => Ok(json!({"bill": "😀".repeat(5_000_000 / 4)})),
        "nul" => Ok(json!("\0")),
        "long error" => Err(HandlerError::retry("😀".repeat(70_000))),
        other => panic!("unknown: {other}"),
    }
}

#[tokio::test]
async fn every_way_to_fail_is_told_apart_and_stops_nothing() {
    let rig = Rig::start().await;
    rig.make_consumer("misbehave").await;
    let executor = Started::run(rig.executor().handler("misbehave", misbehaves));
    for (how, outcome, code, message, retryable) in [
        ("io error", Outcome::Failed, "handler_error", "the disk is full", true),
        ("retry", Outcome::Failed, "handler_error", "later", true),
        ("fatal", Outcome::Failed, "handler_error", "never", false),
        ("panic", Outcome::Failed, "handler_panic", "the till is open", true),
        ("spawn and panic", Outcome::Failed, "handler_error", "in a task", true),
        ("spawn, forget and panic", Outcome::Succeeded, "", "", true),
    ] {
        let result = rig.outcome(&rig.work("misbehave", json!(how))).await;
        assert_outcome(&result, outcome, code);
        assert!(result.message.contains(message), "{how}: {}", result.message);
        assert_eq!(result.retryable, retryable, "{how}");
        assert!(!result.truncated);
    }
    executor.stop().await;
}

#[tokio::test]
async fn what_is_too_long_is_cut_and_marked() {
    let rig = Rig::start().await;
    rig.make_consumer("misbehave").await;
    let executor = Started::run(rig.executor().handler("misbehave", misbehaves));
    let result = rig.outcome(&rig.work("misbehave", json!("5 MB"))).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    let output = result.output.unwrap();
    assert!(result.truncated && output.get().len() <= MAX_OUTPUT);
    let beginning: String = serde_json::from_str(output.get()).unwrap();
    assert!(beginning.starts_with(r#"{"bill":"😀😀"#) && beginning.len() > MAX_OUTPUT / 2);

    let result = rig.outcome(&rig.work("misbehave", json!("long error"))).await;
    assert_outcome(&result, Outcome::Failed, "handler_error");
    assert!(result.truncated && result.message.len() <= MAX_MESSAGE);
    assert!(result.message.starts_with("😀😀") && result.message.ends_with('…'));

    let result = rig.outcome(&rig.work("misbehave", json!("nul"))).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.output.unwrap().get(), r#""\u0000""#);
    executor.stop().await;
}

#[tokio::test]
async fn params_that_do_not_fit_never_reach_the_handler_and_are_not_tried_again() {
    let rig = Rig::start().await;
    rig.make_consumer("settle").await;
    let settle = |_: Context, bill: Bill| async move { Ok(bill.amount) };
    let executor = Started::run(rig.executor().handler("settle", settle));
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    for params in [json!({}), json!({"amount": -1}), json!(null), json!(deep)] {
        let result = rig.outcome(&rig.work("settle", params)).await;
        assert_outcome(&result, Outcome::Failed, "bad_params");
        assert!(!result.retryable && result.message.contains("Bill"), "{}", result.message);
    }
    let result = rig.outcome(&rig.work("settle", json!({}))).await;
    assert!(result.message.contains("missing field `amount`"), "{}", result.message);
    executor.stop().await;
}

#[tokio::test]
async fn work_that_cannot_be_begun_is_answered_or_removed() {
    let rig = Rig::start().await;
    rig.make_consumer("settle").await;
    let settle = |_: Context, _: Value| async move { Ok(()) };
    let executor = Started::run(rig.executor().handler("settle", settle));

    let mut late = rig.work("settle", json!(null));
    late["start_by"] = json!("2020-01-01T00:00:00Z");
    assert_outcome(&rig.outcome(&late).await, Outcome::NotStarted, "start_deadline");

    let mut worn = rig.work("settle", json!(null));
    worn["max_deliveries"] = json!(0);
    assert_outcome(&rig.outcome(&worn).await, Outcome::Lost, "executor_lost");

    let settle = Handler::new("settle").unwrap();
    let strange = rig.work("unheard-of", json!(null));
    let run: Uuid = strange["run"].as_str().unwrap().parse().unwrap();
    rig.put(&settle, run, strange.to_string()).await;
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Failed, "unknown_handler");
    assert!(result.message.contains("unheard-of") && result.retryable);

    let mut broken = rig.work("settle", json!(null));
    broken["lease_ms"] = json!("a while");
    let result = rig.outcome(&broken).await;
    assert_outcome(&result, Outcome::Failed, "bad_params");
    assert!(result.message.contains("a while") && !result.retryable, "{}", result.message);

    let before = rig.records("result").await.len();
    rig.put(&settle, Uuid::now_v7(), "not even JSON").await;
    rig.wait_until_idle().await;
    assert_eq!(rig.records("result").await.len(), before);
    executor.stop().await;
}

/// A handler that waits until its future is dropped, and the token that says that it was.
fn endless(
    begun: &Arc<Notify>,
) -> (CancellationToken, impl Fn(Context, Value) -> EndlessFuture + use<>) {
    let dropped = CancellationToken::new();
    let (begun, token) = (begun.clone(), dropped.clone());
    let handler = move |_: Context, _: Value| -> EndlessFuture {
        let guard = Dropped(token.clone());
        begun.notify_one();
        Box::pin(async move {
            let _guard = guard;
            std::future::pending().await
        })
    };
    (dropped, handler)
}

type EndlessFuture = futures::future::BoxFuture<'static, Result<(), HandlerError>>;

#[tokio::test]
async fn past_its_timeout_a_handler_is_dropped() {
    let rig = Rig::start().await;
    rig.make_consumer("endless").await;
    let (dropped, handler) = endless(&Arc::default());
    let executor = Started::run(rig.executor().handler("endless", handler));
    let mut work = rig.work("endless", json!(null));
    work["timeout_ms"] = json!(400);
    let result = rig.outcome(&work).await;
    assert_outcome(&result, Outcome::TimedOut, "timeout");
    assert!(result.message.contains("400 ms") && result.retryable);
    within("the drop", dropped.cancelled()).await;
    let started = until("the announcement", async || rig.records("started").await.pop()).await;
    assert_eq!(started["run"], work["run"]);
    assert_eq!(started["delivery"], 1);
    executor.stop().await;
}

#[tokio::test]
async fn a_cancelled_run_ends_once_however_often_it_is_asked() {
    let rig = Rig::start().await;
    rig.make_consumer("endless").await;
    let begun = Arc::new(Notify::new());
    let (dropped, handler) = endless(&begun);
    let executor = Started::run(rig.executor().handler("endless", handler));
    let run = rig.run("endless", json!(null)).await;
    within("the start", begun.notified()).await;
    let ask = async |run: Uuid, shard: Option<u32>| {
        let cancel = Cancel { run, shard, by: "ada".into() };
        let body = serde_json::to_vec(&cancel).unwrap();
        rig.nats
            .client()
            .publish(rig.nats.names().cancel(&rig.app, run), body.into())
            .await
            .unwrap();
        rig.nats.client().flush().await.unwrap();
    };
    ask(Uuid::now_v7(), None).await;
    ask(run, Some(7)).await;
    for _ in 0..3 {
        ask(run, Some(0)).await;
    }
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Cancelled, "cancelled");
    assert!(result.message.contains("ada") && !result.retryable);
    within("the drop", dropped.cancelled()).await;
    rig.wait_until_idle().await;
    ask(run, None).await;
    executor.stop().await;
    assert_eq!(rig.results(run).await.len(), 1);
}

#[tokio::test]
async fn a_cancelled_handler_may_tidy_up_and_what_it_returns_does_not_count() {
    let rig = Rig::start().await;
    rig.make_consumer("polite").await;
    let begun = Arc::new(Notify::new());
    let tidied = CancellationToken::new();
    let (seen, done) = (begun.clone(), tidied.clone());
    let polite = move |ctx: Context, _: Value| {
        let (seen, done) = (seen.clone(), done.clone());
        async move {
            seen.notify_one();
            ctx.cancelled().await;
            done.cancel();
            Ok("half of it")
        }
    };
    let executor = Started::run(rig.executor().handler("polite", polite));
    let run = rig.run("polite", json!(null)).await;
    within("the start", begun.notified()).await;
    let body = json!({"run": run}).to_string();
    rig.nats.client().publish(rig.nats.names().cancel(&rig.app, run), body.into()).await.unwrap();
    assert_outcome(&rig.result(run).await, Outcome::Cancelled, "cancelled");
    assert!(tidied.is_cancelled());
    executor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_its_thread_keeps_its_lease_and_still_times_out() {
    let rig = Rig::with_lease(Duration::from_secs(2)).await;
    rig.make_consumer("block").await;
    let opened = CancellationToken::new();
    let gate = opened.clone();
    // It also talks, which must not tie the executor's own tasks to the blocked thread.
    let block = move |ctx: Context, ms: u64| {
        let gate = gate.clone();
        async move {
            for step in 0..ms / 10 {
                if gate.is_cancelled() {
                    break;
                }
                ctx.progress(step, ms, "blocking");
                ctx.info("blocking");
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(ctx.delivery())
        }
    };
    let executor = Started::run(rig.executor().handler_with("block", slots(1), block));
    let result = rig.outcome(&rig.work("block", json!(5_000))).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.output.unwrap().get(), "1");
    // The result is there while the handler is still at work: it only ends when the gate opens.
    let mut work = rig.work("block", json!(600_000));
    work["timeout_ms"] = json!(300);
    let result = rig.outcome(&work).await;
    assert_outcome(&result, Outcome::TimedOut, "timeout");
    assert!(result.message.ends_with("may still be at work"), "{}", result.message);
    opened.cancel();
    executor.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn a_handler_that_blocks_its_thread_and_ignores_its_cancel_is_reported_as_such() {
    let rig = Rig::start().await;
    rig.make_consumer("deaf").await;
    let begun = Arc::new(Notify::new());
    let opened = CancellationToken::new();
    let (seen, gate) = (begun.clone(), opened.clone());
    let deaf = move |_: Context, (): ()| {
        let (seen, gate) = (seen.clone(), gate.clone());
        async move {
            seen.notify_one();
            while !gate.is_cancelled() {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok("all of it")
        }
    };
    let executor = Started::run(rig.executor().handler_with("deaf", slots(1), deaf));
    let run = rig.run("deaf", json!(null)).await;
    within("the start", begun.notified()).await;
    let next = rig.run("deaf", json!(null)).await;
    let cancel = serde_json::to_vec(&Cancel { run, shard: None, by: "ada".into() }).unwrap();
    let subject = rig.nats.names().cancel(&rig.app, run);
    rig.nats.client().publish(subject, cancel.into()).await.unwrap();
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Cancelled, "cancelled");
    assert!(result.message.contains("ada"), "{}", result.message);
    assert!(result.message.ends_with("may still be at work"), "{}", result.message);
    until("the end of its lease", async || (rig.left().await == 1).then_some(())).await;
    assert!(rig.results(next).await.is_empty(), "it keeps its slot until it lets go");
    opened.cancel();
    assert_outcome(&rig.result(next).await, Outcome::Succeeded, "");
    rig.wait_until_idle().await;
    assert_eq!(rig.results(run).await.len(), 1, "what it returns then does not count");
    executor.stop().await;
}
