//! Jobs with a rate: no window of its period has more runs that begin, over all schedulers, and what
//! the rate holds back runs later, in order.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Value, json};
use taskparty_common::fire::Fired;
use taskparty_common::job::Job;
use taskparty_common::outcome::SkipReason;
use taskparty_common::overlap::Places;
use taskparty_nats::subject::Bucket;
use tokio::sync::oneshot;

use crate::rig::{Rig, Scheduler, checked, job, skipped};
use crate::triggers::{request, send};

fn rated(id: &str, rate: &str) -> Value {
    let mut spec = job(id, json!(null));
    spec["rate"] = json!(rate);
    spec
}

async fn trigger(rig: &Rig, job: &Job, count: usize) {
    for n in 0..count {
        send(rig, &request(rig, job, &format!("t{n}"))).await;
    }
}

fn dispatched(fired: &[Fired]) -> Vec<&Fired> {
    let runs = |fired: &&Fired| !fired.awaits_place() && fired.skipped.is_none();
    fired.iter().filter(runs).collect()
}

async fn places(rig: &Rig, job: &str) -> Option<Places> {
    let entry = rig.buckets.get_leader(Bucket::Overlap, job).await.unwrap()?;
    serde_json::from_slice(&entry.value?).unwrap()
}

/// Each instant at which runs of `job` were let begin, by its entry, and how many; until `end`. What
/// stands there stands there for a period.
async fn beginnings(rig: &Rig, job: &str, mut end: oneshot::Receiver<()>) -> Vec<i64> {
    let mut counts: BTreeMap<i64, usize> = BTreeMap::new();
    loop {
        let over = end.try_recv().is_ok();
        let places = places(rig, job).await.unwrap_or_default();
        let text = serde_json::to_value(&places.starts).unwrap();
        let groups: Vec<(i64, usize)> = serde_json::from_value(text).unwrap();
        let mut now: BTreeMap<i64, usize> = BTreeMap::new();
        groups.into_iter().for_each(|(at, count)| *now.entry(at).or_default() += count);
        for (at, count) in now {
            let known = counts.entry(at).or_default();
            *known = count.max(*known);
        }
        if over {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    counts.into_iter().flat_map(|(at, count)| std::iter::repeat_n(at, count)).collect()
}

/// Asserts that no `count` + 1 of `instants`, which are in order, are less than a second apart.
fn assert_paced(instants: &[i64], count: usize) {
    for window in instants.windows(count + 1) {
        assert!(window[count] - window[0] >= 1_000, "{window:?} of {instants:?}");
    }
}

#[tokio::test]
async fn of_a_burst_over_two_schedulers_all_run_and_no_second_has_more_than_the_rate_says() {
    let rig = Rig::start().await;
    let schedulers = [rig.scheduler().await, rig.scheduler().await];
    let job = rig.save(rated("burst", "5/s")).await;
    let (stop, end) = oneshot::channel();
    let fire = async {
        trigger(&rig, &job, 23).await;
        let fired = rig.fired_until(|fired| dispatched(fired).len() == 23).await;
        stop.send(()).unwrap();
        fired
    };
    let (fired, begun) = tokio::join!(fire, beginnings(&rig, "burst", end));
    assert_eq!(begun.len(), 23, "each counts once");
    assert_paced(&begun, 5);
    let mut at: Vec<i64> =
        dispatched(&fired).iter().map(|fired| fired.fired_at.timestamp_millis()).collect();
    at.sort_unstable();
    assert!(at.iter().zip(&begun).all(|(at, begun)| at >= begun), "{at:?} {begun:?}");
    // Some were let begin at once, and the others were told what they wait for.
    let waited: Vec<&Fired> = fired.iter().filter(|fired| fired.awaits_place()).collect();
    assert!((15..=18).contains(&waited.len()), "{}", waited.len());
    assert!(waited.iter().any(|fired| fired.message.contains("its rate, 5/s, allows it at ")));
    assert_eq!(skipped(&fired, SkipReason::QueueFull), 0);
    futures::future::join_all(schedulers.map(Scheduler::stop)).await;
}

#[tokio::test]
async fn what_waits_for_its_rate_is_bounded_and_goes_on_at_once_when_the_rate_is_changed_or_gone() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let mut spec = rated("slow", "1/h");
    spec["queue_limit"] = json!(3);
    let job = rig.save(spec.clone()).await;
    trigger(&rig, &job, 6).await;
    let fired = rig.fired_until(|fired| fired.len() == 6).await;
    assert_eq!(dispatched(&fired).len(), 1);
    assert_eq!(skipped(&fired, SkipReason::QueueFull), 2);
    let waiting: Vec<_> = places(&rig, "slow").await.unwrap().waiting.into();
    // One more may begin in this hour.
    spec["rate"] = json!("2/h");
    rig.store(&job.with_spec(checked(spec.clone()), rig.clock.now(), "test")).await;
    let fired = rig.fired_until(|fired| dispatched(fired).len() == 2).await;
    assert_eq!(dispatched(&fired)[1].run, waiting[0], "in order");
    // Neither has ended: what may overlap itself does not wait for that.
    spec.as_object_mut().unwrap().remove("rate");
    rig.store(&job.with_spec(checked(spec), rig.clock.now(), "test")).await;
    let fired = rig.fired_until(|fired| dispatched(fired).len() == 4).await;
    let runs: Vec<_> = dispatched(&fired).iter().map(|fired| fired.run).collect();
    assert_eq!(runs[1..], waiting);
    scheduler.stop().await;
}

#[tokio::test]
async fn a_catch_up_goes_by_the_rate_and_drops_nothing() {
    let rig = Rig::start().await;
    let before = rig.scheduler().await;
    let mut spec = rated("turns", "4/s");
    spec["schedule"] = json!({ "fixed_rate": "30s" });
    spec["misfire"] = json!({ "policy": "all" });
    // One that is caught up with, and the latest, which is on time.
    spec["queue_limit"] = json!(2);
    rig.save(spec).await;
    rig.save(job("tick", json!({ "fixed_rate": "1s", "timezone": "UTC" }))).await;
    rig.fired_until(|fired| fired.len() >= 2).await;
    rig.buckets.delete(Bucket::Jobs, "tick").await.unwrap();
    before.stop().await;
    rig.clock.step(TimeDelta::minutes(10));
    let after = rig.scheduler().await;
    let (stop, end) = oneshot::channel();
    let fire = async {
        let of_turns = |fired: &[Fired]| {
            let all = dispatched(fired).into_iter().filter(|fired| fired.job.as_str() == "turns");
            all.cloned().collect::<Vec<_>>()
        };
        let fired = rig.fired_until(|fired| of_turns(fired).len() >= 20).await;
        stop.send(()).unwrap();
        of_turns(&fired)
    };
    let (fired, begun) = tokio::join!(fire, beginnings(&rig, "turns", end));
    assert_paced(&begun, 4);
    let times: Vec<_> = fired.iter().map(|fired| fired.fire_time).collect();
    assert!(times.is_sorted(), "in order: {times:?}");
    let left_out: Vec<_> = rig.fired().await.into_iter().filter_map(|f| f.skipped).collect();
    assert!(left_out.is_empty(), "none is dropped: {left_out:?}");
    after.stop().await;
}
