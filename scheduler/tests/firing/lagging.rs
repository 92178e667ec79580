//! A job that lags has a cursor of its own: it holds nobody else back, and loses nothing. The test is
//! the executor.

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use taskparty_common::fire::{FireId, Fired, Plan};
use taskparty_common::job::Job;
use taskparty_common::outcome::{Trigger, TriggerResult};
use taskparty_nats::lock::Locks;
use taskparty_nats::proxy::Proxy;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use tokio::time::Instant;

use crate::overlap::{finish, next_work};
use crate::recovery::intent;
use crate::rig::{PATIENCE, Rig, Scheduler, assert_complete, checked, instants, is_complete, job};

const TICKS: usize = 5;

/// The instants of the job that lags, and how many of them are missed.
const EACH: TimeDelta = TimeDelta::minutes(10);
const MISSED: usize = 6;

/// A job whose missed instants run in turn, each when the one before has ended; and some that are due
/// all the time.
async fn save_jobs(rig: &Rig) -> Job {
    let mut spec = job("lags", json!({ "fixed_rate": "10m" }));
    spec["overlap"] = json!("queue");
    spec["misfire"] = json!({ "policy": "all" });
    let lags = rig.save(spec).await;
    for n in 0..TICKS {
        let mut spec = job(&format!("tick-{n}"), json!({ "fixed_rate": "500ms" }));
        spec["app"] = json!("clock");
        rig.save(spec).await;
    }
    rig.fired_until(|fired| fired.len() > 2 * TICKS).await;
    lags
}

/// The records of a job, in order of time: of an instant that is recorded again, as by who completes
/// a fire, or when it had to wait and says so, only the first.
fn of(fired: &[Fired], job: &str) -> Vec<Fired> {
    let of_job = fired.iter().filter(|fired| fired.job.as_str() == job);
    let mut fired: Vec<Fired> = of_job.cloned().collect();
    fired.sort_by_key(|fired| fired.fire_time);
    fired.dedup_by_key(|fired| (fired.fire_time, fired.run));
    fired
}

async fn handled(rig: &Rig, key: &str) -> Option<DateTime<Utc>> {
    let entry = rig.buckets.entries(Bucket::Cursors, key).await.unwrap().pop()?;
    let value: Value = serde_json::from_slice(&entry.value?).unwrap();
    value["handled"].as_str()?.parse().ok()
}

/// How far everything is that `scheduler` does, but for what lags.
async fn watermark(rig: &Rig, scheduler: &Scheduler) -> Option<DateTime<Utc>> {
    handled(rig, &format!("scheduler.{}", scheduler.node.instance())).await
}

async fn cursor(rig: &Rig) -> Option<DateTime<Utc>> {
    handled(rig, "job.lags").await
}

