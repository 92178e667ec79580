//! A scheduler goes on where the last one was, and completes what others left half done.

use chrono::TimeDelta;
use serde_json::json;
use taskparty_common::fire::{FireId, Fired, Intent, Plan};
use taskparty_common::name::Instance;
use taskparty_common::outcome::{Trigger, TriggerResult};
use taskparty_nats::history::last_by_subject;
use taskparty_nats::lock::{Locks, Take};
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::{Topology, TopologyConfig};

use crate::rig::{Rig, assert_complete, job};

/// The intent of a scheduler that dies right after it took the lock.
pub(crate) fn intent(
    job: &taskparty_common::job::Job,
    revision: u64,
    at: chrono::DateTime<chrono::Utc>,
) -> Intent {
    let id = FireId::at(job.spec.id.clone(), at);
    Intent {
        v: 1,
        run: id.run(&Default::default(), job.meta.since.timestamp_millis(), at),
        job: job.spec.id.clone(),
        revision,
        since: job.meta.since,
        owner: Instance::new("gone").unwrap(),
        trigger: Trigger::Schedule,
        fire_time: at,
        planned_at: at,
        plan: Plan::whole(2),
        instance: None,
        skipped: None,
        definition: serde_json::value::to_raw_value(&job.spec.to_json()).unwrap(),
        params: None,
    }
}

#[tokio::test]
async fn a_lock_whose_holder_died_is_completed_by_a_live_scheduler_and_by_the_next_one() {
    let rig = Rig::start().await;
    let live = rig.scheduler().await;
    let due = rig.clock.now() + TimeDelta::seconds(1);
    let at = due.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    let mut spec = job("once", json!({ "at": at }));
    spec["shards"] = json!(2);
    let saved = rig.save(spec).await;
    let due = chrono::SubsecRound::trunc_subsecs(due, 3);
    let id = FireId::at(saved.spec.id.clone(), due);
    let value = serde_json::to_vec(&intent(&saved, 1, due)).unwrap();
    let locks = Locks::new(rig.buckets.clone());
    let taken = locks.take(&id.lock_key(), value, taskparty_nats::lock::SHORTEST).await.unwrap();
    assert!(matches!(taken, Take::Taken { .. }));
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    assert_eq!((fired.len(), fired[0].owner.as_str()), (1, "gone"));
    assert_eq!(fired[0].result, TriggerResult::Queued);
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_shop").await, 2);
    live.stop().await;

    // And now one that nobody alive has tried for.
    let second = FireId::at(saved.spec.id.clone(), due + TimeDelta::seconds(1));
    let value = serde_json::to_vec(&intent(&saved, 1, due + TimeDelta::seconds(1))).unwrap();
    locks.take(&second.lock_key(), value, taskparty_nats::lock::SHORTEST).await.unwrap();
    let next = rig.scheduler().await;
    let fired = rig.fired_until(|fired| fired.len() >= 2).await;
    next.stop().await;
    assert_eq!((fired.len(), rig.messages("TASKPARTY_DISPATCH_shop").await), (2, 4));
}

#[tokio::test]
async fn what_was_dispatched_in_time_is_not_left_out_by_who_finds_it_too_late() {
    let rig = Rig::start().await;
    let mut spec = job("strict", json!({ "at": "2027-01-31T09:00:00" }));
    spec["shards"] = json!(2);
    spec["misfire"] = json!({ "policy": "skip", "grace": "1ms" });
    let saved = rig.save(spec).await;
    // A first scheduler makes the stream of the shop's work.
    let first = rig.scheduler().await;
    let topology = Topology::new(rig.nats.clone(), TopologyConfig::default());
    topology.ensure_handler(&saved.spec.app, &saved.spec.handler).await.unwrap();
    let past = chrono::SubsecRound::trunc_subsecs(rig.clock.now(), 3);
    let (sent, unsent) = (past - TimeDelta::seconds(2), past - TimeDelta::seconds(1));
    let locks = Locks::new(rig.buckets.clone());
    for at in [sent, unsent] {
        let value = serde_json::to_vec(&intent(&saved, 1, at)).unwrap();
        let key = FireId::at(saved.spec.id.clone(), at).lock_key();
        locks.take(&key, value, taskparty_nats::lock::SHORTEST).await.unwrap();
    }
    let run = intent(&saved, 1, sent).run;
    let subject = rig.nats.names().dispatch(&saved.spec.app, &saved.spec.handler, run, 1, 1);
    rig.buckets.publisher().publish(Draft::new(subject, "{}")).await.unwrap();
    first.stop().await;
    let next = rig.scheduler().await;
    rig.fired_until(|fired| fired.iter().any(|fired| fired.fire_time == sent)).await;
    // Who has locked the other one may have sent it in time, and it may be on its way.
    let tick = rig.save(job("tick", json!({ "fixed_rate": "200ms" }))).await;
    let of_tick = |fired: &Fired| fired.job == tick.spec.id;
    let so_far = rig.fired_until(|fired| fired.iter().filter(|f| of_tick(f)).count() > 5).await;
    assert!(so_far.iter().all(|fired| fired.fire_time != unsent));
    rig.clock.step(TimeDelta::seconds(60));
    let is_over = |fired: &[Fired]| fired.iter().any(|fired| fired.fire_time == unsent);
    let mut fired = rig.fired_until(is_over).await;
    next.stop().await;
    fired.retain(|fired| !of_tick(fired));
    fired.sort_unstable_by_key(|fired| fired.fire_time);
    let results: Vec<TriggerResult> = fired.iter().map(|fired| fired.result).collect();
    assert_eq!(results, [TriggerResult::Queued, TriggerResult::Expired]);
    let there = async |shard| {
        let names = rig.nats.names();
        let subject = names.dispatch(&saved.spec.app, &saved.spec.handler, run, shard, 1);
        let stream = names.dispatch_stream(&saved.spec.app);
        last_by_subject(rig.nats.js(), &stream, &subject).await.unwrap().is_some()
    };
    assert!(there(1).await && there(0).await, "the other shard follows");
}

#[tokio::test]
async fn a_graceful_restart_misses_nothing_and_repeats_nothing() {
    let rig = Rig::start().await;
    rig.save(job("tick", json!({ "fixed_rate": "200ms" }))).await;
    // The first scheduler of all starts at its own now.
    for round in 1..=5 {
        let scheduler = rig.scheduler().await;
        rig.fired_until(|fired| fired.len() >= round * 5).await;
        scheduler.stop().await;
    }
    let fired = rig.fired().await;
    assert_complete(&fired, TimeDelta::milliseconds(200));
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_shop").await as usize, fired.len());
}

#[tokio::test]
async fn a_watermark_that_cannot_be_read_loses_nothing_that_was_due_since() {
    let rig = Rig::start().await;
    rig.save(job("tick", json!({ "fixed_rate": "200ms" }))).await;
    let first = rig.scheduler().await;
    rig.fired_until(|fired| fired.len() >= 5).await;
    let key = format!("scheduler.{}", first.node.instance());
    first.stop().await;
    rig.buckets.put(Bucket::Cursors, &key, "as you like", None).await.unwrap();
    rig.clock.step(TimeDelta::minutes(1));
    let so_far = rig.fired().await.len();
    let second = rig.scheduler().await;
    rig.fired_until(|fired| fired.len() >= so_far + 5).await;
    second.stop().await;
    assert_complete(&rig.fired().await, TimeDelta::milliseconds(200));
}
