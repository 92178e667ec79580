//! A scheduler is killed in the middle of a fire: the next one, or a live one, completes it, once.

use chrono::{SecondsFormat, TimeDelta};
use serde_json::json;
use taskparty_common::outcome::{RunState, Trigger};
use taskparty_nats::clock::Clock;

use crate::facts::{accounted, by_job, recorded_once};
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job, until};

/// Two jobs are due at one instant; the only scheduler is killed at `point`; the next one goes on. By
/// then the four shards of one are done, if they were dispatched, and the other is still at work.
async fn killed_at(point: &str) {
    let site = Site::start().await;
    let rest = site.serve("log-writer,api").await;
    let first = site.serve_until("scheduler", &format!("{point}=kill@1")).await;
    let shop = Shop::open(&site);
    let at = Clock::system().now() + TimeDelta::seconds(3);
    let schedule = json!({ "at": at.to_rfc3339_opts(SecondsFormat::Millis, true) });
    site.apply(&[
        job("slow", "work", json!({ "schedule": schedule, "params": 8_000 })),
        job("sharded", "settle", json!({ "schedule": schedule, "shards": 4 })),
        job("fence", "settle", json!({})),
    ])
    .await;
    first.dies().await;
    let (locks, fired) = (site.locks().await.len(), site.fired().await.len());
    assert!(locks > fired, "nothing was left half done: {locks} locks, {fired} records");

    let next = site.serve("scheduler").await;
    until("both fires", async || (site.fired().await.len() >= 2).then_some(())).await;
    site.all_ended().await;
    // What comes a second time would have come before this.
    let later = site.trigger("fence", &[]).await;
    assert_eq!(site.ended(&later).await["state"], "succeeded");
    let fired = site.fired().await;
    recorded_once(&fired);
    assert_eq!((fired.len(), site.locks().await.len()), (3, 3));
    let runs = site.all_ended().await;
    assert_eq!(runs.len(), 3);
    assert!(runs.values().all(|run| run.state == RunState::Succeeded), "{runs:#?}");
    assert_eq!(started_once(&starts(&site)).len(), 1 + 4 + 1);
    assert_eq!(site.work_left().await, 0);
    shop.close().await;
    next.stop().await;
    rest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_killed_between_lock_and_dispatch_leaves_a_fire_that_the_next_completes_once() {
    killed_at("fire.after_lock").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scheduler_killed_between_dispatch_and_record_leaves_a_fire_that_the_next_completes_once()
{
    killed_at("fire.after_dispatch").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_very_first_fire_of_an_installation_survives_the_scheduler_that_dies_over_it() {
    let site = Site::start().await;
    let rest = site.serve("log-writer,api").await;
    let shop = Shop::open(&site);
    site.apply(&[job("tick", "settle", json!({ "schedule": { "fixed_rate": "100ms" } }))]).await;
    let first = site.serve_until("scheduler", "fire.after_lock=kill@1").await;
    first.dies().await;
    let half_done = site.locks().await;
    assert!(!half_done.is_empty());
    let next = site.serve("scheduler").await;
    until("fires of the next one", async || (site.fired().await.len() >= 10).then_some(())).await;
    site.pause("tick").await;
    let runs = site.all_ended().await;
    let fired = site.fired().await;
    recorded_once(&fired);
    let (began, _) = accounted(&by_job(&fired)["tick"], TimeDelta::milliseconds(100));
    assert!(half_done.contains(&format!("tick.t.{}", began.timestamp_millis())), "{half_done:?}");
    assert_eq!((runs.len(), started_once(&starts(&site)).len()), (fired.len(), fired.len()));
    shop.close().await;
    next.stop().await;
    rest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_manual_trigger_survives_the_scheduler_that_dies_over_it() {
    let site = Site::start().await;
    let rest = site.serve("log-writer,api").await;
    let shop = Shop::open(&site);
    let mut runs = Vec::new();
    for (key, point) in [("one", "fire.after_lock"), ("two", "fire.after_dispatch")] {
        let doomed = site.serve_until("scheduler", &format!("{point}=kill@1")).await;
        if runs.is_empty() {
            site.apply(&[job("order", "settle", json!({ "shards": 4 }))]).await;
        }
        runs.push(site.trigger("order", &["--key", key]).await);
        doomed.dies().await;
    }
    let next = site.serve("scheduler").await;
    for run in &runs {
        assert_eq!(site.ended(run).await["state"], "succeeded");
    }
    let fired = site.fired().await;
    recorded_once(&fired);
    assert!(fired.iter().all(|fired| fired.trigger == Trigger::Manual));
    assert_eq!((fired.len(), started_once(&starts(&site)).len()), (2, 8));
    shop.close().await;
    next.stop().await;
    rest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_scheduler_completes_what_a_killed_one_has_locked() {
    let site = Site::start().await;
    let living = site.serve("scheduler,log-writer,api").await;
    let doomed = site.serve_until("scheduler", "fire.after_lock=kill@8").await;
    let shop = Shop::open(&site);
    // Enough jobs that both have some, however they share them.
    let jobs: Vec<_> = (0..16)
        .map(|n| {
            let more = json!({ "schedule": { "fixed_rate": "1s" }, "shards": 1 + n % 2 });
            job(&format!("tick-{n}"), "settle", more)
        })
        .collect();
    site.apply(&jobs).await;
    doomed.dies().await;
    let died = Clock::system().now();
    let until_record = died + TimeDelta::seconds(3);
    until("fires after the death, and no half-done ones", async || {
        let fired = site.fired().await;
        let reached = by_job(&fired)
            .values()
            .all(|of_job| of_job.iter().map(|fired| fired.fire_time).max() > Some(until_record));
        (reached && fired.len() >= 16 * 3).then_some(())
    })
    .await;
    for job in &jobs {
        site.pause(job["id"].as_str().unwrap()).await;
    }
    let runs = site.all_ended().await;
    let fired = site.fired().await;
    recorded_once(&fired);
    for of_job in by_job(&fired).values() {
        accounted(of_job, TimeDelta::seconds(1));
    }
    assert_eq!(runs.len(), fired.len());
    assert!(runs.values().all(|run| run.state == RunState::Succeeded));
    let shards: u32 = fired.iter().map(|fired| fired.plan.total).sum();
    assert_eq!(started_once(&starts(&site)).len(), shards as usize);
    shop.close().await;
    living.stop().await;
}
