//! Runs that wait, for their turn or for their time, when what says so in NATS is deleted by hand.

use chrono::{DateTime, Utc};
use serde_json::{Value, json};
use taskparty_common::outcome::{RunState, SkipReason, TriggerResult};
use taskparty_common::overlap::{Places, WhenFull};
use taskparty_nats::history::{purge_subject, stream_info};
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::Role;
use taskparty_scheduler::store::RunRow;
use tokio::time::timeout;
use uuid::Uuid;

use crate::rig::{PATIENCE, Site, job, until};
use crate::shop::Shop;

const OVERLAP: &str = "KV_taskparty_overlap";

impl Site {
    /// Triggers a job through the API; the run.
    async fn trigger_job(&self, job: &str, more: Value) -> Uuid {
        let mut request = more;
        request["id"] = json!(job);
        let subject = self.nats.names().api("job", "trigger");
        until("the API", async || {
            let payload = request.to_string().into();
            let answer = self.nats.client().request(subject.clone(), payload);
            let answer = timeout(PATIENCE, answer).await.ok()?.ok()?;
            let answer: Value = serde_json::from_slice(&answer.payload).ok()?;
            answer["run"].as_str()?.parse().ok()
        })
        .await
    }

    async fn in_state(&self, run: Uuid, wanted: impl Fn(&RunRow) -> bool) -> RunRow {
        until("the state of a run", async || {
            let row = self.store().await.run(run).await.ok()??.run;
            wanted(&row).then_some(row)
        })
        .await
    }

    async fn succeeded(&self, runs: &[Uuid]) {
        for run in runs {
            let row = self.in_state(*run, |row| row.state.is_terminal()).await;
            assert_eq!(row.state, RunState::Succeeded, "{row:#?}");
        }
    }

    /// One that goes on for `ms`, and `count` that wait.
    async fn queue(&self, id: &str, ms: u64, count: usize) -> Vec<Uuid> {
        let spec = json!({ "overlap": "queue", "params": ms, "no_executor_wait": "10s" });
        self.save(job(id, "work", spec)).await;
        let mut runs = vec![self.trigger_job(id, json!({})).await];
        self.in_state(runs[0], |row| row.state == RunState::Running).await;
        for _ in 0..count {
            let run = self.trigger_job(id, json!({ "params": 10 })).await;
            self.in_state(run, |row| row.state == RunState::Waiting).await;
            runs.push(run);
        }
        runs
    }

