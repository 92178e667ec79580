//! Two holders of one lease never run at once, and the one that lost it says nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use taskparty_common::outcome::Outcome;
use taskparty_executor::{Context, Executor, HandlerError, slots};
use taskparty_nats::proxy::Proxy;
use tokio::sync::Notify;

use crate::rig::{Rig, Started, assert_outcome, instance, within};

const LEASE: Duration = Duration::from_secs(3);

/// Runs for ever at the first delivery, and counts how many run at once.
#[derive(Clone, Default)]
struct Watched {
    begun: Arc<Notify>,
    ended: Arc<Notify>,
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Inside(Watched);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.now.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_one();
    }
}

impl Watched {
    fn handler(&self) -> impl Fn(Context, Value) -> WatchedFuture + Clone + use<> {
        let watched = self.clone();
        move |ctx, _| {
            let watched = watched.clone();
            Box::pin(async move {
                let now = watched.now.fetch_add(1, Ordering::SeqCst) + 1;
                watched.most.fetch_max(now, Ordering::SeqCst);
                let _inside = Inside(watched.clone());
                watched.begun.notify_one();
                if ctx.delivery() == 1 {
                    std::future::pending::<()>().await;
                }
                Ok(ctx.delivery())
            })
        }
    }
}

type WatchedFuture = futures::future::BoxFuture<'static, Result<u64, HandlerError>>;

fn one_slot(executor: Executor, name: &str, watched: &Watched) -> Executor {
    executor.instance(instance(name)).handler_with("watched", slots(1), watched.handler())
}

#[tokio::test]
async fn an_executor_that_is_cut_off_stops_and_the_other_ones_result_stands_alone() {
    let rig = Rig::with_lease(LEASE).await;
    rig.make_consumer("watched").await;
    let proxy = Proxy::start(rig.server.address()).await.unwrap();
    let watched = Watched::default();
    let cut_off = Started::run(one_slot(rig.executor_at(&proxy.url()), "cut-off", &watched));
    let run = rig.run("watched", json!(null)).await;
    within("the start", watched.begun.notified()).await;
    let other = Started::run(one_slot(rig.executor(), "other", &watched));
    proxy.refuse();
    within("the drop", watched.ended.notified()).await;
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!((result.delivery, result.instance), (2, instance("other")));
    proxy.heal();
    // Once it takes work again it is back, and would have reported.
    other.stop().await;
    let next = rig.run("watched", json!(null)).await;
    within("the next start", watched.begun.notified()).await;
    cut_off.crash().await;
    assert_eq!(watched.most.load(Ordering::SeqCst), 1, "two held one lease");
    assert_eq!(rig.results(run).await.len(), 1);
    assert!(rig.results(next).await.is_empty());
}

#[tokio::test]
async fn when_the_server_hangs_for_longer_than_the_lease_the_handler_is_stopped() {
    let rig = Rig::with_lease(LEASE).await;
    rig.make_consumer("watched").await;
    let watched = Watched::default();
    let executor = Started::run(one_slot(rig.executor(), "one", &watched));
    let run = rig.run("watched", json!(null)).await;
    within("the start", watched.begun.notified()).await;
    rig.server.pause().unwrap();
    within("the drop", watched.ended.notified()).await;
    rig.server.resume().unwrap();
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.delivery, 2);
    rig.wait_until_idle().await;
    executor.stop().await;
    assert_eq!(watched.most.load(Ordering::SeqCst), 1);
    assert_eq!(rig.results(run).await.len(), 1);
}

#[tokio::test]
async fn a_short_break_of_the_connection_costs_nothing() {
    let rig = Rig::start().await;
    rig.make_consumer("wait").await;
    let proxy = Proxy::start(rig.server.address()).await.unwrap();
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (seen, open) = (begun.clone(), go_on.clone());
    let wait = move |ctx: Context, _: Value| {
        let (seen, open) = (seen.clone(), open.clone());
        async move {
            seen.notify_one();
            open.notified().await;
            Ok(ctx.delivery())
        }
    };
    let executor = Started::run(rig.executor_at(&proxy.url()).handler("wait", wait));
    let run = rig.run("wait", json!(null)).await;
    within("the start", begun.notified()).await;
    proxy.refuse();
    go_on.notify_one();
    assert!(rig.results(run).await.is_empty());
    proxy.heal();
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.delivery, 1);
    rig.wait_until_idle().await;
    executor.stop().await;
}

/// As a server does that has lost its last state, or goes on as the leader that it no longer is.
#[tokio::test]
async fn what_comes_again_after_its_result_was_stored_is_acked_and_not_begun_again() {
    let rig = Rig::start().await;
    rig.make_consumer("count").await;
    let begun = Arc::new(AtomicUsize::new(0));
    let counted = begun.clone();
    let count = move |_: Context, _: Value| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok(()) }
    };
    let executor = Started::run(rig.executor().handler_with("count", slots(1), count));
    let work = rig.work("count", json!(null));
    rig.outcome(&work).await;
    let run = rig.dispatch(&work).await;
    rig.wait_until_idle().await;
    let other = rig.outcome(&rig.work("count", json!(null))).await;
    assert_eq!(other.outcome, Outcome::Succeeded);
    assert_eq!((begun.load(Ordering::SeqCst), rig.results(run).await.len()), (2, 1));
    executor.stop().await;
}
