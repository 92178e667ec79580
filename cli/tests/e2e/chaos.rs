//! Any one process is killed at any moment, while jobs run: nothing is lost, nothing comes twice.

use std::time::Duration;

use chrono::TimeDelta;
use rand::RngExt;
use serde_json::json;
use taskparty_common::outcome::RunState;
use taskparty_nats::clock::Clock;

use crate::facts::{accounted, by_job, recorded_once};
use crate::process::Process;
use crate::shop::{self, deliveries, starts};
use crate::site::{Site, each_second, until};

/// What can be killed: each of these is a process.
const PARTS: [&str; 4] = ["scheduler", "log-writer", "api", "executor"];

async fn start(site: &Site, part: &str) -> Process {
    match part {
        "executor" => shop::process(site),
        roles => site.serve(roles).await,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_process_is_killed_at_whatever_moment_nothing_is_lost_and_nothing_is_doubled() {
    let site = Site::start().await;
    let mut parts = Vec::new();
    for part in PARTS {
        parts.push(start(&site, part).await);
    }
    let more = |params, max| {
        let retry = json!({ "max": max, "initial": "100ms" });
        let misfire = json!({ "grace": "1m" });
        json!({ "params": params, "retry": retry, "misfire": misfire, "redeliveries": 10 })
    };
    let mut jobs = each_second(40, "settle", more(json!(null), 0));
    jobs.extend(each_second(5, "work", more(json!(300), 0)));
    jobs.extend(each_second(5, "flaky", more(json!(1), 2)));
    site.apply(&jobs).await;
    let from = Clock::system().now();
    let end = from + TimeDelta::seconds(20);
    // Each part in turn, so that each is killed; the moment is chance.
    let mut turn = 0;
    while turn < 2 * PARTS.len() || Clock::system().now() < end {
        let pause = rand::rng().random_range(500..1_500);
        tokio::time::sleep(Duration::from_millis(pause)).await;
        parts.remove(0).kill().await;
        parts.push(start(&site, PARTS[turn % PARTS.len()]).await);
        turn += 1;
    }
    let last = Clock::system().now();
    until("a fire of each job after all that", async || {
        let fired = site.fired().await;
        let by_job = by_job(&fired);
        let reached = by_job.values().filter(|of_job| of_job.iter().any(|f| f.fire_time > last));
        (reached.count() == jobs.len()).then_some(())
    })
    .await;
    for job in &jobs {
        site.pause(job["id"].as_str().unwrap()).await;
    }
    let runs = site.all_ended().await;
    let fired = site.fired().await;
    recorded_once(&fired);
    for (job, of_job) in by_job(&fired) {
        let scheduled: Vec<_> = of_job.into_iter().filter(|f| f.plan.attempt == 1).collect();
        let (first, until) = accounted(&scheduled, TimeDelta::seconds(1));
        assert!(first <= from + TimeDelta::seconds(1) && until > last, "{job}: {first} to {until}");
    }
    let wrong = runs.values().find(|run| run.state != RunState::Succeeded);
    assert!(wrong.is_none(), "{wrong:#?}");
    // An attempt can come again where an executor was killed, but is never dispatched again.
    assert_eq!(deliveries(&starts(&site)).len(), fired.len());
    assert_eq!(site.alerts().await.len(), 0);
    for part in parts {
        part.stop().await;
    }
}