/// Waits until `look` says so.
async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !look().await {
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Waits until all other jobs are handled up to now, and the one that lags up to `at`.
async fn stands(rig: &Rig, scheduler: &Scheduler, at: DateTime<Utc>) {
    until("the cursor", async || cursor(rig).await == Some(at)).await;
    let now = rig.clock.now();
    until("the watermark to go on", async || watermark(rig, scheduler).await >= Some(now)).await;
    assert_eq!(cursor(rig).await, Some(at));
}

/// An hour is missed: the first instant runs, and the second waits for it. Where the cursor is then.
fn miss(rig: &Rig, job: &Job) -> DateTime<Utc> {
    rig.clock.step(EACH * i32::try_from(MISSED).unwrap());
    job.meta.anchor.trunc_subsecs(3) + EACH * 2 - TimeDelta::milliseconds(1)
}

#[tokio::test]
async fn a_job_that_lags_holds_nobody_back_and_whoever_takes_over_misses_none_of_it() {
    let rig = Rig::start().await;
    let proxy = Proxy::start(rig.server.address()).await.unwrap();
    let first = rig.scheduler_over(&proxy).await;
    let saved = save_jobs(&rig).await;
    let at = miss(&rig, &saved);
    let work = next_work(&rig).await;
    stands(&rig, &first, at).await;

    // Its end, as it seems to all.
    proxy.refuse();
    let second = rig.scheduler().await;
    let owner = second.node.instance();
    rig.fired_until(|fired| {
        let by_second =
            |n| of(fired, &format!("tick-{n}")).iter().any(|fired| fired.owner == *owner);
        (0..TICKS).all(by_second)
    })
    .await;
    stands(&rig, &second, at).await;
    finish(&rig, work).await;
    for _ in 1..MISSED {
        let work = next_work(&rig).await;
        finish(&rig, work).await;
    }
    until("the cursor to go", async || cursor(&rig).await.is_none()).await;
    let last = saved.meta.since + EACH * i32::try_from(MISSED).unwrap();
    until("the watermark to cover it", async || watermark(&rig, &second).await > Some(last)).await;
    second.stop().await;

    let third = rig.scheduler().await;
    let so_far = rig.fired().await.len();
    // What one of the others had locked and not recorded when it ended is completed after a while.
    rig.fired_until(|fired| {
        let ticks = |n| of(fired, &format!("tick-{n}"));
        fired.len() > so_far + 2 * TICKS
            && (0..TICKS).all(|n| is_complete(&ticks(n), TimeDelta::milliseconds(500)))
    })
    .await;
    third.stop().await;
    // Records come in any order: only now is none of them missing.
    let fired = rig.fired().await;
    assert_eq!(instants(&of(&fired, "lags")).len(), MISSED);
    assert_complete(&of(&fired, "lags"), EACH);
    (0..TICKS).for_each(|n| {
        assert_complete(&of(&fired, &format!("tick-{n}")), TimeDelta::milliseconds(500));
    });
}

/// As somebody leaves it who dies: all is handled up to now, but the job that lags.
#[tokio::test]
async fn from_its_cursor_on_a_job_that_lags_fires_what_is_not_recorded() {
    const PERIOD: TimeDelta = TimeDelta::seconds(5);
    let rig = Rig::start().await;
    let now = rig.clock.now().trunc_subsecs(0);
    let since = now - PERIOD * 60;
    let spec = |id: &str| {
        let mut spec = job(id, json!({ "fixed_rate": "5s" }));
        spec["misfire"] = json!({ "policy": "all" });
        checked(spec)
    };
    let handled = now - PERIOD * 30;
    let cursor = |since| json!({ "v": 1, "since": since, "handled": handled, "owner": "gone" });
    let of_other_past = cursor(since - PERIOD);
    for (id, cursor) in
        [("lags", cursor(since)), ("edited", of_other_past), ("unread", json!("as you like"))]
    {
        rig.store(&Job::new(spec(id), since, "test")).await;
        let (key, cursor) = (format!("job.{id}"), cursor.to_string());
        rig.buckets.put(Bucket::Cursors, &key, cursor, None).await.unwrap();
    }
    let watermark = json!({ "v": 1, "handled": now }).to_string();
    rig.buckets.put(Bucket::Cursors, "scheduler.gone", watermark, None).await.unwrap();
    // Of the instants since then some are recorded, and nobody knows the locks any more.
    let recorded = [1, 2, 7, 20].map(|n| handled + PERIOD * n);
    for (job, at) in ["lags", "unread"].into_iter().flat_map(|job| recorded.map(|at| (job, at))) {
        let fired = fired(&rig, job, since, at);
        let subject = rig.nats.names().fired(&fired.app);
        let value = serde_json::to_vec(&fired).unwrap();
        rig.buckets.publisher().publish(Draft::new(subject, value)).await.unwrap();
    }
    let scheduler = rig.scheduler().await;
    let until = now + PERIOD;
    rig.fired_until(|fired| {
        ["lags", "edited", "unread"]
            .iter()
            .all(|job| of(fired, job).iter().any(|f| f.fire_time > until))
    })
    .await;
    scheduler.stop().await;
    let all = rig.fired().await;
    for job in ["lags", "unread"] {
        let lagged = of(&all, job);
        assert_complete(&lagged, PERIOD);
        let stays = |at| lagged.iter().any(|f| f.fire_time == at && f.owner.as_str() == "gone");
        assert!(recorded.into_iter().all(stays), "{job}");
    }
    let first = |job: &str| of(&all, job).iter().map(|fired| fired.fire_time).min().unwrap();
    assert!(first("lags") > handled - TimeDelta::seconds(31) && first("lags") <= handled + PERIOD);
    assert_eq!(first("unread"), since + PERIOD, "nobody knows where it was");
    assert!(first("edited") > now - TimeDelta::seconds(31), "of that past it says nothing");
}

/// A record of the fire of `job` at `at`.
fn fired(rig: &Rig, job: &str, since: DateTime<Utc>, at: DateTime<Utc>) -> Fired {
    let id = FireId::at(job.parse().unwrap(), at);
    Fired {
        v: 1,
        lock: id.lock_key(),
        run: id.run(rig.nats.names().prefix(), since.timestamp_millis(), at),
        job: id.job,
        app: "shop".parse().unwrap(),
        handler: "settle".parse().unwrap(),
        revision: 1,
        since,
        owner: "gone".parse().unwrap(),
        trigger: Trigger::Misfire,
        result: TriggerResult::Dispatched,
        message: String::new(),
        fire_time: at,
        fired_at: at,
        start_by: None,
        plan: Plan::whole(1),
        skipped: None,
        definition: RawValue::NULL.to_owned(),
        params: None,
    }
}

#[tokio::test]
async fn while_a_cursor_cannot_be_stored_the_watermark_waits_for_its_job() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let saved = save_jobs(&rig).await;
    let at = miss(&rig, &saved);
    stands(&rig, &scheduler, at).await;
    // As if another one had taken the job over.
    let others = json!({ "v": 1, "since": at, "handled": at, "owner": "other" }).to_string();
    rig.buckets.put(Bucket::Cursors, "job.lags", others.clone(), None).await.unwrap();
    until("the watermark to go back", async || watermark(&rig, &scheduler).await == Some(at)).await;
    let so_far = rig.fired().await.len();
    rig.fired_until(|fired| fired.len() > so_far + 4 * TICKS).await;
    assert_eq!(watermark(&rig, &scheduler).await, Some(at), "others fire, and it stands");
    let entry = rig.buckets.entries(Bucket::Cursors, "job.lags").await.unwrap().pop().unwrap();
    assert_eq!(entry.value.unwrap(), others, "what another wrote stays");
    for _ in 0..MISSED {
        let work = next_work(&rig).await;
        finish(&rig, work).await;
    }
    let caught_up = rig.clock.now();
    until("the watermark", async || watermark(&rig, &scheduler).await > Some(caught_up)).await;
    scheduler.stop().await;
    assert_complete(&of(&rig.fired().await, "lags"), EACH);
}

