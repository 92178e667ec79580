//! Jobs that may not overlap themselves: one run at a time over all schedulers, the others wait in
//! order or are left out, and nobody waits for ever. The test is the executor.

use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Value, json};
use taskparty_common::dispatch::{Dispatch, ResultRecord};
use taskparty_common::fire::Fired;
use taskparty_common::job::Job;
use taskparty_common::name::Instance;
use taskparty_common::outcome::{Outcome, SkipReason, TriggerResult};
use taskparty_nats::history::{ReadError, delete_message, message, stream_info};
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use tokio::time::Instant;
use uuid::Uuid;

use crate::rig::{PATIENCE, Rig, job, skipped};
use crate::triggers::{request, send};

const STREAM: &str = "TASKPARTY_DISPATCH_shop";

fn in_turn(id: &str, overlap: &str) -> Value {
    let mut spec = job(id, json!(null));
    spec["overlap"] = json!(overlap);
    spec
}

async fn trigger(rig: &Rig, job: &Job, id: &str) -> Uuid {
    let request = request(rig, job, id);
    send(rig, &request).await;
    request.run
}

/// The work that is in the stream, with its sequence. A work queue is read message by message.
async fn work(rig: &Rig) -> Vec<(u64, Dispatch)> {
    let info = match stream_info(rig.nats.js(), STREAM).await {
        Ok(info) => info,
        Err(ReadError::NoStream(_)) => return Vec::new(),
        Err(error) => panic!("{error}"),
    };
    let mut work = Vec::new();
    for seq in info.first_seq.max(1)..=info.last_seq {
        if let Some(record) = message(rig.nats.js(), STREAM, seq).await.unwrap() {
            work.push((seq, serde_json::from_slice(&record.payload).unwrap()));
        }
    }
    work
}

