//! Triggers fire at once or at their time, once for each id, whatever happens to who has them.

use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use futures::{FutureExt, StreamExt};
use serde_json::json;
use taskparty_common::fire::{FireId, Intent, Plan, RetryOf, TriggerRequest};
use taskparty_common::job::Job;
use taskparty_common::outcome::{SkipReason, Trigger, TriggerResult};
use taskparty_nats::history::{delete_message, last_by_subject};
use taskparty_nats::lock::Locks;
use taskparty_nats::publish::Draft;
use taskparty_nats::topology::TopologyConfig;

use crate::recovery::intent;
use crate::rig::{PATIENCE, Rig, job};

/// A manual trigger with the id `id`.
pub(crate) fn request(rig: &Rig, job: &Job, id: &str) -> TriggerRequest {
    let at = rig.clock.now();
    let fire = FireId::trigger(job.spec.id.clone(), id);
    let run = fire.run(rig.nats.names().prefix(), job.meta.since.timestamp_millis(), at);
    let whose = (job.spec.app.clone(), job.spec.handler.clone());
    TriggerRequest {
        by: "test".into(),
        ..TriggerRequest::new(id, fire.job, whose, Trigger::Manual, run, at)
    }
}

pub(crate) async fn send(rig: &Rig, request: &TriggerRequest) {
    let subject = rig.nats.names().trigger(&request.job);
    let value = serde_json::to_vec(request).unwrap();
    rig.buckets.publisher().publish(Draft::new(subject, value)).await.unwrap();
}

async fn on_demand(rig: &Rig) -> Job {
    let mut spec = job("demand", json!(null));
    spec["shards"] = json!(3);
    rig.save(spec).await
}

#[tokio::test]
async fn a_trigger_fires_once_for_its_id() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    let first = request(&rig, &job, "one");
    for _ in 0..3 {
        send(&rig, &first).await;
    }
    let second = request(&rig, &job, "two");
    send(&rig, &second).await;
    let fired = rig.fired_until(|fired| fired.iter().any(|fired| fired.run == second.run)).await;
    scheduler.stop().await;
    assert_eq!(rig.fired().await.len(), 2);
    assert_eq!(fired[0].trigger, Trigger::Manual);
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_shop").await, 6);
    assert_eq!(rig.messages("TASKPARTY_TRIGGERS").await, 0, "every trigger is acked");
}

#[tokio::test]
async fn a_delayed_trigger_fires_at_its_time() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    let at = rig.clock.now() + TimeDelta::seconds(2);
    let request = TriggerRequest { trigger: Trigger::Delayed, at, ..request(&rig, &job, "later") };
    let names = rig.nats.names();
    let value = serde_json::to_vec(&request).unwrap();
    let draft = Draft::new(names.delay("later"), value).at(at, names.trigger(&job.spec.id));
    rig.buckets.publisher().publish(draft).await.unwrap();
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    scheduler.stop().await;
    assert!(fired[0].fired_at >= at);
    assert_eq!((fired[0].run, fired[0].trigger), (request.run, Trigger::Delayed));
    assert_eq!(rig.messages("TASKPARTY_TRIGGERS").await, 0, "the schedule is gone");
}

#[tokio::test]
async fn a_trigger_of_a_job_that_is_gone_is_refused_on_record() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = Job::new(crate::rig::checked(job("never", json!(null))), rig.clock.now(), "test");
    send(&rig, &request(&rig, &job, "one")).await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    scheduler.stop().await;
    assert_eq!(fired[0].result, TriggerResult::Refused);
    assert_eq!(fired[0].skipped.as_ref().map(|s| s.reason), Some(SkipReason::Deleted));
}

#[tokio::test]
async fn a_chain_goes_on_by_what_history_knows_of_its_past_and_ends_with_that_past() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    // History keeps milliseconds.
    let since = DateTime::from_timestamp_millis(job.meta.since.timestamp_millis());
    let earlier = since.map(|since| since - TimeDelta::milliseconds(1));
    send(&rig, &TriggerRequest { since: earlier, ..request(&rig, &job, "run-0.next") }).await;
    send(&rig, &TriggerRequest { since, ..request(&rig, &job, "run-1.next") }).await;
    send(&rig, &request(&rig, &job, "after")).await;
    let fired = rig.fired_until(|fired| fired.len() == 2).await;
    scheduler.stop().await;
    let mut ids: Vec<&str> = fired.iter().map(|fired| fired.lock.as_str()).collect();
    ids.sort_unstable();
    assert_eq!(ids, ["demand.x.after", "demand.x.run-1.next"]);
    assert_eq!(rig.messages("TASKPARTY_TRIGGERS").await, 0);
}

#[tokio::test]
async fn an_attempt_that_was_not_acked_is_gone_before_the_next_one_is_there() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    let first = request(&rig, &job, "one");
    send(&rig, &first).await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    let retry = RetryOf {
        revision: fired[0].revision,
        since: fired[0].since,
        fire_time: fired[0].fire_time,
        plan: Plan { only: Some(1), attempt: 2, ..fired[0].plan.clone() },
        definition: fired[0].definition.clone(),
    };
    // Its executor has reported the failure of shard 1, and died before the ack.
    let id = taskparty_common::fire::retry_id(first.run, 1, 2);
    let second = TriggerRequest { retry: Some(retry), id, ..first.clone() };
    send(&rig, &second).await;
    rig.fired_until(|fired| fired.len() == 2).await;
    scheduler.stop().await;
    let (app, handler) = (&job.spec.app, &job.spec.handler);
    let at = async |shard, attempt| {
        let subject = rig.nats.names().dispatch(app, handler, first.run, shard, attempt);
        let stream = rig.nats.names().dispatch_stream(app);
        last_by_subject(rig.nats.js(), &stream, &subject).await.unwrap().is_some()
    };
    assert!(at(0, 1).await && at(2, 1).await && at(1, 2).await);
    assert!(!at(1, 1).await, "nobody gets it again");
}

