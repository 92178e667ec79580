//! Work of several priorities: the most urgent first, and never more than there is room for.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use taskparty_executor::{Context, slots};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::rig::{Rig, Started, instance, until};

/// Says to `web-1` that there is work of these priorities, as the scheduler does, until it looks for it.
async fn tell(rig: &Rig, handler: &str, priorities: &[u32]) {
    let probe = rig.nats.names().probe(&rig.app, &instance("web-1"));
    let said = json!({ "handler": handler, "priorities": priorities }).to_string();
    let all: Value = json!(priorities);
    until("the priorities in the entry", async || {
        let entry = serde_json::to_value(rig.registered().await.pop()?).unwrap();
        let known = &entry["handlers"][handler]["priorities"];
        assert!(known.is_array(), "it says that it knows priorities: {entry}");
        if *known == all {
            return Some(());
        }
        rig.nats.client().publish(probe.clone(), said.clone().into()).await.unwrap();
        None
    })
    .await;
}

/// Notes each run that begins, and holds it until it is let go.
fn noting(
    begun: &Arc<Mutex<Vec<Uuid>>>,
    open: &Arc<Semaphore>,
) -> impl Fn(
    Context,
    Value,
) -> futures::future::BoxFuture<'static, Result<(), taskparty_executor::HandlerError>>
+ use<> {
    let (begun, open) = (begun.clone(), open.clone());
    move |ctx, _| {
        let (begun, open) = (begun.clone(), open.clone());
        Box::pin(async move {
            begun.lock().unwrap().push(ctx.run());
            open.acquire().await?.forget();
            Ok(())
        })
    }
}

#[tokio::test]
async fn a_slot_that_comes_free_goes_to_the_most_urgent_and_nothing_is_taken_without_one() {
    let rig = Rig::start().await;
    rig.make_consumer("work").await;
    let (begun, open) = (Arc::<Mutex<Vec<Uuid>>>::default(), Arc::new(Semaphore::new(0)));
    let executor = rig.executor().instance(instance("web-1"));
    let executor = executor.handler_with("work", slots(2), noting(&begun, &open));
    let executor = Started::run(executor);
    for priority in [9, 0, 3] {
        rig.make_line("work", priority).await;
    }
    tell(&rig, "work", &[0, 3, 9]).await;
    let mut busy = vec![rig.put_in_line("work", 9).await, rig.put_in_line("work", 5).await];
    until("full slots", async || (begun.lock().unwrap().len() == 2).then_some(())).await;
    let mut waiting = Vec::new();
    for priority in [9, 5, 3, 0, 9, 5, 3, 0] {
        waiting.push((priority, rig.put_in_line("work", priority).await));
    }
    let in_hand = rig.in_hand("work", &[0, 3, 5, 9]).await;
    assert_eq!(in_hand, 2, "nothing waits in memory");
    waiting.sort_by_key(|(priority, _)| *priority);
    for (at, (priority, _)) in waiting.iter().enumerate() {
        open.add_permits(1);
        let count = at + 3;
        until("the next one", async || (begun.lock().unwrap().len() == count).then_some(())).await;
        assert!(rig.in_hand("work", &[0, 3, 5, 9]).await <= 2, "priority {priority}");
    }
    open.add_permits(2);
    rig.wait_until_idle().await;
    let order = begun.lock().unwrap().clone();
    let mut first = order[..2].to_vec();
    first.sort_unstable();
    busy.sort_unstable();
    assert_eq!(first, busy);
    assert_eq!(order[2..], waiting.iter().map(|(_, run)| *run).collect::<Vec<_>>());
    let results = rig.records("result").await;
    assert!(results.iter().all(|result| result["delivery"] == 1), "nothing was handed back");
    executor.stop().await;
}

#[tokio::test]
async fn an_idle_executor_with_one_slot_finds_the_work_of_each_priority() {
    let rig = Rig::start().await;
    rig.make_consumer("work").await;
    rig.make_consumer_of(&instance("web-1")).await;
    let (begun, open) = (Arc::<Mutex<Vec<Uuid>>>::default(), Arc::new(Semaphore::new(100)));
    let executor = rig.executor().instance(instance("web-1"));
    let executor = executor.handler_with("work", slots(1), noting(&begun, &open));
    let executor = Started::run(executor);
    for priority in [0, 7] {
        rig.make_line("work", priority).await;
    }
    tell(&rig, "work", &[0, 7]).await;
    for priority in [7, 5, 0, 5, 7, 0] {
        let run = rig.put_in_line("work", priority).await;
        assert_eq!(rig.result(run).await.delivery, 1, "priority {priority}");
        // What is for it alone needs the slot that is kept for the others.
        let pinned = rig.pin(&instance("web-1"), "work", json!(null)).await;
        assert_eq!(rig.result(pinned).await.delivery, 1);
    }
    rig.wait_until_idle().await;
    executor.stop().await;
}
