//! What was missed is caught up with by the job's policy, over a real stop.

use chrono::{SubsecRound, TimeDelta};
use serde_json::{Value, json};
use taskparty_common::fire::Fired;
use taskparty_common::outcome::{SkipReason, Trigger};
use taskparty_nats::subject::Bucket;

use crate::rig::{Rig, assert_complete, job, ran, skipped};

/// A job each 30 s, counted from a whole second in the past so that the instants are known.
fn each_30s(rig: &Rig, id: &str, policy: &str) -> Value {
    let from = (rig.clock.now() - TimeDelta::seconds(15)).trunc_subsecs(0);
    let from = from.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
    let mut spec = job(id, json!({ "fixed_rate": "30s", "from": from }));
    spec["misfire"] = json!({ "policy": policy });
    spec
}

fn of(fired: &[Fired], job: &str) -> Vec<Fired> {
    fired.iter().filter(|fired| fired.job.as_str() == job).cloned().collect()
}

#[tokio::test]
async fn six_hours_without_a_scheduler_are_caught_up_with_by_policy() {
    let rig = Rig::start().await;
    let before = rig.scheduler().await;
    for policy in ["all", "once", "skip"] {
        rig.save(each_30s(&rig, policy, policy)).await;
    }
    // A tick shows that the watermark is on its way.
    rig.save(job("tick", json!({ "fixed_rate": "1s" }))).await;
    rig.fired_until(|fired| of(fired, "tick").len() >= 2).await;
    before.stop().await;
    let so_far = rig.fired().await;
    let known = |name: &str| of(&so_far, name).len();

    rig.clock.step(TimeDelta::hours(6));
    let after = rig.scheduler().await;
    let fired = rig
        .fired_until(|fired| {
            of(fired, "all").len() >= known("all") + 720
                && of(fired, "once").len() >= known("once") + 2
                && of(fired, "skip").len() > known("skip")
        })
        .await;
    after.stop().await;

    let all = of(&fired, "all");
    assert_complete(&all, TimeDelta::seconds(30));
    assert_eq!(skipped(&all, SkipReason::Misfire), 0);
    let caught_up: Vec<_> =
        all.iter().filter(|f| f.trigger == Trigger::Misfire).map(|f| f.fire_time).collect();
    assert!(caught_up.is_sorted(), "in order");

    let once = &of(&fired, "once")[known("once")..];
    assert_complete(once, TimeDelta::seconds(30));
    assert_eq!(ran(once).len(), 1);
    let latest = once.iter().map(|fired| fired.fire_time).max();
    assert_eq!(Some(ran(once)[0].fire_time), latest);

    let skip = &of(&fired, "skip")[known("skip")..];
    assert_complete(skip, TimeDelta::seconds(30));
    assert!(skipped(skip, SkipReason::Misfire) >= 719);
}

#[tokio::test]
async fn a_stop_while_it_catches_up_misses_nothing() {
    let rig = Rig::start().await;
    let before = rig.scheduler().await;
    let mut spec = job("tick", json!({ "fixed_rate": "30s" }));
    spec["misfire"] = json!({ "policy": "all" });
    rig.save(spec).await;
    rig.save(job("other", json!({ "fixed_rate": "1s" }))).await;
    rig.fired_until(|fired| of(fired, "other").len() >= 2).await;
    before.stop().await;
    rig.clock.step(TimeDelta::hours(6));
    for more in [20, 200, 720] {
        let scheduler = rig.scheduler().await;
        let own = format!("scheduler.{}", scheduler.node.instance());
        rig.fired_until(|fired| of(fired, "tick").len() >= more).await;
        scheduler.stop().await;
        // As those of the others go after a while.
        for mark in rig.buckets.entries(Bucket::Cursors, "scheduler.*").await.unwrap() {
            if *mark.key != *own {
                rig.buckets.delete(Bucket::Cursors, &mark.key).await.unwrap();
            }
        }
    }
    assert_complete(&of(&rig.fired().await, "tick"), TimeDelta::seconds(30));
}

