//! The owner of a job stands still between its decision and its publish, for longer than it is
//! taken for alive: another one takes over, and what the first one does late changes nothing (F2).

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use rustix::process::Signal;
use serde_json::json;
use taskparty_common::fire::{FireId, Fired, Identity, Intent, Plan};
use taskparty_common::job::{Job, JobSpec, Unknown};
use taskparty_common::name::Instance;
use taskparty_common::outcome::{Trigger, TriggerResult};
use taskparty_nats::clock::Clock;
use taskparty_nats::lock::{Locks, SHORTEST};
use taskparty_nats::subject::Bucket;

use crate::facts::{accounted, by_job, recorded_once};
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, each_second, job, until};

/// How many schedulers live.
async fn members(site: &Site) -> usize {
    site.buckets.entries(Bucket::Schedulers, "*").await.unwrap().len()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_stands_still_over_a_fire_doubles_nothing_when_it_goes_on() {
    const JOBS: usize = 10;
    let site = Site::start().await;
    let living = site.serve("scheduler,log-writer,api").await;
    let frozen = site.serve_until("scheduler", "fire.before_lock=pause@20").await;
    let shop = Shop::open(&site);
    site.apply(&each_second(JOBS, "settle", json!({}))).await;
    until("both schedulers", async || (members(&site).await == 2).then_some(())).await;
    until("its end, as it seems", async || (members(&site).await == 1).then_some(())).await;
    let since = Clock::system().now();
    let taken_over = async || {
        let fired = site.fired().await;
        let jobs = by_job(&fired);
        let later = since + TimeDelta::seconds(1);
        let all = jobs.values().filter(|fired| fired.iter().any(|f| f.fire_time > later)).count();
        (all == JOBS).then_some(())
    };
    until("all its jobs to fire elsewhere", taken_over).await;
    frozen.signal(Signal::CONT);
    until("it to be a member again", async || (members(&site).await == 2).then_some(())).await;
    let back = site.fired().await.len();
    until("fires of both", async || (site.fired().await.len() > back + 5 * JOBS).then_some(()))
        .await;
    for n in 0..JOBS {
        site.pause(&format!("settle-{n}")).await;
    }
    let runs = site.all_ended().await;
    // What it had half done another one has recorded; it may say the same again, late.
    let mut fired = site.fired().await;
    fired.sort_by_key(|fired| (fired.lock.clone(), fired.run));
    fired.dedup_by_key(|fired| (fired.lock.clone(), fired.run));
    recorded_once(&fired);
    for fired in by_job(&fired).values() {
        accounted(fired, TimeDelta::seconds(1));
    }
    assert_eq!((runs.len(), started_once(&starts(&site)).len()), (fired.len(), fired.len()));
    shop.close().await;
    frozen.stop().await;
    living.stop().await;
}

/// As [`accounted`], where a record of several may hold instants that have records of their own.
fn each_once(fired: &[Fired], period: TimeDelta) {
    let first =
        |fired: &Fired| fired.skipped.as_ref().map_or(fired.fire_time, |skipped| skipped.first);
    let count = |fired: &Fired| fired.skipped.as_ref().map_or(1, |skipped| skipped.count);
    let begin = fired.iter().map(first).min().unwrap();
    let end = fired.iter().map(|fired| fired.fire_time).max().unwrap();
    let there_are = (end - begin).num_milliseconds() / period.num_milliseconds() + 1;
    let recorded: u64 = fired.iter().map(count).sum();
    assert_eq!(recorded, u64::try_from(there_are).unwrap(), "{fired:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_stands_still_over_a_fire_that_must_not_be_late_leaves_it_out_as_the_others_do()
 {
    let site = Site::start().await;
    let living = site.serve("scheduler,log-writer,api").await;
    let frozen = site.serve_until("scheduler", "fire.after_lock=pause@1").await;
    let shop = Shop::open(&site);
    let strict = json!({ "misfire": { "policy": "skip", "grace": "1s" } });
    site.apply(&each_second(10, "settle", strict)).await;
    until("both schedulers", async || (members(&site).await == 2).then_some(())).await;
    until("its end, as it seems", async || (members(&site).await == 1).then_some(())).await;
    let half_done = async || {
        let (locks, fired) = (site.locks().await, site.fired().await);
        let open = locks.into_iter().find(|lock| fired.iter().all(|fired| fired.lock != *lock))?;
        let id = FireId::from_lock_key(&open)?;
        let Identity::Instant(at) = id.identity else { return None };
        let long_ago = DateTime::from_timestamp_millis(at)? + TimeDelta::seconds(8);
        fired.iter().any(|f| f.job == id.job && f.fire_time > long_ago).then_some(open)
    };
    let lock = until("a fire that is half done, and too late", half_done).await;
    frozen.signal(Signal::CONT);
    until("it to be a member again", async || (members(&site).await == 2).then_some(())).await;
    let of_lock = async || site.fired().await.into_iter().find(|fired| fired.lock == lock);
    let left_out = until("its record", of_lock).await;
    assert_eq!(left_out.result, TriggerResult::Expired);
    for n in 0..10 {
        site.pause(&format!("settle-{n}")).await;
    }
    let runs = site.all_ended().await;
    let mut fired = site.fired().await;
    fired.sort_by_key(|fired| (fired.lock.clone(), fired.run));
    // Both may say so, if they say the same.
    fired.dedup_by_key(|fired| (fired.lock.clone(), fired.run, fired.result));
    recorded_once(&fired);
    let began = started_once(&starts(&site)).len();
    let ran = fired.iter().filter(|fired| fired.result == TriggerResult::Dispatched).count();
    assert_eq!((runs.len(), began), (fired.len(), ran));
    shop.close().await;
    frozen.stop().await;
    living.stop().await;
}

/// The intent of another one's fire of `job` at `at`.
fn intent(job: &Job, at: DateTime<Utc>) -> Intent {
    let id = FireId::at(job.spec.id.clone(), at);
    Intent {
        v: 1,
        run: id.run(&Default::default(), job.meta.since.timestamp_millis(), at),
        job: id.job,
        revision: 1,
        since: job.meta.since,
        owner: Instance::new("other").unwrap(),
        trigger: Trigger::Schedule,
        fire_time: at,
        planned_at: at,
        plan: Plan::whole(1),
        skipped: None,
        definition: serde_json::value::to_raw_value(&job.spec.to_json()).unwrap(),
        params: None,
        instance: None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn missed_instants_that_are_left_out_together_are_not_such_as_another_one_has_locked() {
    let site = Site::start().await;
    let rest = site.serve("log-writer,api").await;
    let ago = |seconds| Clock::system().now().trunc_subsecs(0) - TimeDelta::seconds(seconds);
    let missed = json!({ "schedule": { "fixed_rate": "2s" },
        "misfire": { "policy": "skip", "grace": "1s" } });
    let spec = JobSpec::from_json(&job("missed", "settle", missed), Unknown::Refuse).unwrap();
    let missed = Job::new(spec, ago(100), "test");
    let value = serde_json::to_vec(&missed.to_json()).unwrap();
    site.buckets.put(Bucket::Jobs, "missed", value, None).await.unwrap();
    let watermark = json!({ "v": 1, "handled": missed.meta.since }).to_string();
    site.buckets.put(Bucket::Cursors, "scheduler.gone", watermark, None).await.unwrap();
    // It has read what is locked, and has decided.
    let owner = site.serve_until("scheduler", "fire.before_look=pause@1").await;
    until("the owner", async || (members(&site).await == 1).then_some(())).await;
    until("its end, as it seems", async || (members(&site).await == 0).then_some(())).await;
    let locked = missed.meta.since + TimeDelta::seconds(20);
    let value = serde_json::to_vec(&intent(&missed, locked)).unwrap();
    let key = FireId::at(missed.spec.id.clone(), locked).lock_key();
    Locks::new(site.buckets.clone()).take(&key, value, SHORTEST).await.unwrap();
    owner.signal(Signal::CONT);
    let now = Clock::system().now();
    let all = async || {
        let fired = site.fired().await;
        let on_time = fired.iter().any(|fired| fired.fire_time > now);
        (on_time && fired.iter().any(|fired| fired.lock == key)).then_some(fired)
    };
    let fired = until("what was missed, and a fire on time", all).await;
    assert!(fired.iter().any(|f| f.skipped.as_ref().is_some_and(|skipped| skipped.count > 10)));
    owner.stop().await;
    let fired = site.fired().await;
    recorded_once(&fired);
    each_once(&fired, TimeDelta::seconds(2));
    rest.stop().await;
}
