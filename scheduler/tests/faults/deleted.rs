//! Somebody deletes streams and consumers by hand while everything runs.

use std::time::Duration;

use chrono::{SecondsFormat, TimeDelta};
use serde_json::{Value, json};
use taskparty_common::fire::FireId;
use taskparty_common::job::Job;
use taskparty_common::outcome::RunState;
use taskparty_executor::{Context, slots};
use taskparty_nats::history::{consumer_info, stream_info};
use taskparty_nats::lock::{self, Locks};
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::rig::{Site, until};
use crate::shop::{Shop, executor};

async fn twenty(site: &Site) -> Vec<Job> {
    let mut jobs = site.each_second(16, "settle", json!({})).await;
    jobs.extend(site.each_second(4, "work", json!({ "params": 300 })).await);
    jobs
}

impl Site {
    async fn delete_consumer(&self, stream: &str, consumer: &str) {
        self.nats.js().delete_consumer_from_stream(consumer, stream).await.unwrap();
        self.ledger.nats_forgets();
        let deleted = Instant::now();
        until("the consumer", async || {
            consumer_info(self.nats.js(), stream, consumer).await.ok().flatten()
        })
        .await;
        println!("# {stream}/{consumer}: made again after {:?}", deleted.elapsed());
    }

    async fn delete_stream(&self, stream: &str) {
        self.nats.js().delete_stream(stream).await.unwrap();
        self.ledger.nats_forgets();
        let deleted = Instant::now();
        until("the stream", async || stream_info(self.nats.js(), stream).await.ok()).await;
        println!("# {stream}: made again after {:?}", deleted.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_consumer_is_made_again_and_nothing_that_was_done_is_done_again() {
    let mut site = Site::single().await;
    // On a busy machine this process stands still for seconds: an attempt whose lease ended by that
    // is done again, and rightly so.
    site.topology.lease = Duration::from_secs(20);
    let node = site.node().await;
    let shop = Shop::open(&site);
    let jobs = twenty(&site).await;
    for (stream, consumer) in [
        ("TASKPARTY_DISPATCH_shop", "settle"),
        ("TASKPARTY_DISPATCH_shop", "work"),
        ("TASKPARTY_RESULTS", "log-writer"),
        ("TASKPARTY_TRIGGERS", "schedulers"),
    ] {
        site.more_starts(30).await;
        site.delete_consumer(stream, consumer).await;
        site.all_fire_again(&jobs).await;
    }
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("deleted consumers");
    // The one executor knows what it has in its hands.
    assert_eq!(judged.again, 0);
    shop.close().await;
    node.stop().await;
}

/// Whoever made the consumer anew ignores the acks of what it has not delivered itself, confirms that
/// the leases go on, and delivers to those alone who have a slot.
#[tokio::test(flavor = "multi_thread")]
async fn an_executor_whose_slots_were_all_taken_when_its_consumer_was_deleted_goes_on() {
    let mut site = Site::single().await;
    site.topology.lease = Duration::from_secs(20);
    let node = site.node().await;
    let (open, gate) = watch::channel(false);
    let ledger = site.ledger.clone();
    let settle = move |ctx: Context, _: Value| {
        ledger.note(&ctx);
        let mut gate = gate.clone();
        async move {
            let _ = gate.wait_for(|open| *open).await;
            Ok(())
        }
    };
    let shop = Shop::run(executor(&site.url()).handler_with("settle", slots(2), settle));
    let jobs = site.each_second(2, "settle", json!({})).await;
    site.more_starts(2).await;
    site.delete_consumer("TASKPARTY_DISPATCH_shop", "settle").await;
    open.send_replace(true);
    site.more_starts(10).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("a busy executor's consumer deleted");
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_stream_or_bucket_is_made_again_with_what_is_still_known_of_it() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let retry = json!({ "retry": { "max": 3, "initial": "100ms" }, "no_executor_wait": "3s" });
    let jobs = site.each_second(20, "settle", retry).await;
    for stream in [
        "KV_taskparty_jobs",
        "KV_taskparty_executors",
        "KV_taskparty_schedulers",
        "KV_taskparty_cursors",
        "KV_taskparty_fires",
        "KV_taskparty_overlap",
        "TASKPARTY_TRIGGERS",
        "TASKPARTY_RESULTS",
        "TASKPARTY_LOGS",
        "TASKPARTY_DISPATCH_shop",
    ] {
        site.more_starts(30).await;
        site.delete_stream(stream).await;
        site.all_fire_again(&jobs).await;
    }
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("deleted streams");
    let told = site.alerts().await;
    assert_eq!(told.iter().filter(|alert| alert.kind == "deleted").count(), 10, "{told:#?}");
    shop.close().await;
    node.stop().await;
}

/// A consumer that was made anew counts from one: the count does not tell that whoever had a trigger
/// has died over it.
#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_whose_scheduler_died_half_way_is_completed_though_it_counts_as_new() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let job = site.save(crate::rig::job("demand", "settle", json!({}))).await;
    let (id, at) = (FireId::trigger(job.spec.id.clone(), "key"), site.clock.now());
    let run = id.run(site.nats.names().prefix(), job.meta.since.timestamp_millis(), at);
    let trigger = json!({
        "v": 1, "id": "key", "job": "demand", "app": "shop", "handler": "settle",
        "trigger": "manual", "run": run, "at": at, "by": "test",
    });
    let intent = json!({
        "v": 1, "run": run, "job": "demand", "revision": 1, "since": job.meta.since, "owner": "gone",
        "trigger": "manual", "fire_time": at, "planned_at": at,
        "plan": { "total": 1, "attempt": 1 }, "definition": job.spec.to_json(),
    });
    // It has taken over what there was, and looks at no lock of its own accord.
    until("a scheduler that fires the job", async || {
        let live = site.buckets.entries(Bucket::Schedulers, ">").await.ok()?;
        let entry: Value = serde_json::from_slice(live.first()?.value.as_ref()?).unwrap();
        (entry["jobs"] == 1).then_some(())
    })
    .await;
    let delete = site.nats.js().delete_consumer_from_stream("schedulers", "TASKPARTY_TRIGGERS");
    delete.await.unwrap();
    let subject = site.nats.names().trigger(&job.spec.id);
    site.buckets.publisher().publish(Draft::new(subject, trigger.to_string())).await.unwrap();
    let locks = Locks::new(site.buckets.clone());
    locks.take(&id.lock_key(), intent.to_string(), lock::SHORTEST).await.unwrap();
    let judged = site.settled().await;
    judged.all_succeeded();
    assert_eq!(judged.runs.keys().collect::<Vec<_>>(), [&run]);
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_whose_work_was_deleted_end_as_lost_and_are_tried_again() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let due = site.clock.now() + TimeDelta::seconds(3);
    let due = due.to_rfc3339_opts(SecondsFormat::Millis, true);
    // Long: on a busy machine the executor takes its time to come back.
    let mut spec = json!({ "schedule": { "at": due }, "no_executor_wait": "20s" });
    for (n, max) in (0..20).map(|n| (n, n % 2)) {
        spec["retry"] = json!({ "max": max, "initial": "100ms" });
        site.save(crate::rig::job(&format!("settle-{n}"), "settle", spec.clone())).await;
    }
    until("the executor", async || (!node.node.registry().entries().is_empty()).then_some(()))
        .await;
    shop.close().await;
    until("the work", async || (site.work_left().await == 20).then_some(())).await;
    site.delete_stream("TASKPARTY_DISPATCH_shop").await;
    let shop = Shop::open(&site);
    let judged = site.settled().await;
    for run in judged.runs.values() {
        let tried_again = run.attempts == 2;
        assert_eq!(run.state == RunState::Succeeded, tried_again, "{run:#?}");
        let detail = site.store().await.run(run.run).await.unwrap().unwrap();
        let first = &detail.attempt_rows[0];
        assert_eq!(first.state, RunState::Lost, "{detail:#?}");
        assert!(first.message.contains("deleted"), "{}", first.message);
    }
    assert_eq!(site.ledger.len(), 10);
    judged.say("deleted work");
    shop.close().await;
    node.stop().await;
}
