//! No more work is taken than there is room for, so that what waits, waits for everyone.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use taskparty_common::name::Instance;
use taskparty_common::outcome::Outcome;
use taskparty_executor::{Context, Executor, HandlerError, slots};
use tokio::sync::Semaphore;

use crate::rig::{Rig, Started, instance, until};

/// Counts who runs, and holds each run until it is let go.
#[derive(Default)]
struct Gate {
    now: AtomicUsize,
    most: AtomicUsize,
    by: Mutex<HashMap<Instance, usize>>,
}

fn gated(
    gate: &Arc<Gate>,
    open: &Arc<Semaphore>,
) -> impl Fn(Context, Value) -> GatedFuture + use<> {
    let (gate, open) = (gate.clone(), open.clone());
    move |ctx, _| {
        let (gate, open) = (gate.clone(), open.clone());
        Box::pin(async move {
            let now = gate.now.fetch_add(1, Ordering::SeqCst) + 1;
            gate.most.fetch_max(now, Ordering::SeqCst);
            *gate.by.lock().unwrap().entry(ctx.instance().clone()).or_default() += 1;
            open.acquire().await?.forget();
            gate.now.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        })
    }
}

type GatedFuture = futures::future::BoxFuture<'static, Result<(), HandlerError>>;

async fn pending(rig: &Rig, handler: &str) -> (usize, u64) {
    let stream = rig.nats.names().dispatch_stream(&rig.app);
    let stream = rig.nats.js().get_stream(stream).await.unwrap();
    let info = stream.consumer_info(handler).await.unwrap();
    (info.num_ack_pending, info.num_pending)
}

#[tokio::test]
async fn each_handler_holds_as_many_messages_as_it_has_slots() {
    let rig = Rig::start().await;
    let (small, large) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let open = Arc::new(Semaphore::new(0));
    let executor = rig
        .executor()
        .handler_with("small", slots(2), gated(&small, &open))
        .handler_with("large", slots(5), gated(&large, &open));
    for handler in ["small", "large"] {
        rig.make_consumer(handler).await;
        for _ in 0..20 {
            rig.run(handler, json!(null)).await;
        }
    }
    let executor = Started::run(executor);
    for (handler, gate, room) in [("small", &small, 2), ("large", &large, 5)] {
        until("full slots", async || (gate.now.load(Ordering::SeqCst) == room).then_some(())).await;
        assert_eq!(pending(&rig, handler).await, (room, 20 - room as u64));
    }
    open.add_permits(40);
    rig.wait_until_idle().await;
    assert_eq!(small.most.load(Ordering::SeqCst), 2);
    assert_eq!(large.most.load(Ordering::SeqCst), 5);
    let results = rig.records("result").await;
    assert_eq!(results.len(), 40);
    assert!(results.iter().all(|result| result["outcome"] == Outcome::Succeeded.as_str()));
    assert!(results.iter().all(|result| result["delivery"] == 1));
    executor.stop().await;
}

#[tokio::test]
async fn two_instances_share_what_there_is() {
    let rig = Rig::start().await;
    rig.make_consumer("work").await;
    let gate = Arc::<Gate>::default();
    let open = Arc::new(Semaphore::new(0));
    let start = |name: &str| {
        let executor: Executor = rig.executor().instance(instance(name));
        Started::run(executor.handler_with("work", slots(3), gated(&gate, &open)))
    };
    let (one, two) = (start("one"), start("two"));
    for _ in 0..6 {
        rig.run("work", json!(null)).await;
    }
    until("all six at once", async || (gate.now.load(Ordering::SeqCst) == 6).then_some(())).await;
    let by = gate.by.lock().unwrap().clone();
    assert_eq!(by, HashMap::from([(instance("one"), 3), (instance("two"), 3)]));
    open.add_permits(6);
    rig.wait_until_idle().await;
    one.stop().await;
    two.stop().await;
}

#[tokio::test]
async fn work_for_one_instance_alone_gets_slots_that_are_kept_for_others_and_no_more_than_there_are()
 {
    let rig = Rig::start().await;
    let (full, idle) = (Arc::<Gate>::default(), Arc::<Gate>::default());
    let (shut, open) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(100)));
    for handler in ["full", "idle"] {
        rig.make_consumer(handler).await;
    }
    let (one, two) = (instance("one"), instance("two"));
    rig.make_consumer_of(&one).await;
    let executor = rig
        .executor()
        .instance(one.clone())
        .handler_with("full", slots(2), gated(&full, &shut))
        .handler_with("idle", slots(1), gated(&idle, &open));
    let executor = Started::run(executor);
    let for_two = rig.pin(&two, "idle", json!(null)).await;
    // Nothing else is there: every slot is kept for what was asked for.
    let mut runs = vec![rig.pin(&one, "full", json!(null)).await];
    until("the first", async || (full.now.load(Ordering::SeqCst) == 1).then_some(())).await;
    for _ in 0..4 {
        runs.push(rig.run("full", json!(null)).await);
        runs.push(rig.pin(&one, "full", json!(null)).await);
        runs.push(rig.run("idle", json!(null)).await);
        // It does not wait for those before it, whose handler has no room.
        let run = rig.pin(&one, "idle", json!(null)).await;
        if full.now.load(Ordering::SeqCst) < 2 {
            rig.result(run).await;
        }
        runs.push(run);
    }
    until("full slots", async || (full.now.load(Ordering::SeqCst) == 2).then_some(())).await;
    shut.add_permits(100);
    for run in runs {
        let result = rig.result(run).await;
        assert_eq!((result.outcome, result.delivery), (Outcome::Succeeded, 1));
    }
    assert_eq!(full.most.load(Ordering::SeqCst), 2);
    assert_eq!(idle.most.load(Ordering::SeqCst), 1);
    until("what is done to be gone", async || (rig.left().await == 1).then_some(())).await;
    assert_eq!(rig.results(for_two).await.len(), 0, "another's work");
    executor.stop().await;
}
