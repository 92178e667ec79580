//! Work of a priority stands in a line of its own while every executor looks there, and whoever goes
//! on with it finds it there. The test is the executors: it puts their entries.

use std::time::Duration;

use serde_json::{Value, json};
use taskparty_common::fire::{FireId, Plan, RetryOf, TriggerRequest, retry_id};
use taskparty_common::job::Job;
use taskparty_common::priority::Priority;
use taskparty_nats::history::{last_by_subject, message};
use taskparty_nats::lock::{self, Locks};
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::{Topology, TopologyConfig};
use tokio_util::task::AbortOnDropHandle;
use uuid::Uuid;

use crate::overlap::{finish, next_work};
use crate::recovery::intent;
use crate::rig::{PATIENCE, Rig, Scheduler, job};
use crate::triggers::{request, send};

const STREAM: &str = "TASKPARTY_DISPATCH_shop";

/// An executor that is live until this is dropped; with `priorities` one that knows them.
fn live(rig: &Rig, name: &'static str, priorities: Option<Value>) -> AbortOnDropHandle<()> {
    let buckets = rig.buckets.clone();
    let mut entry = json!({ "v": 1, "app": "shop", "instance": name,
        "started_at": "2026-01-01T00:00:00Z", "handlers": { "settle": { "slots": 4 } } });
    if let Some(priorities) = priorities {
        entry["handlers"]["settle"]["priorities"] = priorities;
    }
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            let key = format!("shop.{name}");
            buckets.put(Bucket::Executors, &key, entry.to_string(), None).await.unwrap();
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
    }))
}

/// Waits until `scheduler` sees so many executors.
async fn see(scheduler: &Scheduler, count: usize) {
    let mut changes = scheduler.node.registry().changed();
    while scheduler.node.registry().entries().len() != count {
        tokio::time::timeout(PATIENCE, changes.changed()).await.unwrap().unwrap();
    }
}

async fn urgent(rig: &Rig, shards: u32) -> Job {
    let mut spec = job("urgent", json!(null));
    spec["priority"] = json!(0);
    spec["shards"] = json!(shards);
    rig.save(spec).await
}

/// Whether an attempt stands in the line of `priority`.
async fn stands(rig: &Rig, priority: u32, run: Uuid, shard: u32, attempt: u32) -> bool {
    let (app, handler) = ("shop".parse().unwrap(), "settle".parse().unwrap());
    let priority = Priority::new(priority).unwrap();
    let subject = rig.nats.names().dispatch_by(&app, &handler, priority, (run, shard, attempt));
    last_by_subject(rig.nats.js(), STREAM, &subject).await.unwrap().is_some()
}

#[tokio::test]
async fn work_stands_in_its_line_while_each_executor_looks_there() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = urgent(&rig, 1).await;
    let nobody = request(&rig, &job, "nobody");
    send(&rig, &nobody).await;
    rig.fired_until(|fired| fired.len() == 1).await;
    let probe = rig.nats.names().probe(&job.spec.app, &"newer".parse().unwrap());
    let mut said = rig.nats.client().subscribe(probe).await.unwrap();
    let _newer = live(&rig, "newer", Some(json!([])));
    see(&scheduler, 1).await;
    let alone = request(&rig, &job, "alone");
    send(&rig, &alone).await;
    rig.fired_until(|fired| fired.len() == 2).await;
    let told = tokio::time::timeout(PATIENCE, futures::StreamExt::next(&mut said));
    let told: Value = serde_json::from_slice(&told.await.unwrap().unwrap().payload).unwrap();
    assert_eq!(told, json!({ "handler": "settle", "priorities": [0] }));
    let _older = live(&rig, "older", None);
    see(&scheduler, 2).await;
    let mixed = request(&rig, &job, "mixed");
    send(&rig, &mixed).await;
    let fired = rig.fired_until(|fired| fired.len() == 3).await;
    for (request, line) in [(&nobody, 5), (&alone, 0), (&mixed, 5)] {
        assert!(stands(&rig, line, request.run, 0, 1).await, "{}", request.id);
    }
    let of = |run| fired.iter().find(|fired| fired.run == run).unwrap().plan.priority;
    assert_eq!([of(alone.run), of(mixed.run)], [Priority::new(0).ok(), None]);
    scheduler.stop().await;

    // The next one finds the line, though nothing is sent to it any more.
    let next = rig.scheduler().await;
    let again = tokio::time::timeout(PATIENCE, futures::StreamExt::next(&mut said));
    let again: Value = serde_json::from_slice(&again.await.unwrap().unwrap().payload).unwrap();
    assert_eq!(again, told);
    next.stop().await;
}

