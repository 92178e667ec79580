//! Routes over many schedulers: whose turn it is they all agree on, and hand on. The test is the
//! executors: it puts their entries.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use taskparty_common::backfill::Backfill;
use taskparty_common::fire::{Fired, Plan, TriggerRequest};
use taskparty_common::job::Job;
use taskparty_common::name::Instance;
use taskparty_common::outcome::{Trigger, TriggerResult};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::history::{delete_message, stream_info};
use taskparty_nats::subject::Bucket;
use tokio_util::task::AbortOnDropHandle;

use crate::recovery::intent;
use crate::rig::{Rig, Scheduler, job};
use crate::triggers::{request, send};

/// Executors that are live until this is dropped.
fn live(rig: &Rig, names: &'static [&'static str]) -> AbortOnDropHandle<()> {
    let buckets = rig.buckets.clone();
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            for name in names {
                put(&buckets, name).await;
            }
            tokio::time::sleep(Duration::from_secs(4)).await;
        }
    }))
}

async fn put(buckets: &Buckets, name: &str) {
    let entry = json!({ "v": 1, "app": "shop", "instance": name, "started_at": "2026-01-01T00:00:00Z",
        "handlers": { "settle": { "slots": 4 } } });
    let key = format!("shop.{name}");
    buckets.put(Bucket::Executors, &key, entry.to_string(), None).await.unwrap();
}

/// Waits until each of `schedulers` sees so many executors.
async fn see(schedulers: &[Scheduler], count: usize) {
    for scheduler in schedulers {
        let mut changes = scheduler.node.registry().changed();
        while scheduler.node.registry().entries().len() != count {
            tokio::time::timeout(crate::rig::PATIENCE, changes.changed()).await.unwrap().unwrap();
        }
    }
}

fn routed(id: &str, more: Value) -> Value {
    let mut spec = job(id, json!(null));
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    spec
}

async fn trigger(rig: &Rig, job: &Job, ids: impl Iterator<Item = u32>) {
    let sends = ids.map(|n| async move { send(rig, &request(rig, job, &format!("t{n}"))).await });
    futures::future::join_all(sends).await;
}

/// How many shards each executor got.
fn shares(fired: &[Fired]) -> BTreeMap<Instance, usize> {
    let mut shares = BTreeMap::new();
    for target in fired.iter().flat_map(|fired| &fired.plan.targets) {
        *shares.entry(target.clone()).or_default() += 1;
    }
    shares
}

#[tokio::test]
async fn three_schedulers_that_fire_one_job_at_once_take_turns_and_hand_them_on() {
    let rig = Rig::start().await;
    let first: Vec<_> = futures::future::join_all((0..3).map(|_| rig.scheduler())).await;
    let _live = live(&rig, &["a", "b", "c"]);
    see(&first, 3).await;
    for (n, route) in
        ["round_robin", "least_recently_used", "least_frequently_used"].iter().enumerate()
    {
        let job = rig.save(routed(&format!("job-{n}"), json!({ "route": route }))).await;
        trigger(&rig, &job, 0..60).await;
        let of_job = |fired: &[Fired]| -> Vec<Fired> {
            fired.iter().filter(|fired| fired.job == job.spec.id).cloned().collect()
        };
        let fired = of_job(&rig.fired_until(|fired| of_job(fired).len() == 60).await);
        assert!(shares(&fired).values().all(|share| *share == 20), "{route}: {:?}", shares(&fired));
    }
    // One more: the next scheduler goes on where these have ended.
    let job = rig.save(routed("job-0", json!({ "route": "round_robin" }))).await;
    trigger(&rig, &job, 60..61).await;
    let fired = rig.fired_until(|fired| fired.len() == 181).await;
    let last = fired.iter().find(|fired| fired.lock == "job-0.x.t60").unwrap();
    assert_eq!(last.plan.targets, [Instance::new("a").unwrap()]);
    futures::future::join_all(first.into_iter().map(Scheduler::stop)).await;
    let next = vec![rig.scheduler().await];
    see(&next, 3).await;
    trigger(&rig, &job, 61..62).await;
    let fired = rig.fired_until(|fired| fired.len() == 182).await;
    let last = fired.iter().find(|fired| fired.lock == "job-0.x.t61").unwrap();
    assert_eq!(last.plan.targets, [Instance::new("b").unwrap()]);
    futures::future::join_all(next.into_iter().map(Scheduler::stop)).await;
}

#[tokio::test]
async fn a_run_without_anybody_to_share_it_with_says_so_at_once() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let more = [json!({ "route": "broadcast" }), json!({ "shards": "executors" })];
    for (n, more) in more.into_iter().enumerate() {
        let job = rig.save(routed(&format!("job-{n}"), more)).await;
        trigger(&rig, &job, 0..1).await;
    }
    let fired = rig.fired_until(|fired| fired.len() == 2).await;
    for fired in &fired {
        assert_eq!((fired.result, fired.plan.total), (TriggerResult::NoExecutor, 0));
        assert!(fired.message.contains("no executor of shop/settle"), "{}", fired.message);
    }
    let _live = live(&rig, &["a", "b"]);
    see(std::slice::from_ref(&scheduler), 2).await;
    let job = rig.save(routed("job-0", json!({ "route": "broadcast" }))).await;
    trigger(&rig, &job, 1..2).await;
    let fired = rig.fired_until(|fired| fired.len() == 3).await;
    let last = fired.iter().find(|fired| fired.lock == "job-0.x.t1").unwrap();
    assert_eq!(
        (last.result, last.plan.total, last.plan.pinned),
        (TriggerResult::Dispatched, 2, true)
    );
    assert_eq!(shares(&fired).len(), 2);
    scheduler.stop().await;
}

