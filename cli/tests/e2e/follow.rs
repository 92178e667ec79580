//! What the end of a run leads to beyond the run: jobs that follow, and a pause after failures; and
//! how many runs of one job go on at once.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use taskparty_common::outcome::{RunState, SkipReason, Trigger};
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::store::RunRow;

use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job, until};

impl Site {
    async fn runs_of(&self, job: &str) -> Vec<RunRow> {
        self.runs().await.into_values().filter(|run| run.job.as_str() == job).collect()
    }

    /// `job get`, once the job is paused or goes on.
    async fn paused(&self, id: &str, paused: bool) -> Value {
        until("a pause, or its end", async || {
            let entry = self.buckets.get_leader(Bucket::Jobs, id).await.ok()??;
            let job: Value = serde_json::from_slice(&entry.value?).unwrap();
            (job["meta"]["paused"].is_object() == paused).then(|| job["meta"].clone())
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_follow_a_run_that_has_succeeded_once_though_the_log_writer_dies_over_it() {
    let site = Site::start().await;
    let node = site.serve("scheduler,api").await;
    let shop = Shop::open(&site);
    let settle = |id: &str, then: Value| job(id, "settle", json!({ "then": then }));
    let mut first = settle("first", json!(["second", "resting"]));
    first["shards"] = json!(3);
    site.apply(&[
        first,
        settle("second", json!(["third"])),
        settle("third", json!([])),
        settle("resting", json!(["third"])),
        job("bad", "flaky", json!({ "params": 99, "then": ["third"] })),
    ])
    .await;
    site.pause("resting").await;
    // It dies when the runs have ended in its books and nobody was triggered; and when somebody was.
    for point in ["log_writer.after_commit", "log_writer.after_publish"] {
        site.trigger("first", &[]).await;
        site.trigger("bad", &[]).await;
        site.serve_until("log-writer", &format!("{point}=kill@2")).await.dies().await;
    }
    let writer = site.serve("log-writer").await;
    until("all that follows", async || (site.runs_of("third").await.len() == 2).then_some(()))
        .await;
    let runs = site.all_ended().await;
    let mut by_job: BTreeMap<&str, Vec<&RunRow>> = BTreeMap::new();
    runs.values().for_each(|run| by_job.entry(run.job.as_str()).or_default().push(run));
    let count = |job: &str| by_job[job].len();
    assert_eq!(
        ["first", "bad", "second", "third", "resting"].map(count),
        [2, 2, 2, 2, 2],
        "{by_job:#?}"
    );
    for job in ["second", "third"] {
        let sound = |run: &&RunRow| {
            run.state == RunState::Succeeded && run.trigger == Some(Trigger::Dependency)
        };
        assert!(by_job[job].iter().all(sound), "{by_job:#?}");
    }
    let left_out = |run: &&RunRow| run.skip_reason == Some(SkipReason::Paused);
    assert!(by_job["resting"].iter().all(left_out), "{by_job:#?}");
    assert!(by_job["bad"].iter().all(|run| run.state == RunState::Failed));
    started_once(&starts(&site));
    shop.close().await;
    writer.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_would_follow_each_other_in_a_circle_or_do_not_exist_are_refused() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let then = |id: &str, then: Value| job(id, "settle", json!({ "then": then }));
    let refused = async |jobs: Value, words: &str| {
        let name = site.log("jobs").with_extension("json");
        std::fs::write(&name, json!({ "jobs": jobs }).to_string()).unwrap();
        site.run(&["job", "apply", "-f", name.to_str().unwrap()]).await.exits(2).says(words);
    };
    refused(json!([then("a", json!(["reprot"])), then("report", json!([]))]), "report").await;
    refused(json!([then("a", json!(["a"]))]), "itself").await;
    refused(json!([then("a", json!(["b"])), then("b", json!(["a"]))]), "a → b → a").await;
    assert!(site.buckets.entries(Bucket::Jobs, ">").await.unwrap().is_empty());
    site.apply(&[then("a", json!(["b"])), then("b", json!([]))]).await;
    refused(json!([then("b", json!(["a"]))]), "circle").await;
    // What follows may go; saving the same again is no error then.
    site.run(&["job", "delete", "b"]).await.exits(0);
    site.apply(&[then("a", json!(["b"]))]).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_failed_runs_in_a_row_pause_the_job_and_say_so() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let every = json!({ "params": 99, "pause_after_failures": 3, "alert": { "when": [] },
        "schedule": { "fixed_rate": "1s" } });
    let by_hand = json!({ "params": 99, "pause_after_failures": 3, "alert": { "when": [] } });
    site.apply(&[job("every", "flaky", every), job("by-hand", "flaky", by_hand)]).await;
    let meta = site.paused("every", true).await;
    assert_eq!(meta["paused"]["by"], "taskparty");
    let reason = meta["paused"]["reason"].as_str().unwrap();
    assert!(reason.starts_with("3 runs in a row failed, the last of them "), "{reason}");
    let shown = site.run(&["job", "get", "every"]).await.exits(0).stdout;
    assert!(shown.contains("3 runs in a row failed"), "{shown}");
    let alert = until("the alert", async || site.alerts().await.pop()).await;
    assert_eq!(alert.kind, "paused");
    assert!(alert.message.contains("job resume every"), "{}", alert.message);
    // A success in between begins the count anew, and so does whoever resumes the job.
    for params in ["99", "99", "0", "99", "99"] {
        let run = site.trigger("by-hand", &["--params", params]).await;
        site.ended(&run).await;
    }
    let run = site.trigger("by-hand", &[]).await;
    site.ended(&run).await;
    let meta = site.paused("by-hand", true).await;
    let reason = meta["paused"]["reason"].as_str().unwrap();
    assert!(reason.ends_with(&run), "it was the last of three: {reason}");
    site.run(&["job", "resume", "by-hand"]).await.exits(0);
    for _ in 0..2 {
        let run = site.trigger("by-hand", &[]).await;
        until("what is decided about it", async || {
            let ended = site.ended(&run).await;
            (ended["pending"] == json!([])).then_some(())
        })
        .await;
    }
    site.paused("by-hand", false).await;
    assert_eq!(site.alerts().await.len(), 2);
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_many_runs_of_a_job_go_on_at_once_over_all_schedulers_and_executors_and_no_more() {
    let site = Site::start().await;
    let nodes = [site.serve("scheduler,log-writer,api").await, site.serve("scheduler").await];
    let shops = [Shop::open(&site), Shop::open(&site)];
    let spec = |overlap: &str| json!({ "params": 700, "max_running": 3, "overlap": overlap });
    let jobs = ["queue", "allow", "skip"];
    site.apply(&jobs.map(|overlap| job(overlap, "work", spec(overlap)))).await;
    for _ in 0..7 {
        for id in jobs {
            site.trigger(id, &[]).await;
        }
    }
    let runs = site.all_ended().await;
    for id in jobs {
        let of: Vec<&RunRow> = runs.values().filter(|run| run.job.as_str() == id).collect();
        let ran: Vec<_> =
            of.iter().filter_map(|run| Some((run.started_at?, run.ended_at?))).collect();
        let at_once = |at| ran.iter().filter(|(began, ended)| *began <= at && at < *ended).count();
        let most = ran.iter().map(|(began, _)| at_once(*began)).max().unwrap();
        let left_out = of.iter().filter(|run| run.skip_reason == Some(SkipReason::Overlap)).count();
        assert!(most <= 3 && most > 1, "{most} of {id} at once");
        assert_eq!(ran.len() + left_out, 7, "{of:#?}");
        assert_eq!(left_out > 0, id == "skip", "{left_out} of {id}");
    }
    for shop in shops {
        shop.close().await;
    }
    for node in nodes {
        node.stop().await;
    }
}