/// Whoever got the message again just before it was removed works on it until the lease ends.
#[tokio::test]
async fn who_completes_an_attempt_waits_for_the_lease_of_the_one_before() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    let first = request(&rig, &job, "one");
    send(&rig, &first).await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    // A scheduler has locked the retry of shard 1, has removed the attempt before, and was stopped.
    let names = rig.nats.names();
    let subject = names.dispatch(&job.spec.app, &job.spec.handler, first.run, 1, 1);
    let stream = names.dispatch_stream(&job.spec.app);
    let before = last_by_subject(rig.nats.js(), &stream, &subject).await.unwrap().unwrap();
    delete_message(rig.nats.js(), &stream, before.seq).await.unwrap();
    let retry = RetryOf {
        revision: fired[0].revision,
        since: fired[0].since,
        fire_time: fired[0].fire_time,
        plan: Plan { only: Some(1), attempt: 2, ..fired[0].plan.clone() },
        definition: fired[0].definition.clone(),
    };
    let id = taskparty_common::fire::retry_id(first.run, 1, 2);
    let half = Intent {
        run: first.run,
        trigger: Trigger::Retry,
        plan: retry.plan.clone(),
        ..intent(&job, 1, rig.clock.now())
    };
    let key = FireId::trigger(job.spec.id.clone(), id.clone()).lock_key();
    let value = serde_json::to_vec(&half).unwrap();
    Locks::new(rig.buckets.clone())
        .take(&key, value, taskparty_nats::lock::SHORTEST)
        .await
        .unwrap();
    send(&rig, &TriggerRequest { retry: Some(retry), id, ..first.clone() }).await;
    let fired = rig.fired_until(|fired| fired.len() == 2).await;
    let waited = fired[1].fired_at - half.planned_at;
    assert!(waited >= TimeDelta::from_std(TopologyConfig::default().lease).unwrap(), "{waited}");
    // Meanwhile nobody else got the trigger.
    let triggers = rig.nats.js().get_stream(names.triggers_stream()).await.unwrap();
    let delivered = triggers.consumer_info("schedulers").await.unwrap().delivered;
    assert_eq!(delivered.consumer_sequence, 2);
    scheduler.stop().await;
}

#[tokio::test]
async fn what_became_of_many_half_done_triggers_is_looked_up_together() {
    const MANY: usize = 40;
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    let locks = Locks::new(rig.buckets.clone());
    let mut requests = Vec::new();
    for n in 0..MANY {
        let request = request(&rig, &job, &format!("half-{n}"));
        let half = intent(&job, 1, request.at);
        let half = Intent { run: request.run, trigger: Trigger::Manual, ..half };
        let key = FireId::trigger(job.spec.id.clone(), request.id.clone()).lock_key();
        let value = serde_json::to_vec(&half).unwrap();
        locks.take(&key, value, taskparty_nats::lock::SHORTEST).await.unwrap();
        requests.push(request);
    }
    let made = "$JS.API.CONSUMER.CREATE.TASKPARTY_RESULTS.>";
    let mut looks = rig.nats.client().subscribe(made).await.unwrap();
    // Each of them finds its lock taken.
    for request in &requests {
        send(&rig, request).await;
    }
    let end = tokio::time::Instant::now() + PATIENCE;
    while rig.messages("TASKPARTY_TRIGGERS").await > 0 {
        assert!(tokio::time::Instant::now() < end, "the triggers are not over");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    rig.nats.client().flush().await.unwrap();
    let mut count = 0;
    while looks.next().now_or_never().flatten().is_some() {
        count += 1;
    }
    let fired = rig.fired().await;
    scheduler.stop().await;
    assert_eq!(fired.len(), MANY);
    assert!((1..MANY / 2).contains(&count), "{count} looks");
}

#[tokio::test]
async fn what_is_no_trigger_is_dropped_and_harms_no_other() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    let subject = rig.nats.names().trigger(&job.spec.id);
    for garbage in ["", "{", "null", "{\"v\":1}"] {
        rig.buckets.publisher().publish(Draft::new(subject.clone(), garbage)).await.unwrap();
    }
    send(&rig, &request(&rig, &job, "one")).await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    scheduler.stop().await;
    assert_eq!(fired.len(), 1);
    assert_eq!(rig.messages("TASKPARTY_TRIGGERS").await, 0);
}

#[tokio::test]
async fn a_trigger_that_is_not_to_run_is_on_record_with_its_reason_and_nothing_is_dispatched() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = on_demand(&rig).await;
    send(&rig, &TriggerRequest { refused: "in a circle".into(), ..request(&rig, &job, "no") })
        .await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    assert_eq!(
        (fired[0].result, fired[0].message.as_str()),
        (TriggerResult::Refused, "in a circle")
    );
    assert!(rig.locks().await.is_empty());
    scheduler.stop().await;
}