#[tokio::test]
async fn pausing_a_job_that_lags_drops_its_cursor_and_a_deleted_bucket_gets_it_again() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let saved = save_jobs(&rig).await;
    let at = miss(&rig, &saved);
    stands(&rig, &scheduler, at).await;
    rig.nats.js().delete_stream("KV_taskparty_cursors").await.unwrap();
    until("the bucket and both", async || {
        let there =
            taskparty_nats::history::stream_info(rig.nats.js(), "KV_taskparty_cursors").await;
        there.is_ok() && cursor(&rig).await == Some(at)
    })
    .await;
    stands(&rig, &scheduler, at).await;
    rig.pause(&saved).await;
    until("the cursor to go", async || cursor(&rig).await.is_none()).await;
    scheduler.stop().await;
}

#[tokio::test]
async fn an_edit_of_a_job_whose_catch_up_waits_leaves_nothing_behind_when_the_job_is_deleted() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let mut saved = save_jobs(&rig).await;
    let at = miss(&rig, &saved);
    stands(&rig, &scheduler, at).await;
    // Its first run goes on, and what it has missed since waits for that.
    for n in 0..2 {
        saved.spec.params = json!({ "n": n });
        let revision = rig.store(&saved).await;
        rig.seen(revision).await;
        stands(&rig, &scheduler, at).await;
    }
    rig.buckets.delete(Bucket::Jobs, "lags").await.unwrap();
    until("the cursor to go", async || cursor(&rig).await.is_none()).await;
    let deleted = rig.clock.now();
    until("the watermark", async || watermark(&rig, &scheduler).await > Some(deleted)).await;
    scheduler.stop().await;
}

