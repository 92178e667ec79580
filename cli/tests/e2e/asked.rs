//! Runs that somebody cancels, wherever they are, with the real binary and real executors; and
//! whatever dies over it.

use serde_json::{Value, json};
use taskparty_common::outcome::RunState;

use crate::process::Process;
use crate::shop::{Shop, starts};
use crate::site::{Site, job, until};

async fn cancel(site: &Site, run: &str) -> Value {
    site.run(&["run", "cancel", run, "-o", "json"]).await.exits(0).json()
}

async fn in_state(site: &Site, run: &str, state: RunState) -> Value {
    site.seen(run, |seen| {
        assert!(seen == state || !seen.is_terminal(), "it is {seen}, and was to be {state}");
        seen == state
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_is_cancelled_wherever_it_is() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let retry = json!({ "max": 3, "initial": "1h" });
    site.apply(&[
        job("work", "work", json!({ "params": 600_000 })),
        job("later", "settle", json!({})),
        job("flaky", "flaky", json!({ "params": 9, "retry": retry })),
        job("nobody", "nobody", json!({ "no_executor_wait": "1h" })),
        job("turns", "work", json!({ "params": 600_000, "overlap": "queue" })),
    ])
    .await;
    let scheduled = site.trigger("later", &["--in", "1h", "--key", "later-1"]).await;
    let waits = site.trigger("nobody", &[]).await;
    let running = site.trigger("work", &[]).await;
    let retrying = site.trigger("flaky", &[]).await;
    let first = site.trigger("turns", &[]).await;
    in_state(&site, &first, RunState::Running).await;
    let mut in_turn = Vec::new();
    for _ in 0..3 {
        in_turn.push(site.trigger("turns", &[]).await);
        in_state(&site, in_turn.last().unwrap(), RunState::Waiting).await;
    }
    for (run, state) in [
        (&scheduled, RunState::Scheduled),
        (&waits, RunState::Waiting),
        (&running, RunState::Running),
        (&retrying, RunState::Retrying),
        (&in_turn[1], RunState::Waiting),
    ] {
        in_state(&site, run, state).await;
        let asked = cancel(&site, run).await;
        assert_eq!((&asked["changed"], &asked["shown"]), (&json!(true), &json!(true)), "{state}");
        let ended = site.ended(run).await;
        assert_eq!(ended["state"], "cancelled", "{state}: {ended:#}");
        assert!(ended["cancel_requested_by"].as_str().unwrap().starts_with("ada@"), "{ended:#}");
        // Twice is once.
        let again = site.run(&["run", "cancel", run]).await.exits(0);
        assert!(again.stdout.contains("is cancelled already"), "{again:#?}");
    }
    // One of three that wait: the other two run, in order.
    cancel(&site, &first).await;
    for run in [&in_turn[0], &in_turn[2]] {
        in_state(&site, run, RunState::Running).await;
        cancel(&site, run).await;
        in_state(&site, run, RunState::Cancelled).await;
    }
    // The same key triggers once, also when what it triggered was cancelled.
    assert_eq!(site.trigger("later", &["--key", "later-1"]).await, scheduled);
    let by_key = ["run", "cancel", "--job", "later", "--key", "later-1"];
    assert!(site.run(&by_key).await.exits(0).stdout.contains("is cancelled already"));
    let done = site.trigger("later", &[]).await;
    site.ended(&done).await;
    let late = site.run(&["run", "cancel", &done]).await.exits(0);
    assert!(late.stdout.contains("has ended already: succeeded"), "{late:#?}");
    assert_eq!(in_state(&site, &done, RunState::Succeeded).await["state"], "succeeded");
    site.run(&["run", "cancel", "0199b2c4-8f00-7c1e-9a55-3d1f6f0c2b11"]).await.exits(1);
    assert_eq!(site.work_left().await, 0);
    assert_eq!(site.alerts().await.len(), 0);
    let begun: Vec<String> = starts(&site).iter().map(|start| start.run.to_string()).collect();
    for never in [&scheduled, &waits, &in_turn[1]] {
        assert!(!begun.contains(never), "it was cancelled before it began");
    }
    site.run(&["doctor", "--audit", "--settle", "1s"]).await.exits(0);
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_asked_comes_to_pass_whatever_process_dies_over_it() {
    let site = Site::start().await;
    let shop = Shop::open(&site);
    let scheduler = site.serve("scheduler").await;
    let first = site.serve("log-writer,api").await;
    site.apply(&[
        job("later", "settle", json!({})),
        job("turns", "work", json!({ "params": 600_000, "overlap": "queue" })),
    ])
    .await;
    let running = site.trigger("turns", &[]).await;
    in_state(&site, &running, RunState::Running).await;
    let waits = site.trigger("turns", &[]).await;
    in_state(&site, &waits, RunState::Waiting).await;
    let scheduled = site.trigger("later", &["--in", "1h"]).await;
    in_state(&site, &scheduled, RunState::Scheduled).await;
    first.stop().await;
    // The API's node dies over its answer, with no log writer there.
    for (run, point) in [(&waits, "api.after_asked"), (&scheduled, "api.after_asked")] {
        let api = site.serve_until("api", &format!("{point}=kill@1")).await;
        site.run(&["run", "cancel", run]).await;
        api.dies().await;
    }
    // Then a log writer between that it has kept a run from being dispatched and its record.
    for _ in 0..2 {
        let doomed = site.serve_until("log-writer", "log_writer.after_withdrawn=kill@1").await;
        doomed.dies().await;
    }
    let last = site.serve("log-writer,api").await;
    for run in [&waits, &scheduled] {
        assert_eq!(site.ended(run).await["state"], "cancelled");
    }
    until("the place of the one that waited is given back", async || {
        let entry =
            site.buckets.get_leader(taskparty_nats::subject::Bucket::Overlap, "turns").await;
        let value = entry.unwrap().unwrap().value.unwrap();
        let places: taskparty_common::overlap::Places = serde_json::from_slice(&value).unwrap();
        (places.waiting.is_empty() && places.leaving.is_empty()).then_some(())
    })
    .await;
    cancel(&site, &running).await;
    assert_eq!(site.ended(&running).await["state"], "cancelled");
    assert_eq!(site.work_left().await, 0);
    shop.close().await;
    last.stop().await;
    scheduler.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_has_ended_is_tried_again_as_the_same_run_with_what_it_was_made_with() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer").await;
    let api = site.serve("api").await;
    let shop = Shop::open(&site);
    let flaky = |fails: u32| job("flaky", "flaky", json!({ "params": fails, "shards": 2 }));
    site.apply(&[flaky(1), job("turns", "work", json!({ "params": 600_000, "overlap": "queue" }))])
        .await;
    let run = site.trigger("flaky", &["--key", "k"]).await;
    assert_eq!(site.ended(&run).await["state"], "failed");
    // Today's definition always fails; the run's own fails once.
    site.apply(&[flaky(99)]).await;
    site.run(&["run", "retry", "--job", "flaky", "--key", "k"]).await.exits(0);
    let ended = site.seen(&run, |state| state == RunState::Succeeded).await;
    assert_eq!((&ended["round"], &ended["attempts"]), (&json!(1), &json!(4)));
    site.run(&["run", "retry", &run]).await.exits(1).says("--all-shards");
    // The API's node dies over its answer.
    api.stop().await;
    let doomed = site.serve_until("api", "api.after_asked=kill@1").await;
    site.run(&["run", "retry", &run, "--all-shards"]).await;
    doomed.dies().await;
    let api = site.serve("api").await;
    let ended = until("the second round", async || {
        let run = site.ended(&run).await;
        (run["round"] == 2).then_some(run)
    })
    .await;
    assert_eq!((&ended["state"], &ended["attempts"]), (&json!("succeeded"), &json!(6)));

    // A job that may not overlap itself: the retry takes its turn.
    let first = site.trigger("turns", &[]).await;
    in_state(&site, &first, RunState::Running).await;
    site.run(&["run", "retry", &first]).await.exits(1).says("has not ended");
    cancel(&site, &first).await;
    assert_eq!(site.ended(&first).await["state"], "cancelled");
    let second = site.trigger("turns", &[]).await;
    in_state(&site, &second, RunState::Running).await;
    site.run(&["run", "retry", &first]).await.exits(0);
    site.seen(&first, |state| state == RunState::Retrying).await;
    until("the retry waits for its place", async || {
        let entry =
            site.buckets.get_leader(taskparty_nats::subject::Bucket::Overlap, "turns").await;
        let value = entry.unwrap().unwrap().value.unwrap();
        let places: taskparty_common::overlap::Places = serde_json::from_slice(&value).unwrap();
        (places.waiting.len() == 1).then_some(())
    })
    .await;
    let begun = |run: &str| starts(&site).iter().filter(|s| s.run.to_string() == *run).count();
    assert_eq!((begun(&first), begun(&second)), (1, 1));
    cancel(&site, &second).await;
    in_state(&site, &second, RunState::Cancelled).await;
    site.seen(&first, |state| state == RunState::Running).await;
    cancel(&site, &first).await;
    assert_eq!(site.ended(&first).await["state"], "cancelled");
    let third = site.trigger("turns", &[]).await;
    in_state(&site, &third, RunState::Running).await;
    cancel(&site, &third).await;
    in_state(&site, &third, RunState::Cancelled).await;
    assert_eq!(site.work_left().await, 0);
    site.run(&["doctor", "--audit", "--settle", "1s"]).await.exits(0);
    shop.close().await;
    api.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_runs_only_the_shards_that_failed_and_all_of_them_when_that_is_asked() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let second_fails = json!({ "params": 0, "shards": 3, "shard_params": [0, 1, 0] });
    site.apply(&[job("partly", "flaky", second_fails)]).await;
    let run = site.trigger("partly", &[]).await;
    assert_eq!(site.ended(&run).await["state"], "failed");
    let mut begun = vec![(0, 1), (1, 1), (2, 1)];
    for (round, more, again) in
        [(1, None, vec![(1, 2)]), (2, Some("--all-shards"), vec![(0, 2), (1, 3), (2, 2)])]
    {
        let args: Vec<&str> = ["run", "retry", &run].into_iter().chain(more).collect();
        site.run(&args).await.exits(0);
        let ended = until("the end of the round", async || {
            let run = site.ended(&run).await;
            (run["round"] == round).then_some(run)
        })
        .await;
        assert_eq!(ended["state"], "succeeded", "{ended:#}");
        begun.extend(again);
        begun.sort_unstable();
        let mut all: Vec<_> = starts(&site).iter().map(|s| (s.shard, s.attempt)).collect();
        all.sort_unstable();
        assert_eq!(all, begun, "shards and attempts in round {round}");
    }
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_run_is_told_that_no_scheduler_is_live_and_bears_a_restart_of_the_only_node()
 {
    let site = Site::start().await;
    let shop = Shop::open(&site);
    let writer = site.serve("log-writer").await;
    let api = site.serve("api").await;
    site.apply(&[job("wait", "work", json!({ "params": 3_000 }))]).await;
    let command = site.desk.command(&["job", "trigger", "wait", "--wait"]);
    let mut waits = Process::start(command, site.log("wait"));
    assert!(waits.says("no scheduler is live; the run starts when one is").await);
    let scheduler = site.serve("scheduler").await;
    until("it is at work", async || (!starts(&site).is_empty()).then_some(())).await;
    api.stop().await;
    assert!(waits.says("the run goes on").await, "{}", waits.log());
    let api = site.serve("api").await;
    let status = waits.ended().await;
    assert!(status.success() && waits.log().contains("succeeded in"), "{}", waits.log());
    shop.close().await;
    for process in [writer, api, scheduler] {
        process.stop().await;
    }
}
