//! Jobs fire when they are due, and not before.

use chrono::TimeDelta;
use serde_json::json;
use taskparty_common::outcome::{Trigger, TriggerResult};
use taskparty_nats::subject::Bucket;

use crate::rig::{Rig, assert_complete, job, ran};

#[tokio::test]
async fn a_job_each_second_fires_each_second_and_never_early() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let saved = rig.save(job("tick", json!({ "cron": "* * * * * ?", "timezone": "UTC" }))).await;
    let fired = rig.fired_until(|fired| fired.len() >= 5).await;
    scheduler.stop().await;
    assert_complete(&fired, TimeDelta::seconds(1));
    for fired in &fired {
        assert!(fired.fire_time >= saved.meta.since, "nothing before it was created (F6)");
        assert!(fired.fired_at >= fired.fire_time);
        assert_eq!((fired.trigger, fired.plan.total), (Trigger::Schedule, 1));
        assert_eq!(fired.result, TriggerResult::Queued, "nobody can run it yet");
    }
    let waiting = rig.messages("TASKPARTY_DISPATCH_shop").await;
    assert_eq!(waiting as usize, rig.fired().await.len());
}

#[tokio::test]
async fn each_shard_is_a_message_of_its_own() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let mut spec = job("once", json!({ "at": "2026-01-01T00:00:00Z" }));
    let soon = rig.clock.now() + TimeDelta::milliseconds(300);
    spec["schedule"]["at"] = json!(soon.to_rfc3339_opts(chrono::SecondsFormat::Millis, true));
    spec["shards"] = json!(4);
    rig.save(spec).await;
    let fired = rig.fired_until(|fired| !fired.is_empty()).await;
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_shop").await, 4);
    scheduler.stop().await;
    assert_eq!((fired.len(), fired[0].plan.total), (1, 4));
}

#[tokio::test]
async fn a_broken_definition_harms_no_other_job() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    for (key, value) in [("broken", r#"{"format":1,"spec":{"id":"broken"}}"#), ("worse", "\u{0}{")]
    {
        rig.buckets.put(Bucket::Jobs, key, value, None).await.unwrap();
    }
    for n in 0..99 {
        rig.save(job(&format!("sound-{n}"), json!({ "fixed_rate": "1s" }))).await;
    }
    let jobs = |fired: &[taskparty_common::fire::Fired]| {
        fired.iter().map(|fired| fired.job.clone()).collect::<std::collections::BTreeSet<_>>().len()
    };
    rig.fired_until(|fired| jobs(fired) == 99).await;
    let broken: Vec<String> =
        scheduler.node.jobs().broken().into_iter().map(|(id, _)| id).collect();
    assert_eq!(broken, ["broken", "worse"]);
    scheduler.stop().await;
}

#[tokio::test]
async fn ten_thousand_jobs_of_the_same_second_all_fire() {
    let rig = Rig::start().await;
    let at = rig.clock.now() + TimeDelta::seconds(12);
    let at = json!({ "at": at.to_rfc3339_opts(chrono::SecondsFormat::Secs, true) });
    let saves = (0..10_000).map(|n| rig.save(job(&format!("herd-{n}"), at.clone())));
    futures::future::join_all(saves).await;
    let scheduler = rig.scheduler().await;
    let fired = rig.fired_until(|fired| fired.len() >= 10_000).await;
    scheduler.stop().await;
    assert_eq!(ran(&fired).len(), 10_000);
    assert_eq!(rig.locks().await.len(), 10_000);
}