    /// Asserts that the handler was called once for each run, one after the other.
    async fn took_turns(&self, runs: &[Uuid]) {
        let starts = self.ledger.starts();
        let mut times: Vec<(DateTime<Utc>, DateTime<Utc>)> = Vec::new();
        for run in runs {
            let of: Vec<_> = starts.iter().filter(|start| start.run == *run).collect();
            assert_eq!(of.len(), 1, "{of:#?}");
            let row = self.in_state(*run, |_| true).await;
            times.push((row.started_at.unwrap(), row.ended_at.unwrap()));
        }
        times.sort_unstable();
        for pair in times.windows(2) {
            assert!(pair[0].1 <= pair[1].0, "two at once: {times:#?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_when_the_results_are_deleted_is_recorded_as_waiting_and_has_its_turn() {
    let site = Site::single().await;
    // Nobody takes in the records before they are deleted.
    let node = site.node_at(&site.url(), &[Role::Scheduler, Role::Api]).await;
    let shop = Shop::open(&site);
    let spec = |overlap: &str| json!({ "overlap": overlap, "params": 6_000 });
    site.save(job("turns", "work", spec("queue"))).await;
    site.save(job("alone", "work", spec("skip"))).await;
    let mut runs = [Uuid::nil(); 5];
    for (n, id) in ["turns", "turns", "turns", "alone", "alone"].into_iter().enumerate() {
        let params = if n == 0 || n == 3 { 6_000 } else { 10 };
        runs[n] = site.trigger_job(id, json!({ "params": params })).await;
        until("its record", async || (site.fired_now().await?.len() == n + 1).then_some(())).await;
    }
    site.more_starts(2 - site.ledger.len()).await;
    let made = stream_info(site.nats.js(), "TASKPARTY_RESULTS").await.unwrap().created;
    site.nats.js().delete_stream("TASKPARTY_RESULTS").await.unwrap();
    let fired = until("the records of what was locked", async || {
        let info = stream_info(site.nats.js(), "TASKPARTY_RESULTS").await.ok()?;
        let fired = site.fired_now().await?;
        (info.created != made && fired.len() == 5).then_some(fired)
    })
    .await;
    let result = |run: Uuid| fired.iter().find(|fired| fired.run == run).unwrap().result;
    use TriggerResult::{Dispatched, Queued, Skipped};
    assert_eq!(runs.map(result), [Dispatched, Queued, Queued, Dispatched, Skipped]);
    let writer = site.node_at(&site.url(), &[Role::LogWriter]).await;
    site.succeeded(&runs[..4]).await;
    site.took_turns(&runs[..3]).await;
    let row = site.in_state(runs[4], |row| row.state.is_terminal()).await;
    assert_eq!(row.skip_reason, Some(SkipReason::Overlap), "{row:#?}");
    assert_eq!(site.ledger.len(), 4);
    shop.close().await;
    writer.stop().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_places_are_deleted_the_run_that_goes_on_keeps_its_own_and_those_that_wait_wait_on()
 {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let mut runs = site.queue("turns", 4_000, 2).await;
    site.nats.js().delete_stream(OVERLAP).await.unwrap();
    runs.push(site.trigger_job("turns", json!({ "params": 10 })).await);
    site.succeeded(&runs).await;
    site.took_turns(&runs).await;
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_that_wait_in_no_queue_wait_again_by_what_the_history_knows() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let runs = site.queue("turns", 2_000, 3).await;
    node.stop().await;
    // Nobody remembers, and nobody sees it.
    purge_subject(site.nats.js(), OVERLAP, "$KV.taskparty_overlap.>").await.unwrap();
    let node = site.node().await;
    site.succeeded(&runs).await;
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_that_is_held_by_a_run_that_has_ended_is_given_back() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let ended = site.queue("turns", 1_000, 0).await[0];
    site.succeeded(&[ended]).await;
    // Else it is given back, as it should be, after what follows.
    until("its place, given back", async || {
        let entry = site.buckets.get_leader(Bucket::Overlap, "turns").await.ok()??;
        let places: Places = serde_json::from_slice(&entry.value?).ok()?;
        (!places.is_busy()).then_some(())
    })
    .await;
    let mut places = Places::default();
    places.admit(ended, 1, WhenFull::Skip);
    let value = serde_json::to_vec(&places).unwrap();
    site.buckets.put(Bucket::Overlap, "turns", value, None).await.unwrap();
    let next = site.trigger_job("turns", json!({ "params": 10 })).await;
    site.in_state(next, |row| row.state == RunState::Waiting).await;
    site.succeeded(&[next]).await;
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_planned_run_whose_trigger_was_deleted_is_triggered_all_the_same() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    site.save(job("later", "settle", json!({}))).await;
    let planned = site.trigger_job("later", json!({ "in": "2s", "params": { "a": 1 } })).await;
    let other = site.trigger_job("later", json!({ "in": "3s" })).await;
    site.in_state(planned, |row| row.state == RunState::Scheduled).await;
    let key = until("the trigger", async || {
        let run = site.store().await.run(planned).await.ok()??;
        Some(run.lock?.strip_prefix("later.x.")?.to_owned())
    })
    .await;
    let subject = format!("taskparty.delay.at.later.{key}");
    let deleted = purge_subject(site.nats.js(), "TASKPARTY_TRIGGERS", &subject).await.unwrap();
    assert_eq!(deleted, 1);
    site.succeeded(&[other, planned]).await;
    let run = site.store().await.run(planned).await.unwrap().unwrap();
    assert_eq!(run.params.as_ref().map(|params| params.get()), Some(r#"{"a":1}"#));
    let late = run.run.fired_at.unwrap() - run.run.fire_time.unwrap();
    println!("# a deleted trigger: fired {} ms after its time", late.num_milliseconds());
    assert_eq!(site.ledger.len(), 2);
    shop.close().await;
    node.stop().await;
}