/// Waits for the only work that there is.
pub(crate) async fn next_work(rig: &Rig) -> (u64, Dispatch) {
    let end = Instant::now() + PATIENCE;
    loop {
        let mut work = work(rig).await;
        assert!(work.len() <= 1, "{} runs at once", work.len());
        if let Some(work) = work.pop() {
            return work;
        }
        assert!(Instant::now() < end, "no work came");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Does the work, as an executor does: the result is stored before the dispatch goes.
pub(crate) async fn finish(rig: &Rig, (seq, dispatch): (u64, Dispatch)) {
    let now = rig.clock.now();
    let result = ResultRecord {
        v: 1,
        run: dispatch.run,
        job: dispatch.job,
        shard: dispatch.shard,
        attempt: dispatch.attempt,
        delivery: 1,
        instance: Instance::new("test").unwrap(),
        outcome: Outcome::Succeeded,
        code: None,
        message: String::new(),
        output: None,
        truncated: false,
        retryable: true,
        fire_time: dispatch.fire_time,
        started_at: Some(now),
        finished_at: now,
    };
    delete_message(rig.nats.js(), STREAM, seq).await.unwrap();
    let subject = rig.nats.names().result(&dispatch.app);
    let value = serde_json::to_vec(&result).unwrap();
    rig.buckets.publisher().publish(Draft::new(subject, value)).await.unwrap();
}

fn of_result(fired: &[Fired], result: TriggerResult) -> Vec<Uuid> {
    fired.iter().filter(|fired| fired.result == result).map(|fired| fired.run).collect()
}

#[tokio::test]
async fn runs_take_turns_in_the_order_in_which_they_came() {
    let rig = Rig::start().await;
    let schedulers = futures::future::join_all((0..3).map(|_| rig.scheduler())).await;
    let job = rig.save(in_turn("turns", "queue")).await;
    let mut runs = Vec::new();
    for n in 0..5 {
        runs.push(trigger(&rig, &job, &format!("t{n}")).await);
        rig.fired_until(|fired| fired.len() == n + 1).await;
    }
    for run in &runs {
        let work = next_work(&rig).await;
        assert_eq!(work.1.run, *run);
        finish(&rig, work).await;
    }
    let fired = rig.fired_until(|fired| fired.len() == 9).await;
    assert_eq!(fired.iter().filter(|fired| fired.awaits_place()).count(), 4);
    futures::future::join_all(schedulers.into_iter().map(crate::rig::Scheduler::stop)).await;
}

#[tokio::test]
async fn what_finds_the_job_running_is_left_out_and_so_is_what_finds_the_queue_full() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let skip = rig.save(in_turn("skip", "skip")).await;
    let mut spec = in_turn("queue", "queue");
    spec["queue_limit"] = json!(2);
    let queue = rig.save(spec).await;
    for n in 0..5 {
        trigger(&rig, &skip, &format!("s{n}")).await;
        trigger(&rig, &queue, &format!("q{n}")).await;
    }
    let fired = rig.fired_until(|fired| fired.len() == 10).await;
    assert_eq!(work(&rig).await.len(), 2);
    assert_eq!(skipped(&fired, SkipReason::Overlap), 4);
    assert_eq!(skipped(&fired, SkipReason::QueueFull), 2);
    assert_eq!(of_result(&fired, TriggerResult::Skipped).len(), 6);
    for work in work(&rig).await {
        finish(&rig, work).await;
    }
    rig.fired_until(|fired| fired.len() == 11).await;
    let after = trigger(&rig, &skip, "after").await;
    let fired = rig.fired_until(|fired| fired.len() == 12).await;
    let last = fired.iter().find(|fired| fired.run == after).unwrap();
    assert_ne!(last.result, TriggerResult::Skipped, "the place is free again");
    scheduler.stop().await;
}

#[tokio::test]
async fn those_that_wait_go_on_when_their_scheduler_is_gone() {
    let rig = Rig::start().await;
    let first = rig.scheduler().await;
    let job = rig.save(in_turn("turns", "queue")).await;
    let runs = [trigger(&rig, &job, "a").await, trigger(&rig, &job, "b").await];
    rig.fired_until(|fired| fired.len() == 2).await;
    first.stop().await;
    finish(&rig, next_work(&rig).await).await;
    // Nobody heard of that success; the log writer would tell. Here the entry is told by hand.
    let second = rig.scheduler().await;
    let entry = rig.buckets.get_leader(Bucket::Overlap, "turns").await.unwrap().unwrap();
    let mut places: taskparty_common::overlap::Places =
        serde_json::from_slice(&entry.value.unwrap()).unwrap();
    let done = places.active[0].run;
    places.release(done);
    let value = serde_json::to_vec(&places).unwrap();
    rig.buckets.put(Bucket::Overlap, "turns", value, None).await.unwrap();
    let work = next_work(&rig).await;
    assert!(runs.contains(&work.1.run) && work.1.run != done);
    finish(&rig, work).await;
    let end = Instant::now() + PATIENCE;
    while !rig.buckets.entries(Bucket::Overlap, "turns.*").await.unwrap().is_empty() {
        assert!(Instant::now() < end, "the intent of a waiting run is left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    second.stop().await;
}

#[tokio::test]
async fn deleting_a_job_ends_those_that_wait() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let job = rig.save(in_turn("turns", "queue")).await;
    for n in 0..3 {
        trigger(&rig, &job, &format!("t{n}")).await;
    }
    rig.fired_until(|fired| fired.len() == 3).await;
    rig.buckets.delete(Bucket::Jobs, "turns").await.unwrap();
    finish(&rig, next_work(&rig).await).await;
    let fired = rig.fired_until(|fired| fired.len() == 5).await;
    assert_eq!(skipped(&fired, SkipReason::Deleted), 2);
    scheduler.stop().await;
    assert!(work(&rig).await.is_empty());
}

#[tokio::test]
async fn a_catch_up_in_turn_drops_nothing_and_waits_with_its_locks() {
    let rig = Rig::start().await;
    let before = rig.scheduler().await;
    let mut spec = in_turn("turns", "queue");
    spec["schedule"] = json!({ "fixed_rate": "30s" });
    spec["misfire"] = json!({ "policy": "all" });
    spec["queue_limit"] = json!(1);
    rig.save(spec).await;
    rig.save(job("tick", json!({ "fixed_rate": "1s", "timezone": "UTC" }))).await;
    rig.fired_until(|fired| fired.len() >= 2).await;
    rig.buckets.delete(Bucket::Jobs, "tick").await.unwrap();
    before.stop().await;
    for work in work(&rig).await {
        finish(&rig, work).await;
    }
    rig.clock.step(TimeDelta::minutes(10));
    let after = rig.scheduler().await;
    let mut last = None;
    for _ in 0..20 {
        let work = next_work(&rig).await;
        assert!(last < Some(work.1.fire_time), "in order");
        last = Some(work.1.fire_time);
        let locks = rig.locks().await.into_iter().filter(|key| key.starts_with("turns.")).count();
        assert!(locks <= 20, "{locks}");
        finish(&rig, work).await;
    }
    let fired = rig.fired().await;
    assert_eq!(skipped(&fired, SkipReason::QueueFull) + skipped(&fired, SkipReason::Misfire), 0);
    after.stop().await;
}

#[tokio::test]
async fn the_latest_of_several_replaces_the_others_and_begins_when_the_first_has_ended() {
    let rig = Rig::start().await;
    let schedulers = futures::future::join_all((0..2).map(|_| rig.scheduler())).await;
    let job = rig.save(in_turn("turns", "replace")).await;
    let mut runs = Vec::new();
    for n in 0..4 {
        runs.push(trigger(&rig, &job, &format!("t{n}")).await);
        rig.fired_until(|fired| fired.len() == n + 1).await;
    }
    // Each that came later asked for the others to stop, before it was recorded.
    let mut asked = std::collections::BTreeSet::new();
    let subjects = [rig.nats.names().asked(&job.spec.app)];
    let stream = rig.nats.names().results_stream();
    let visit = |record: taskparty_nats::history::Record| {
        let asking: taskparty_common::ask::Asked = serde_json::from_slice(&record.payload).unwrap();
        asked.insert(asking.run);
        std::ops::ControlFlow::Continue(())
    };
    let first = taskparty_nats::history::Start::First;
    taskparty_nats::history::read(rig.nats.js(), &stream, &subjects, first, PATIENCE, visit)
        .await
        .unwrap();
    assert_eq!(asked.into_iter().collect::<Vec<_>>(), {
        let mut others = runs[..3].to_vec();
        others.sort_unstable();
        others
    });
    let work = next_work(&rig).await;
    assert_eq!(work.1.run, runs[0]);
    finish(&rig, work).await;
    let work = next_work(&rig).await;
    assert_eq!(work.1.run, runs[3], "those in between never begin");
    finish(&rig, work).await;
    futures::future::join_all(schedulers.into_iter().map(crate::rig::Scheduler::stop)).await;
}
