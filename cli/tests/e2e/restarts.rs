//! F3: the only process is killed and started again, and again.

use std::time::Duration;

use chrono::TimeDelta;
use rand::RngExt;
use serde_json::json;
use taskparty_common::outcome::{RunState, SkipReason};
use taskparty_nats::clock::Clock;

use crate::facts::{accounted, by_job, recorded_once};
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job, until};

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_started_again_twenty_times_it_accounts_for_every_second() {
    let site = Site::start().await;
    let mut node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let strict = json!({ "policy": "skip", "grace": "300ms" });
    site.apply(&[
        job("tick", "settle", json!({ "schedule": { "fixed_rate": "1s" }, "shards": 2 })),
        job("strict", "settle", json!({ "schedule": { "fixed_rate": "1s" }, "misfire": strict })),
    ])
    .await;
    // How long it is up, and how long it is down, is chance: a second edge falls anywhere.
    for _ in 0..20 {
        pause(200..1_500).await;
        node.kill().await;
        pause(0..1_200).await;
        node = site.serve("scheduler,log-writer,api").await;
    }
    let last = Clock::system().now();
    until("a fire of each job after the last restart", async || {
        let fired = site.fired().await;
        let reached = |of_job: &Vec<&taskparty_common::fire::Fired>| {
            of_job.iter().any(|fired| fired.fire_time > last)
        };
        by_job(&fired).values().filter(|of_job| reached(of_job)).nth(1).map(|_| ())
    })
    .await;
    let ids = ["tick", "strict"];
    for id in ids {
        site.pause(id).await;
    }
    let runs = site.all_ended().await;
    let fired = site.fired().await;
    recorded_once(&fired);
    assert_eq!(fired.len(), runs.len());
    let by_job = by_job(&fired);
    for id in ids {
        let (first, until) = accounted(&by_job[id], TimeDelta::seconds(1));
        assert!(until > last && first < last - TimeDelta::seconds(20), "{id}: {first} to {until}");
    }
    let missed = |id: &str| {
        let of_job = by_job[id].iter().filter_map(|fired| fired.skipped.as_ref());
        of_job.map(|skipped| (skipped.reason, skipped.count)).collect::<Vec<_>>()
    };
    assert_eq!(missed("tick"), [], "within its grace a fire is late, not missed");
    assert!(!missed("strict").is_empty());
    assert!(missed("strict").iter().all(|(reason, _)| *reason == SkipReason::Misfire));
    for run in runs.values() {
        let skipped = run.skip_reason.is_some();
        assert_eq!(run.state == RunState::Skipped, skipped, "{run:#?}");
        assert!(skipped || run.state == RunState::Succeeded, "{run:#?}");
    }
    // The executor lived all the time: nothing was ever delivered twice.
    let ran = fired.iter().filter(|fired| fired.skipped.is_none());
    let shards: u32 = ran.map(|fired| fired.plan.total).sum();
    assert_eq!(started_once(&starts(&site)).len(), shards as usize);
    shop.close().await;
    node.stop().await;
}

/// Not a wait for anything: a process is killed at a moment that nobody has chosen.
async fn pause(ms: std::ops::Range<u64>) {
    let ms = rand::rng().random_range(ms);
    tokio::time::sleep(Duration::from_millis(ms)).await;
}