#[tokio::test]
async fn failover_asks_the_others_while_the_first_has_not_answered_yet() {
    let rig = Rig::start().await;
    let _live = live(&rig, &["a", "b", "c"]);
    let scheduler = vec![rig.scheduler().await];
    see(&scheduler, 3).await;
    let job = rig.save(routed("probed", json!({ "route": "failover" }))).await;
    let client = rig.nats.client();
    let mut probes = client.subscribe("taskparty.probe.shop.*").await.unwrap();
    client.flush().await.unwrap();
    let first = Instance::new("a").unwrap();
    let subject = rig.nats.names().probe(&job.spec.app, &first);
    // Again while the machine is too busy to answer in time; one after the other, it never would be.
    for n in 0.. {
        trigger(&rig, &job, n..n + 1).await;
        let all: Vec<_> =
            tokio::time::timeout(crate::rig::PATIENCE, probes.by_ref().take(3).collect())
                .await
                .unwrap();
        let probe = all.iter().find(|probe| *probe.subject == subject).unwrap();
        client.publish(probe.reply.clone().unwrap(), "{}".into()).await.unwrap();
        let lock = format!("probed.x.t{n}");
        let fired = rig.fired_until(|all| all.iter().any(|fired| fired.lock == lock)).await;
        let fired = fired.iter().find(|fired| fired.lock == lock).unwrap();
        if fired.plan.targets == [first.clone()] {
            break;
        }
        assert!(fired.plan.targets.is_empty() && n < 20, "{n}: {:?}", fired.plan);
    }
    futures::future::join_all(scheduler.into_iter().map(Scheduler::stop)).await;
}

#[tokio::test]
async fn whoever_completes_a_fire_dispatches_to_the_executor_that_its_lock_names() {
    let rig = Rig::start().await;
    let _live = live(&rig, &["a", "b"]);
    let scheduler = vec![rig.scheduler().await];
    see(&scheduler, 2).await;
    let job = rig.save(routed("half", json!({ "route": "first" }))).await;
    // As one that chose `b`, took the lock, and died.
    let request = request(&rig, &job, "t0");
    let mut intent = intent(&job, 1, request.at);
    intent.run = request.run;
    intent.plan = Plan { targets: vec![Instance::new("b").unwrap()], ..Plan::whole(1) };
    let value = serde_json::to_vec(&intent).unwrap();
    rig.buckets.put(Bucket::Fires, "half.x.t0", value, None).await.unwrap();
    send(&rig, &request).await;
    let fired = rig.fired_until(|fired| fired.len() == 1).await;
    assert_eq!(fired[0].plan.targets, intent.plan.targets);
    let stream = rig.nats.names().dispatch_stream(&job.spec.app);
    let first = taskparty_nats::history::message(rig.nats.js(), &stream, 1).await.unwrap().unwrap();
    assert_eq!(first.subject, format!("taskparty.direct.shop.b.settle.{}.0.1", request.run));
    futures::future::join_all(scheduler.into_iter().map(Scheduler::stop)).await;
}

#[tokio::test]
async fn a_backfill_waits_while_work_that_is_for_one_executor_alone_waits_there() {
    let rig = Rig::start().await;
    let schedulers = [rig.scheduler().await];
    let _live = live(&rig, &["a"]);
    see(&schedulers, 1).await;
    let job = rig.save(routed("past", json!({ "route": "first" }))).await;
    let left = (0..3).map(|n| (1_700_000_000_000 + n, 0)).collect();
    let steps = TriggerRequest {
        trigger: Trigger::Backfill,
        backfill: Some(Backfill { id: "b".into(), left }),
        ..request(&rig, &job, "backfill.b")
    };
    send(&rig, &steps).await;
    for count in 1..=3 {
        let all = rig.fired_until(|fired| fired.len() >= count).await;
        assert_eq!(all[count - 1].plan.targets, [Instance::new("a").unwrap()]);
        if count == 3 {
            break;
        }
        // It is put back twice and comes again.
        let triggers = || stream_info(rig.nats.js(), "TASKPARTY_TRIGGERS");
        let before = triggers().await.unwrap().last_seq;
        let put_back = async {
            while triggers().await.unwrap().last_seq < before + 4 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(crate::rig::PATIENCE, put_back).await.unwrap();
        assert_eq!(rig.fired().await.len(), count, "the one before waits for the executor");
        // The executor takes it.
        let work = stream_info(rig.nats.js(), "TASKPARTY_DISPATCH_shop").await.unwrap();
        delete_message(rig.nats.js(), "TASKPARTY_DISPATCH_shop", work.last_seq).await.unwrap();
    }
    let [scheduler] = schedulers;
    scheduler.stop().await;
}