#[tokio::test]
async fn deleting_a_job_stops_its_catch_up() {
    let rig = Rig::start().await;
    let before = rig.scheduler().await;
    let mut spec = job("tick", json!({ "fixed_rate": "1s" }));
    spec["misfire"] = json!({ "policy": "all" });
    rig.save(spec).await;
    rig.fired_until(|fired| fired.len() >= 2).await;
    before.stop().await;

    rig.clock.step(TimeDelta::hours(12));
    let after = rig.scheduler().await;
    rig.fired_until(|fired| fired.len() >= 20).await;
    let revision = rig.buckets.delete(Bucket::Jobs, "tick").await.unwrap();
    rig.seen(revision).await;
    after.stop().await;
    assert!(rig.fired().await.len() < 40_000, "half a day of seconds was not caught up with");
    let stopped = rig.fired().await.len();
    let idle = rig.scheduler().await;
    rig.save(job("other", json!({ "fixed_rate": "1s" }))).await;
    rig.fired_until(|fired| !of(fired, "other").is_empty()).await;
    idle.stop().await;
    assert_eq!(of(&rig.fired().await, "tick").len(), stopped);
}

#[tokio::test]
async fn a_job_every_two_hours_keeps_its_time_over_a_restart_in_between() {
    let rig = Rig::start().await;
    let before = rig.scheduler().await;
    let saved = rig.save(job("slow", json!({ "fixed_rate": "2h" }))).await;
    rig.save(job("tick", json!({ "fixed_rate": "1s" }))).await;
    rig.fired_until(|fired| of(fired, "tick").len() >= 2).await;
    before.stop().await;
    rig.clock.step(TimeDelta::hours(1));
    rig.scheduler().await.stop().await;
    assert!(of(&rig.fired().await, "slow").is_empty());
    rig.clock.step(TimeDelta::hours(1));
    let after = rig.scheduler().await;
    let fired = rig.fired_until(|fired| !of(fired, "slow").is_empty()).await;
    after.stop().await;
    assert_eq!(
        of(&fired, "slow")[0].fire_time,
        saved.meta.anchor.trunc_subsecs(3) + TimeDelta::hours(2)
    );
}

#[tokio::test]
async fn an_outage_of_nats_over_the_due_time_is_one_run_or_one_record() {
    let mut rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let due = (rig.clock.now() + TimeDelta::seconds(4)).trunc_subsecs(0);
    for policy in ["once", "skip"] {
        let cron = due.format("%-S %-M %-H %-d %-m ? *").to_string();
        let mut spec = job(policy, json!({ "cron": cron, "timezone": "UTC" }));
        spec["misfire"] = json!({ "policy": policy, "grace": "2s" });
        let saved = rig.save(spec).await;
        let revision = rig.store(&saved).await;
        rig.seen(revision).await;
    }
    assert!(rig.clock.now() < due, "the machine is too busy for this test");
    rig.server.kill();
    // The outage ends, by the schedulers' clock, long after the due time and its grace.
    rig.clock.step(TimeDelta::seconds(50));
    rig.server.restart().await.unwrap();
    let fired = rig.fired_until(|fired| fired.len() >= 2).await;
    scheduler.stop().await;
    let (once, skip) = (of(&fired, "once"), of(&fired, "skip"));
    assert_eq!((once.len(), ran(&once).len()), (1, 1));
    assert_eq!((skip.len(), skipped(&skip, SkipReason::Misfire)), (1, 1));
    assert_eq!((once[0].fire_time, skip[0].fire_time), (due, due));
}

#[tokio::test]
async fn what_is_due_now_does_not_wait_for_what_many_jobs_have_missed() {
    const JOBS: usize = 200;
    const MISSED_EACH: usize = 240;
    let rig = Rig::start().await;
    let before = rig.scheduler().await;
    for n in 0..JOBS {
        rig.save(each_30s(&rig, &format!("missed-{n}"), "all")).await;
    }
    rig.save(job("tick", json!({ "fixed_rate": "1s" }))).await;
    rig.fired_until(|fired| of(fired, "tick").len() >= 2).await;
    before.stop().await;

    rig.clock.step(TimeDelta::hours(2));
    let again = rig.clock.now();
    let after = rig.scheduler().await;
    let is_on_time = |fired: &Fired| fired.fire_time > again && fired.trigger == Trigger::Schedule;
    let fired = rig.fired_until(|fired| of(fired, "tick").iter().any(is_on_time)).await;
    after.stop().await;
    let caught_up = fired.iter().filter(|fired| fired.trigger == Trigger::Misfire).count();
    assert!((1..JOBS * MISSED_EACH).contains(&caught_up), "{caught_up} were caught up with before");
}
