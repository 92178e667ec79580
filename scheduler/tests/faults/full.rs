//! Streams without room: refused loudly, on record, told; and nothing is lost.

use async_nats::jetstream::stream::Config as StreamConfig;
use chrono::TimeDelta;
use serde_json::{Value, json};
use taskparty_common::outcome::{RunState, TriggerResult};
use taskparty_nats::publish::{Draft, PublishError};
use taskparty_nats::subject::Bucket;
use tokio::time::Instant;

use crate::rig::{Site, job, until};
use crate::shop::Shop;

impl Site {
    /// Waits until an alert of this kind is told.
    async fn told(&self, kind: &str) -> String {
        until("an alert", async || {
            let alerts = self.alerts().await;
            alerts.into_iter().find(|alert| alert.kind == kind).map(|alert| alert.message)
        })
        .await
    }

    /// Allows a stream more bytes, as an operator does.
    async fn allow(&self, stream: &str, bytes: i64) {
        self.change(stream, |config| config.max_bytes = bytes).await;
    }

    /// Whether a stream confirms what it stores.
    async fn answers(&self, stream: &str, answers: bool) {
        self.change(stream, |config| config.no_ack = !answers).await;
    }

    async fn change(&self, stream: &str, change: impl FnOnce(&mut StreamConfig)) {
        let handle = self.nats.js().get_stream(stream).await.unwrap();
        let mut config = handle.cached_info().config.clone();
        change(&mut config);
        self.nats.js().update_stream(config).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_that_has_no_room_is_refused_on_record_and_follows_the_retry_policy() {
    let mut site = Site::single().await;
    site.topology.dispatch_bytes = 64 << 10;
    let node = site.node().await;
    let params = json!({
        "params": "x".repeat(8 << 10), "retry": { "max": 1, "initial": "300ms" },
        "alert": { "when": ["failed"] },
    });
    let jobs = site.each_second(10, "settle", params).await;
    let refused = until("a refused run at its end", async || {
        let runs = site.runs_now().await?;
        let refused = |run: &&taskparty_scheduler::store::RunRow| {
            run.state == RunState::NotStarted && run.attempts == 2
        };
        runs.values().find(refused).cloned()
    })
    .await;
    assert_eq!(refused.trigger_result, Some(TriggerResult::Refused));
    assert!(refused.trigger_message.contains("no room"), "{refused:#?}");
    let told = site.told("failed").await;
    assert!(told.contains("was not started after 2 attempts"), "{told}");
    assert!(told.contains("no room"), "{told}");
    // An executor makes room, and all goes on.
    let shop = Shop::open(&site);
    until("a fire that is not refused", async || {
        let done = site
            .runs_now()
            .await?
            .into_values()
            .filter(|run| run.state == RunState::Succeeded && run.fired_at > refused.ended_at);
        (done.count() > 20).then_some(())
    })
    .await;
    let judged = site.judge(&jobs).await;
    for run in judged.runs.values() {
        let refused = run.trigger_result == Some(TriggerResult::Refused);
        assert!(refused || run.state == RunState::Succeeded, "{run:#?}");
    }
    judged.say("full dispatch");
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_work_that_confirms_nothing_is_told_of_and_nothing_is_lost_or_done_twice() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let jobs = site.each_second(4, "settle", json!({})).await;
    site.more_starts(4).await;
    shop.close().await;
    site.answers("TASKPARTY_DISPATCH_shop", false).await;
    let told = site.told("unconfirmed").await;
    assert!(told.contains("TASKPARTY_DISPATCH_shop has not confirmed a dispatch"), "{told}");
    site.answers("TASKPARTY_DISPATCH_shop", true).await;
    let shop = Shop::open(&site);
    site.more_starts(4).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("a silent stream");
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_history_stream_is_full_nothing_fires_and_nothing_is_lost() {
    let mut site = Site::single().await;
    site.topology.results_bytes = 512 << 10;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let jobs = site.each_second(50, "settle", json!({})).await;
    let told = site.told("results_full").await;
    assert!(told.contains("nats stream edit"), "{told}");
    // What is under way when it fills up is all that begins.
    let fires = async || site.buckets.entries(Bucket::Fires, ">").await.unwrap().len();
    let before = fires().await;
    let full = Instant::now();
    let scheduler = site.buckets.entries(Bucket::Schedulers, ">").await.unwrap().remove(0).key;
    until("a watermark that stands still", async || {
        let handled = site.watermark(&scheduler).await?;
        (site.clock.now() - handled > TimeDelta::seconds(5)).then_some(())
    })
    .await;
    let begun = fires().await - before;
    println!("# full history: {begun} fires began in {:?}, of 50 a second", full.elapsed());
    assert!(begun < 100, "{begun}");
    site.allow("TASKPARTY_RESULTS", 256 << 20).await;
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("full history");
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_too_many_triggers_wait_new_ones_are_refused_and_retries_wait() {
    let mut site = Site::single().await;
    site.topology.triggers_bytes = 16 << 10;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let names = site.nats.names().clone();
    let later = site.clock.now() + TimeDelta::days(1);
    let filler = Draft::new(names.delay("filler"), vec![b'x'; 32 << 10])
        .at(later, names.trigger(&"nobody".parse().unwrap()));
    let filler = site.buckets.publisher().publish(filler).await.unwrap();
    let retry = json!({ "params": 1, "retry": { "max": 1, "initial": "100ms" } });
    site.save(job("demand", "fail", retry.clone())).await;
    let ask = json!({ "id": "demand" }).to_string();
    let answer = site.nats.client().request(names.api("job", "trigger"), ask.into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert!(answer.to_string().contains("too many triggers wait"), "{answer}");
    let mut spec = job("once", "fail", retry);
    let due = site.clock.now() + TimeDelta::seconds(1);
    let due = due.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
    spec["schedule"] = json!({ "at": due });
    site.save(spec).await;
    site.told("triggers_full").await;
    until("a retry that waits beyond its time", async || {
        let runs = site.runs_now().await?;
        let run = runs.values().find(|run| run.state == RunState::Retrying)?;
        let detail = site.store().await.run(run.run).await.ok()??;
        let due = detail.attempt_rows.last()?.due_at?;
        (site.clock.now() - due > TimeDelta::seconds(2)).then_some(())
    })
    .await;
    let stream = site.nats.js().get_stream(names.triggers_stream()).await.unwrap();
    stream.delete_message(filler.seq).await.unwrap();
    let judged = site.settled().await;
    judged.all_succeeded();
    judged.say("full triggers");
    shop.close().await;
    node.stop().await;
}

/// A limit of the server's storage stands in for a disk that is full.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_servers_storage_is_full_everything_waits_and_nothing_is_lost() {
    const MIB: i64 = 1 << 20;
    let mut site = Site::single_limited(24 * MIB as u64).await;
    site.topology.results_bytes = 8 * MIB;
    site.topology.dispatch_bytes = 4 * MIB;
    site.topology.logs_bytes = MIB;
    site.topology.alerts_bytes = MIB;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let jobs = site.each_second(20, "settle", json!({})).await;
    site.more_starts(40).await;
    let filler = async_nats::jetstream::stream::Config {
        name: "FILLER".into(),
        subjects: vec!["filler".into()],
        ..Default::default()
    };
    site.nats.js().create_stream(filler).await.unwrap();
    let full = until("a full storage", async || {
        let draft = Draft::new("filler", vec![0; 256 << 10]);
        match site
            .buckets
            .publisher()
            .publish_within(draft, std::time::Duration::from_secs(1))
            .await
        {
            Err(PublishError::Full(text)) => Some(text),
            _ => None,
        }
    });
    println!("# full storage: {}", full.await);
    let before = site.ledger.len();
    let seen = site.clock.now();
    until("five seconds", async || (site.clock.now() - seen > TimeDelta::seconds(5)).then_some(()))
        .await;
    println!("# full storage: {} starts in 5 s", site.ledger.len() - before);
    site.nats.js().delete_stream("FILLER").await.unwrap();
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("full storage");
    shop.close().await;
    node.stop().await;
}

/// A disk that is really full: nats-server answers no write any more, and needs a restart once there
/// is room. (It may keep a dispatch then that its consumer holds for acked; nobody gets it.) Needs a small file system,
/// in `TASKPARTY_TEST_SMALL_DISK`: `make test-disk` mounts one.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a small file system of its own"]
async fn when_the_disk_is_full_the_server_needs_room_and_a_restart_and_nothing_is_lost() {
    let disk = std::path::PathBuf::from(std::env::var_os("TASKPARTY_TEST_SMALL_DISK").unwrap());
    let mut site = Site::single_in(disk.join("nats")).await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let jobs = site.each_second(20, "settle", json!({})).await;
    site.more_starts(40).await;
    let filler = disk.join("filler");
    let filled = std::fs::write(&filler, vec![1; 1 << 30]).unwrap_err();
    println!("# disk: {filled}");
    until("a scheduler that is cut off", async || {
        let starts = site.ledger.len();
        let seen = site.clock.now();
        until("a second", async || (site.clock.now() - seen > TimeDelta::seconds(2)).then_some(()))
            .await;
        (site.ledger.len() == starts).then_some(())
    })
    .await;
    std::fs::remove_file(&filler).unwrap();
    let freed = Instant::now();
    let by_itself = tokio::time::timeout(std::time::Duration::from_secs(15), site.more_starts(1));
    if by_itself.await.is_err() {
        println!("# disk: no fire in 15 s after there was room again; the server is restarted");
        site.server().restart().await.unwrap();
        site.ledger.nats_forgets();
    }
    site.all_fire_again(&jobs).await;
    println!("# disk: all fire again {:?} after there was room", freed.elapsed());
    let judged = site.judge_with(&jobs, Site::work_to_come).await;
    judged.all_succeeded();
    judged.say("full disk");
    shop.close().await;
    node.stop().await;
}
