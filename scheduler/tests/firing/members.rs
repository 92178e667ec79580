//! Many schedulers share the work, and take over from each other.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;
use futures::StreamExt;
use serde_json::json;
use taskparty_common::fire::Fired;
use taskparty_common::outcome::SkipReason;
use taskparty_nats::clock::Clock;
use taskparty_nats::proxy::Proxy;
use taskparty_nats::subject::Bucket;

use crate::rig::{PATIENCE, Rig, Scheduler, assert_complete, job, skipped};

/// Who fired how many of `fired`.
fn owners(fired: &[Fired]) -> BTreeMap<String, usize> {
    let mut owners = BTreeMap::new();
    for fired in fired {
        *owners.entry(fired.owner.to_string()).or_default() += 1;
    }
    owners
}

fn id(scheduler: &Scheduler) -> String {
    scheduler.node.instance().to_string()
}

async fn save_jobs(rig: &Rig, count: usize) {
    for n in 0..count {
        rig.save(job(&format!("job-{n}"), json!({ "fixed_rate": "500ms" }))).await;
    }
}

fn assert_all_complete(fired: &[Fired], count: usize) {
    for n in 0..count {
        let id = format!("job-{n}");
        let of_job: Vec<Fired> =
            fired.iter().filter(|fired| fired.job.as_str() == id).cloned().collect();
        assert_complete(&of_job, TimeDelta::milliseconds(500));
    }
}

/// Waits until what was fired after now was fired by exactly `wanted`.
async fn until_fired_by(rig: &Rig, wanted: &[&Scheduler]) {
    let mut wanted: Vec<String> = wanted.iter().map(|scheduler| id(scheduler)).collect();
    wanted.sort();
    let mut from = rig.fired().await.len();
    loop {
        let more = rig.fired_until(|fired| fired.len() >= from + 40).await;
        if owners(&more[from..]).into_keys().eq(wanted.iter().cloned()) {
            return;
        }
        from = more.len();
    }
}

#[tokio::test]
async fn schedulers_that_come_and_go_share_the_jobs_and_miss_nothing() {
    let rig = Rig::start().await;
    let first = rig.scheduler().await;
    save_jobs(&rig, 20).await;
    until_fired_by(&rig, &[&first]).await;
    let second = rig.scheduler().await;
    until_fired_by(&rig, &[&first, &second]).await;
    let third = rig.scheduler().await;
    until_fired_by(&rig, &[&first, &second, &third]).await;
    first.stop().await;
    until_fired_by(&rig, &[&second, &third]).await;
    third.stop().await;
    until_fired_by(&rig, &[&second]).await;
    second.stop().await;
    let fired = rig.fired().await;
    assert_all_complete(&fired, 20);
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_shop").await as usize, fired.len());
}

#[tokio::test]
async fn a_membership_key_that_vanishes_doubles_nothing_and_loses_nothing() {
    let rig = Rig::start().await;
    let (first, second) = (rig.scheduler().await, rig.scheduler().await);
    save_jobs(&rig, 10).await;
    until_fired_by(&rig, &[&first, &second]).await;
    for _ in 0..10 {
        rig.buckets.delete(Bucket::Schedulers, &id(&first)).await.unwrap();
        let so_far = rig.fired().await.len();
        rig.fired_until(|fired| fired.len() >= so_far + 20).await;
    }
    until_fired_by(&rig, &[&first, &second]).await;
    first.stop().await;
    second.stop().await;
    let fired = rig.fired().await;
    assert_all_complete(&fired, 10);
    let locks: std::collections::BTreeSet<&String> =
        fired.iter().map(|fired| &fired.lock).collect();
    assert_eq!(locks.len(), fired.len());
}

#[tokio::test]
async fn who_comes_back_fires_only_when_its_watermark_is_stored_again() {
    let rig = Rig::start().await;
    let one = rig.scheduler().await;
    rig.save(job("tick", json!({ "fixed_rate": "100ms" }))).await;
    let (key, names) = (format!("scheduler.{}", id(&one)), rig.nats.names());
    let watermark = names.key(Bucket::Cursors, &key);
    let (beat, locks) = (names.key(Bucket::Schedulers, &id(&one)), names.key(Bucket::Fires, ""));
    let (watermark, beat, locks) = (watermark.as_str(), beat.as_str(), locks.as_str());
    let mut all = rig.nats.client().subscribe("$KV.>").await.unwrap();
    // The next message on one of these, and whether it removes a key.
    let mut next = async |wanted: &[&str], within: Duration| {
        let next = async {
            loop {
                let message = all.next().await.unwrap();
                let on = |subject: &&str| message.subject.starts_with(*subject);
                if let Some(at) = wanted.iter().position(on) {
                    return (at, message.payload.is_empty());
                }
            }
        };
        tokio::time::timeout(within, next).await.ok()
    };
    loop {
        next(&[locks], PATIENCE).await.unwrap();
        // It has just stored its watermark, and shown that it lives. Then it seems gone to the others,
        // who take over from its watermark and remove that.
        next(&[watermark], PATIENCE).await.unwrap();
        next(&[beat], PATIENCE).await.unwrap();
        rig.buckets.delete(Bucket::Schedulers, &id(&one)).await.unwrap();
        rig.buckets.purge(Bucket::Cursors, &key).await.unwrap();
        while next(&[watermark], PATIENCE).await != Some((0, true)) {}
        // It has seen that, and fires no more, before it shows again that it lives.
        let silence = loop {
            match next(&[locks, watermark, beat], Duration::from_millis(300)).await {
                Some((0, _)) => {}
                other => break other.is_none(),
            }
        };
        if silence {
            break;
        }
    }
    // It shows at once that it has seen this one, and so that it lives.
    rig.save(job("other", json!({ "at": "2099-01-31T09:00:00" }))).await;
    let first = next(&[watermark, locks], PATIENCE).await;
    assert_eq!(first, Some((0, false)), "it fired without a watermark");
    one.stop().await;
}

