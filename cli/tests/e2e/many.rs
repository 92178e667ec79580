//! Many schedulers, many jobs: the lock is held once.

use chrono::TimeDelta;
use serde_json::{Value, json};
use taskparty_common::outcome::RunState;
use taskparty_nats::clock::Clock;

use crate::facts::{accounted, by_job, recorded_once};
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, each_second, until};

#[tokio::test(flavor = "multi_thread")]
async fn with_three_schedulers_and_200_jobs_a_second_each_fire_is_locked_run_and_recorded_once() {
    let site = Site::start().await;
    let rest = site.serve("log-writer,api").await;
    let mut schedulers = Vec::new();
    for _ in 0..3 {
        schedulers.push(site.serve("scheduler").await);
    }
    let shop = Shop::open(&site);
    site.apply(&each_second(200, "settle", json!({}))).await;
    let from = Clock::system().now();
    let end = from + TimeDelta::seconds(20);
    until("twenty seconds of fires", async || {
        let fired = site.fired().await;
        let by_job = by_job(&fired);
        let reached = by_job.values().filter(|of_job| of_job.iter().any(|f| f.fire_time >= end));
        (reached.count() == 200).then_some(())
    })
    .await;
    late_figures(&site).await;
    for scheduler in schedulers {
        scheduler.stop().await;
    }
    let runs = site.all_ended().await;
    let fired = site.fired().await;
    recorded_once(&fired);
    for of_job in by_job(&fired).values() {
        let (first, last) = accounted(of_job, TimeDelta::seconds(1));
        assert!(first <= from + TimeDelta::seconds(1) && last >= end, "{first} to {last}");
    }
    let started = started_once(&starts(&site));
    assert!(runs.values().all(|run| run.state == RunState::Succeeded));
    assert_eq!(
        (site.locks().await.len(), runs.len(), started.len()),
        (fired.len(), fired.len(), fired.len())
    );
    shop.close().await;
    rest.stop().await;
}

/// Every scheduler that owns jobs says how late it fired them, as `taskparty schedulers` prints it.
async fn late_figures(site: &Site) {
    let schedulers = until("the figures of three schedulers", async || {
        let printed = site.run(&["schedulers", "-o", "json"]).await.exits(0).stdout;
        let page: Value = serde_json::from_str(&printed).unwrap();
        let schedulers = page["items"].as_array().unwrap().clone();
        let all = schedulers.len() == 3 && schedulers.iter().all(|one| one["late"].is_object());
        all.then_some(schedulers)
    })
    .await;
    for scheduler in &schedulers {
        let late = |name: &str| scheduler["late"][name].as_u64().unwrap();
        assert!(scheduler["jobs"].as_u64() > Some(0) && late("fires") > 0, "{scheduler:#}");
        assert!(late("p50_ms") <= late("p99_ms"), "{scheduler:#}");
        assert!(late("p99_ms") <= late("max_ms"), "{scheduler:#}");
    }
    let fires = schedulers.iter().filter_map(|scheduler| scheduler["late"]["fires"].as_u64());
    assert!(fires.sum::<u64>() >= 200, "{schedulers:#?}");
}