#[tokio::test]
async fn who_leaves_while_a_successor_keeps_the_cursor_does_not_put_its_watermark_back() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let saved = save_jobs(&rig).await;
    let at = miss(&rig, &saved);
    stands(&rig, &scheduler, at).await;
    let so_far = watermark(&rig, &scheduler).await;
    // As if another one had taken the job over just when this one leaves.
    let instance = scheduler.node.instance().clone();
    let others = json!({ "v": 1, "since": at, "handled": at, "owner": "other" }).to_string();
    let put = rig.buckets.put(Bucket::Cursors, "job.lags", others, None);
    let (put, ()) = tokio::join!(put, scheduler.stop());
    put.unwrap();
    let left = handled(&rig, &format!("scheduler.{instance}")).await;
    assert!(left >= so_far, "{left:?} is before {so_far:?}");
}

#[tokio::test]
async fn who_leaves_when_a_cursor_was_just_removed_leaves_a_watermark_that_counts_the_job() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let saved = save_jobs(&rig).await;
    let at = miss(&rig, &saved);
    stands(&rig, &scheduler, at).await;
    let instance = scheduler.node.instance().clone();
    rig.buckets.delete(Bucket::Cursors, "job.lags").await.unwrap();
    scheduler.stop().await;
    assert_eq!(handled(&rig, &format!("scheduler.{instance}")).await, Some(at));
}

/// Both were locked by who died then: a retry, whose completion waits for as long as somebody may have
/// the attempt before, and an instant of another job.
#[tokio::test]
async fn what_is_completed_is_over_though_another_completion_takes_long() {
    let rig = Rig::start().await;
    let at = rig.clock.now().trunc_subsecs(3) - TimeDelta::seconds(25);
    let watermark_of_gone = json!({ "v": 1, "handled": at }).to_string();
    rig.buckets.put(Bucket::Cursors, "scheduler.gone", watermark_of_gone, None).await.unwrap();
    let locks = Locks::new(rig.buckets.clone());
    for (id, retry) in [("slow", true), ("quick", false)] {
        let saved = rig.save(job(id, json!({ "at": "2099-01-31T09:00:00" }))).await;
        let mut intent = intent(&saved, 1, at);
        let mut key = FireId::at(saved.spec.id.clone(), at);
        if retry {
            key = FireId::trigger(saved.spec.id, "again");
            intent.planned_at = rig.clock.now();
            intent.plan = Plan::again(1, 0, 2);
        }
        let value = serde_json::to_vec(&intent).unwrap();
        locks.take(&key.lock_key(), value, taskparty_nats::lock::SHORTEST).await.unwrap();
    }
    let scheduler = rig.scheduler().await;
    let now = rig.clock.now();
    until("the watermark, and nothing but the retry to lag", async || {
        watermark(&rig, &scheduler).await > Some(now) && handled(&rig, "job.quick").await.is_none()
    })
    .await;
    let fired = rig.fired().await;
    assert_eq!((of(&fired, "quick").len(), of(&fired, "slow").len()), (1, 0));
    assert_eq!(handled(&rig, "job.slow").await, Some(at - TimeDelta::milliseconds(1)));
    scheduler.stop().await;
}
