//! Jobs that may not overlap themselves, on two executors that are processes of their own (R4).

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use taskparty_common::outcome::{Outcome, RunState};

use crate::shop;
use crate::site::{Site, job, until};

/// When each handler of a job began and ended, by the results, in order.
async fn stretches(site: &Site, job: &str) -> Vec<(DateTime<Utc>, DateTime<Utc>, Outcome)> {
    let results = site.results().await;
    let of_job = results.into_iter().filter(|result| result.job.as_str() == job);
    let mut all: Vec<_> = of_job
        .filter_map(|result| Some((result.started_at?, result.finished_at, result.outcome)))
        .collect();
    all.sort_unstable_by_key(|(began, ..)| *began);
    all
}

/// A job is due each 2 s, and a run takes 5 s.
#[tokio::test(flavor = "multi_thread")]
async fn on_two_executors_never_two_runs_of_a_job_go_on_at_once() {
    let site = Site::start().await;
    let nodes = [site.serve("scheduler,log-writer,api").await, site.serve("scheduler").await];
    let executors = [shop::process(&site), shop::process(&site)];
    until("both executors", async || {
        let list = site.run(&["executor", "list", "-o", "json"]).await;
        (list.json()["items"].as_array()?.len() == 2).then_some(())
    })
    .await;
    let policies = ["queue", "skip", "replace"];
    let jobs: Vec<Value> = policies
        .iter()
        .map(|policy| {
            let schedule = json!({ "fixed_rate": "2s" });
            let more = json!({ "params": 5_000, "overlap": policy, "queue_limit": 2, "schedule": schedule });
            job(policy, "work", more)
        })
        .collect();
    site.apply(&jobs).await;
    // Long enough that the queue is full, and that each has run several times.
    until("runs of each", async || {
        let runs = site.runs().await;
        let of = |policy: &str, state| {
            runs.values().filter(|run| run.job.as_str() == policy && run.state == state).count()
        };
        let queue = of("queue", RunState::Succeeded) >= 3 && of("queue", RunState::Skipped) >= 2;
        let skip = of("skip", RunState::Succeeded) >= 3 && of("skip", RunState::Skipped) >= 3;
        (queue && skip && of("replace", RunState::Cancelled) >= 4).then_some(())
    })
    .await;
    for policy in policies {
        site.pause(policy).await;
    }
    let runs = site.all_ended().await;
    for policy in policies {
        let stretches = stretches(&site, policy).await;
        assert!(stretches.len() >= 3, "{policy}: {stretches:?}");
        for pair in stretches.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "{policy}: two at once: {pair:?}");
        }
        let states: BTreeSet<RunState> =
            runs.values().filter(|run| run.job.as_str() == policy).map(|run| run.state).collect();
        let wanted = match policy {
            "replace" => BTreeSet::from([RunState::Cancelled, RunState::Succeeded]),
            _ => BTreeSet::from([RunState::Skipped, RunState::Succeeded]),
        };
        assert_eq!(states, wanted, "{policy}");
    }
    // The last of those that replace each other is the only one that came to its end.
    let of_replace = runs.values().filter(|run| run.job.as_str() == "replace");
    let last = of_replace.clone().max_by_key(|run| run.fire_time).unwrap();
    assert_eq!(last.state, RunState::Succeeded);
    assert_eq!(of_replace.filter(|run| run.state == RunState::Succeeded).count(), 1);
    assert_eq!((site.work_left().await, site.alerts().await.len()), (0, 0));
    site.run(&["doctor", "--audit", "--settle", "1s"]).await.exits(0);
    for process in executors.into_iter().chain(nodes) {
        process.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_may_ask_for_another_policy_and_wait_for_the_outcome() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = shop::Shop::open(&site);
    site.apply(&[
        job("work", "work", json!({ "params": 60_000 })),
        job("quick", "settle", json!({})),
        job("hopeless", "flaky", json!({ "params": 99 })),
    ])
    .await;
    let quick = site.run(&["job", "trigger", "quick", "--wait", "-o", "json"]).await.exits(0);
    assert_eq!(quick.json()["state"], "succeeded");
    let failed = site.run(&["job", "trigger", "hopeless", "--wait"]).await.exits(3);
    assert!(failed.stderr.contains("attempt 1 fails"), "{failed:#?}");
    site.run(&["job", "trigger", "work", "--overlap", "never"]).await.exits(2).says("replace");
    let first = site.trigger("work", &["--overlap", "queue"]).await;
    site.seen(&first, |state| state == RunState::Running).await;
    let left_out = site.trigger("work", &["--overlap", "skip"]).await;
    assert_eq!(site.ended(&left_out).await["skip_reason"], "overlap");
    let replaces = site.trigger("work", &["--overlap", "replace"]).await;
    let replaced = site.ended(&first).await;
    assert_eq!(replaced["state"], "cancelled");
    assert!(replaced["cancel_requested_by"].as_str().unwrap().contains(&replaces), "{replaced:#}");
    site.seen(&replaces, |state| state == RunState::Running).await;
    // The job itself may overlap itself.
    let beside = site.trigger("work", &[]).await;
    site.seen(&beside, |state| state == RunState::Running).await;
    for run in [&replaces, &beside] {
        site.run(&["run", "cancel", run]).await.exits(0);
        site.ended(run).await;
    }
    shop.close().await;
    node.stop().await;
}