#[tokio::test]
async fn whoever_completes_a_fire_sends_it_to_the_line_that_its_lock_names() {
    let rig = Rig::start().await;
    let job = urgent(&rig, 2).await;
    let (app, handler) = (&job.spec.app, &job.spec.handler);
    let first = job.spec.priority;
    let topology = Topology::new(rig.nats.clone(), TopologyConfig::default());
    topology.ensure_priority(app, handler, first).await.unwrap();
    // It locked the fire, sent one shard, and died; and so did the executors that looked there.
    let request = request(&rig, &job, "half");
    let mut half = intent(&job, 1, request.at);
    half.run = request.run;
    half.plan = Plan { priority: Some(first), ..Plan::whole(2) };
    let key = FireId::trigger(job.spec.id.clone(), "half").lock_key();
    let value = serde_json::to_vec(&half).unwrap();
    Locks::new(rig.buckets.clone()).take(&key, value, lock::SHORTEST).await.unwrap();
    let sent = rig.nats.names().dispatch_by(app, handler, first, (request.run, 1, 1));
    rig.buckets.publisher().publish(Draft::new(sent, "{}")).await.unwrap();
    let _older = live(&rig, "older", None);
    let scheduler = rig.scheduler().await;
    see(&scheduler, 1).await;
    send(&rig, &request).await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    assert_eq!(fired[0].plan.priority, Some(first));
    assert_eq!(rig.messages(STREAM).await, 2, "nothing is sent twice");
    assert!(stands(&rig, 0, request.run, 0, 1).await && stands(&rig, 0, request.run, 1, 1).await);
    let first = message(rig.nats.js(), STREAM, 1).await.unwrap().unwrap();
    assert_eq!(&first.payload[..], b"{}");
    scheduler.stop().await;
}

#[tokio::test]
async fn a_retry_stands_in_its_run_s_line_and_the_attempt_before_it_is_gone_from_there() {
    let rig = Rig::start().await;
    let _newer = live(&rig, "newer", Some(json!([0])));
    let scheduler = rig.scheduler().await;
    see(&scheduler, 1).await;
    let job = urgent(&rig, 2).await;
    let first = request(&rig, &job, "one");
    send(&rig, &first).await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    // The job has another priority by now; its run goes by the one that it was made with.
    let mut spec = crate::rig::checked(job.spec.to_json());
    spec.priority = Priority::new(9).unwrap();
    let revision = rig.store(&Job { spec, ..job.clone() }).await;
    rig.seen(revision).await;
    let retry = RetryOf {
        revision: fired[0].revision,
        since: fired[0].since,
        fire_time: fired[0].fire_time,
        plan: Plan::again(2, 1, 2),
        definition: fired[0].definition.clone(),
    };
    let id = retry_id(first.run, 1, 2);
    send(&rig, &TriggerRequest { retry: Some(retry), id, ..first.clone() }).await;
    rig.fired_until(|fired| fired.len() == 2).await;
    scheduler.stop().await;
    assert!(stands(&rig, 0, first.run, 0, 1).await && stands(&rig, 0, first.run, 1, 2).await);
    assert!(!stands(&rig, 0, first.run, 1, 1).await, "nobody gets it again");
}

#[tokio::test]
async fn a_run_that_waited_for_its_turn_stands_in_its_line_as_its_executors_are_by_then() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let mut spec = job("in-turn", json!(null));
    spec["priority"] = json!(0);
    spec["overlap"] = json!("queue");
    let job = rig.save(spec).await;
    let (first, second) = (request(&rig, &job, "one"), request(&rig, &job, "two"));
    send(&rig, &first).await;
    let work = next_work(&rig).await;
    assert!(stands(&rig, 5, first.run, 0, 1).await, "nobody was there to look elsewhere");
    send(&rig, &second).await;
    rig.fired_until(|fired| fired.len() == 2).await;
    let _newer = live(&rig, "newer", Some(json!([0])));
    see(&scheduler, 1).await;
    finish(&rig, work).await;
    let fired = rig.fired_until(|fired| fired.len() == 3).await;
    assert!(stands(&rig, 0, second.run, 0, 1).await);
    let last = fired.iter().rfind(|fired| fired.run == second.run).unwrap();
    assert_eq!(last.plan.priority, Some(job.spec.priority));
    scheduler.stop().await;
}
