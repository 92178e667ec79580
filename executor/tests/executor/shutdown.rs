//! The end of an executor, good and bad: no run is lost by it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use taskparty_common::outcome::Outcome;
use taskparty_executor::{Context, slots};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::rig::{Dropped, Rig, Started, assert_outcome, instance, until, within};

#[tokio::test]
async fn running_handlers_finish_inside_the_drain_time_and_no_more_work_is_taken() {
    let rig = Rig::with_lease(Duration::from_secs(1)).await;
    rig.make_consumer("wait").await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (seen, open) = (begun.clone(), go_on.clone());
    let wait = move |_: Context, _: Value| {
        let (seen, open) = (seen.clone(), open.clone());
        async move {
            seen.notify_one();
            open.acquire().await?.forget();
            Ok("finished")
        }
    };
    let executor = Started::run(rig.executor().handler("wait", wait));
    let first = rig.run("wait", json!(null)).await;
    within("the start", begun.notified()).await;
    executor.shut_down();
    let draining = async || rig.registered().await.iter().any(|entry| entry.draining).then_some(());
    until("a draining entry", draining).await;
    let second = rig.run("wait", json!(null)).await;
    // Longer than the lease: it is kept while the executor drains.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    go_on.add_permits(1);
    executor.ended().await;
    let result = rig.result(first).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.delivery, 1);
    assert_eq!(rig.left().await, 1, "the second run waits for another executor");
    assert!(rig.results(second).await.is_empty());
    assert!(rig.registered().await.is_empty(), "the registry has forgotten the instance");
}

#[tokio::test]
async fn past_the_drain_time_the_work_is_handed_back_at_once() {
    let rig = Rig::start().await;
    rig.make_consumer("wait").await;
    let (begun, dropped) = (Arc::new(Notify::new()), CancellationToken::new());
    let (seen, token) = (begun.clone(), dropped.clone());
    let wait = move |ctx: Context, _: Value| {
        let (seen, guard) = (seen.clone(), Dropped(token.clone()));
        async move {
            let _guard = guard;
            if ctx.delivery() == 1 {
                seen.notify_one();
                ctx.cancelled().await;
            }
            Ok(ctx.delivery())
        }
    };
    let executor = rig.executor().drain(Duration::from_millis(100)).handler("wait", wait.clone());
    let executor = Started::run(executor);
    let run = rig.run("wait", json!(null)).await;
    within("the start", begun.notified()).await;
    executor.stop().await;
    assert!(dropped.is_cancelled());
    assert!(rig.results(run).await.is_empty(), "half of the work is no result");
    let next = Started::run(rig.executor().instance(instance("next")).handler("wait", wait));
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!((result.delivery, result.instance), (2, instance("next")));
    next.stop().await;
}

#[tokio::test]
async fn the_work_of_a_crashed_executor_goes_to_another_when_its_lease_ends() {
    let rig = Rig::with_lease(Duration::from_secs(2)).await;
    rig.make_consumer("wait").await;
    let (begun, dropped) = (Arc::new(Notify::new()), CancellationToken::new());
    let (seen, token) = (begun.clone(), dropped.clone());
    let wait = move |ctx: Context, _: Value| {
        let (seen, guard) = (seen.clone(), Dropped(token.clone()));
        async move {
            let _guard = guard;
            if ctx.delivery() == 1 {
                seen.notify_one();
                std::future::pending::<()>().await;
            }
            Ok(ctx.delivery())
        }
    };
    let start = |name: &str| {
        let executor = rig.executor().instance(instance(name));
        Started::run(executor.handler_with("wait", slots(1), wait.clone()))
    };
    let crashing = start("crashing");
    let run = rig.run("wait", json!(null)).await;
    within("the start", begun.notified()).await;
    crashing.crash().await;
    within("the drop", dropped.cancelled()).await;
    let other = start("other");
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!((result.delivery, result.instance), (2, instance("other")));
    rig.wait_until_idle().await;
    other.stop().await;
    assert_eq!(rig.results(run).await.len(), 1);
}

#[tokio::test]
async fn an_executor_that_never_reached_nats_ends_at_once() {
    let mut rig = Rig::start().await;
    rig.server.kill();
    let idle = |_: Context, _: Value| async move { Ok(()) };
    let executor = Started::run(rig.executor().handler("idle", idle));
    executor.stop().await;
}

#[tokio::test]
async fn nats_and_the_scheduler_may_come_later() {
    let mut rig = Rig::start().await;
    rig.server.stop().await;
    let early = |_: Context, _: Value| async move { Ok(()) };
    let executor = Started::run(rig.executor().handler("early", early));
    rig.server.restart().await.unwrap();
    until("the entry", async || rig.registered().await.pop()).await;
    rig.make_consumer("early").await;
    let run = rig.run("early", json!(null)).await;
    assert_outcome(&rig.result(run).await, Outcome::Succeeded, "");
    rig.server.restart().await.unwrap();
    let run = rig.run("early", json!(null)).await;
    assert_outcome(&rig.result(run).await, Outcome::Succeeded, "");
    executor.stop().await;
}