#[tokio::test]
async fn membership_that_changes_while_the_past_is_read_lets_nobody_leave_out_what_was_fired_long_ago()
 {
    let rig = Rig::start().await;
    // Reading takes many ways there and back: on a slow one there is time for much to change.
    let slow = Proxy::start(rig.server.address()).await.unwrap();
    let all = [rig.scheduler().await, rig.scheduler_over(&slow).await, rig.scheduler().await];
    for n in 0..12 {
        let mut spec = job(&format!("job-{n}"), json!({ "fixed_rate": "500ms" }));
        spec["misfire"] = json!({ "policy": "skip", "grace": "200ms" });
        rig.save(spec).await;
    }
    until_fired_by(&rig, &all.each_ref()).await;
    slow.delay(Duration::from_millis(40));
    for round in 0..12 {
        rig.buckets.delete(Bucket::Schedulers, &id(&all[round % 3])).await.unwrap();
        let so_far = rig.fired().await.len();
        rig.fired_until(|fired| fired.len() >= so_far + 12).await;
    }
    slow.heal();
    until_fired_by(&rig, &all.each_ref()).await;
    for scheduler in all {
        scheduler.stop().await;
    }
    let fired = rig.fired().await;
    for left_out in fired.iter().filter(|fired| fired.skipped.is_some()) {
        let first = left_out.skipped.as_ref().map_or(left_out.fire_time, |skipped| skipped.first);
        let mut ran = fired.iter().filter(|ran| ran.skipped.is_none() && ran.job == left_out.job);
        let both = ran.find(|ran| (first..left_out.fire_time).contains(&ran.fire_time));
        assert!(both.is_none(), "{both:#?} {left_out:#?}");
    }
}

#[tokio::test]
async fn a_scheduler_whose_clock_is_wrong_does_not_fire_and_another_does() {
    let rig = Rig::start().await;
    let right = rig.scheduler().await;
    save_jobs(&rig, 10).await;
    until_fired_by(&rig, &[&right]).await;
    let clock = Clock::system();
    let wrong = rig.scheduler_with(clock.clone(), Some(Duration::from_secs(2))).await;
    until_fired_by(&rig, &[&right, &wrong]).await;
    clock.step(TimeDelta::hours(-1));
    // The wrong one keeps its share of the jobs, as it lives; what it missed it catches up with.
    rig.fired_until(|fired| {
        let latest = |owner: &str| {
            fired.iter().filter(|f| f.owner.as_str() == owner).map(|f| f.fire_time).max()
        };
        latest(&id(&right)) > latest(&id(&wrong)).map(|at| at + TimeDelta::seconds(4))
    })
    .await;
    clock.step(TimeDelta::hours(1));
    until_fired_by(&rig, &[&right, &wrong]).await;
    right.stop().await;
    wrong.stop().await;
    assert_all_complete(&rig.fired().await, 10);
}

#[tokio::test]
async fn a_stepped_clock_repeats_nothing_and_a_step_forward_is_a_misfire() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let mut spec = job("tick", json!({ "fixed_rate": "1s" }));
    spec["misfire"] = json!({ "policy": "once" });
    rig.save(spec).await;
    let mut wanted = 3;
    for step in [TimeDelta::seconds(-2), TimeDelta::hours(1), TimeDelta::seconds(-2)] {
        rig.fired_until(|fired| fired.len() >= wanted).await;
        rig.clock.step(step);
        wanted = rig.fired().await.len() + 3;
    }
    let missed = |fired: &[Fired]| skipped(fired, SkipReason::Misfire);
    let is_over = |fired: &[Fired]| fired.len() >= wanted && missed(fired) >= 3_590;
    rig.fired_until(is_over).await;
    scheduler.stop().await;
    let fired = rig.fired().await;
    assert_complete(&fired, TimeDelta::seconds(1));
    assert!(missed(&fired) < 3_620, "the hour is recorded once: {}", missed(&fired));
}

#[tokio::test]
async fn watermarks_of_those_that_have_gone_do_not_pile_up() {
    let rig = Rig::start().await;
    save_jobs(&rig, 3).await;
    for _ in 0..3 {
        let scheduler = rig.scheduler().await;
        let so_far = rig.fired().await.len();
        rig.fired_until(|fired| fired.len() > so_far + 3).await;
        scheduler.stop().await;
    }
    let last = rig.scheduler().await;
    let end = tokio::time::Instant::now() + crate::rig::PATIENCE;
    loop {
        let marks = rig.buckets.entries(Bucket::Cursors, "scheduler.*").await.unwrap();
        if marks.len() == 1 {
            break;
        }
        assert!(tokio::time::Instant::now() < end, "{} watermarks are left", marks.len());
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    last.stop().await;
    assert_all_complete(&rig.fired().await, 3);
}
