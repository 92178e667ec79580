//! The order and the number of messages: what is asked for, what is said, and when.

use std::time::Duration;

use async_nats::Subscriber;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::kv::Operation;
use futures::StreamExt;
use serde_json::{Value, json};
use taskparty_common::dispatch::{ExecutorEntry, ResultRecord};
use taskparty_common::name::Handler;
use taskparty_common::outcome::{Code, Outcome};
use taskparty_common::priority::Priority;
use tokio::time::timeout;

use super::expect;
use crate::site::{JOB, Site, pause, until};
use crate::subject::Subject;

/// An executor registers, says the truth about itself, renews its entry and answers probes.
pub async fn registers_renews_and_answers(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let key = format!("$KV.taskparty_executors.{}.{}", site.app, executor.instance);
    let (first, entry) = site.registry().await.remove(&key).expect("an entry under its name");
    let bucket = site.nats.js().get_key_value("taskparty_executors").await.unwrap();
    let short = format!("{}.{}", site.app, executor.instance);
    let mut changes = bucket.watch_from_revision(&short, first + 1).await.unwrap();
    let slots: Vec<_> = entry.handlers.iter().map(|(name, h)| (name.as_str(), h.slots)).collect();
    let wanted = [("deaf", 1), ("echo", 4), ("fail", 1), ("fatal", 1), ("panic", 1), ("sleep", 2)];
    assert_eq!(slots, wanted);
    assert_eq!((entry.v, &entry.app, entry.draining), (1, &site.app, false));
    assert!(entry.pid > 0 && !entry.host.is_empty());

    let run = site.run("sleep", json!({"ms": 7_000})).await;
    site.started(run, 1).await;
    let probe = format!("taskparty.probe.{}.{}", site.app, executor.instance);
    let probe = async |job: &str| -> Value {
        let ask = json!({"job": job}).to_string().into();
        let answer =
            timeout(Duration::from_secs(5), site.nats.client().request(probe.clone(), ask));
        serde_json::from_slice(&answer.await.unwrap().unwrap().payload).unwrap()
    };
    assert_eq!(probe(JOB).await, json!({"free": 9, "running": true}));
    assert_eq!(probe("another").await, json!({"free": 9, "running": false}));

    // An entry that was not renewed in time would be gone before it comes again.
    let busy = async {
        loop {
            let change = changes.next().await.unwrap().unwrap();
            assert_eq!(change.operation, Operation::Put, "the entry was gone");
            let entry: ExecutorEntry = serde_json::from_slice(&change.value).unwrap();
            let mut handlers = entry.handlers.into_iter();
            let (_, sleep) = handlers.find(|(name, _)| name.as_str() == "sleep").unwrap();
            if !sleep.running.is_empty() {
                break sleep.running;
            }
        }
    };
    let running = timeout(Duration::from_secs(60), busy).await.expect("a renewed entry");
    assert_eq!(running.iter().map(|job| job.as_str()).collect::<Vec<_>>(), [JOB]);
    expect(&site.result(run).await, Outcome::Succeeded, None);
    executor.stop().await;
}

/// A stream and consumers that are made after the executor came are found.
pub async fn the_scheduler_may_come_later(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let stream = site.nats.names().dispatch_stream(&site.app);
    site.nats.js().delete_stream(stream).await.unwrap();
    site.topology.forget(&site.app);
    // In which it asks in vain.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let echo = Handler::new("echo").unwrap();
    site.topology.ensure_handler(&site.app, &echo).await.unwrap();
    expect(&site.outcome(&site.work("echo", json!(null))).await, Outcome::Succeeded, None);
    executor.stop().await;
}

/// Work that is pinned to the instance is taken from its own consumer, whatever the handler.
pub async fn pinned_work_is_taken(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let direct = format!("taskparty.direct.{}.{}", site.app, executor.instance);
    let config = pull::Config {
        durable_name: Some(format!("on_{}", executor.instance)),
        ack_policy: AckPolicy::Explicit,
        filter_subject: format!("{direct}.>"),
        ..Default::default()
    };
    let stream = site.nats.names().dispatch_stream(&site.app);
    site.nats.js().create_consumer_on_stream(config, stream).await.unwrap();
    for (handler, code) in [("echo", None), ("unheard-of", Some(Code::UnknownHandler))] {
        let work = site.work(handler, json!("pinned"));
        let run = work["run"].as_str().unwrap();
        let subject = format!("{direct}.{handler}.{run}.0.1");
        site.nats.js().publish(subject, work.to_string().into()).await.unwrap().await.unwrap();
        let result = site.result(run.parse().unwrap()).await;
        let outcome = if code.is_some() { Outcome::Failed } else { Outcome::Succeeded };
        expect(&result, outcome, code);
    }
    site.wait_until_done().await;
    executor.stop().await;
}

/// Only what runs longer than 100 ms is announced, once.
pub async fn only_what_lasts_is_announced(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    // The first one may be slow for reasons of its own.
    site.outcome(&site.work("sleep", json!({"ms": 1}))).await;
    let short = site.outcome(&site.work("sleep", json!({"ms": 1}))).await;
    let long = site.outcome(&site.work("sleep", json!({"ms": 700}))).await;
    let started = site.started(long.run, 1).await;
    assert_eq!((started.instance, started.shard), (executor.instance.clone(), 0));
    let tenth = chrono::TimeDelta::milliseconds(1);
    let differ = (started.started_at - long.started_at.unwrap()).abs();
    assert!(differ < tenth, "two times of one start, {differ} apart");
    assert_eq!(site.starts(long.run).await.len(), 1);
    let took = short.finished_at - short.started_at.unwrap();
    if took < chrono::TimeDelta::milliseconds(90) {
        assert!(site.starts(short.run).await.is_empty(), "it took {took} and was announced");
    }
    executor.stop().await;
}

/// As much runs at once as there are slots, and no more than that is ever taken.
pub async fn slots_bound_what_is_taken(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(site.run("sleep", json!({"ms": 600})).await);
    }
    let mut most = 0;
    while site.left().await > 0 {
        most = most.max(site.in_hand("sleep").await);
        pause().await;
    }
    assert_eq!(most, 2, "the handler has two slots");
    let mut at_once = 0;
    let mut all = Vec::new();
    for run in runs {
        all.push(site.result(run).await);
    }
    for one in &all {
        let begun = one.started_at.unwrap();
        let during =
            |other: &&ResultRecord| other.started_at.unwrap() <= begun && begun < other.finished_at;
        at_once = at_once.max(all.iter().filter(during).count());
    }
    assert_eq!(at_once, 2, "two run at once");
    executor.stop().await;
}

/// An executor says whether it knows priorities. One that does is told which there are, says that it looks
/// for them, and then takes what is most urgent first; one that does not takes what it always took.
pub async fn work_of_a_priority_is_taken_in_its_order_by_who_knows_priorities(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let key = format!("$KV.taskparty_executors.{}.{}", site.app, executor.instance);
    let sleep = Handler::new("sleep").unwrap();
    let lines = [0, 9].map(|number| Priority::new(number).unwrap());
    let known = async || {
        let (_, entry) = site.registry().await.remove(&key)?;
        entry.handlers.get(&sleep)?.priorities.clone()
    };
    let knows = known().await.is_some();
    let probe = format!("taskparty.probe.{}.{}", site.app, executor.instance);
    let said = json!({"handler": "sleep", "priorities": [0, 9]}).to_string();
    if knows {
        for line in lines {
            site.topology.ensure_priority(&site.app, &sleep, line).await.unwrap();
        }
        site.nats.client().publish(probe, said.into()).await.unwrap();
        until("the priorities", async || (known().await? == lines).then_some(())).await;
    } else {
        // It should not be told; it must bear it.
        site.nats.client().publish(probe, said.into()).await.unwrap();
    }
    let put = async |priority: Priority, ms: u64| {
        let work = site.work("sleep", json!({"ms": ms}));
        let run = work["run"].as_str().unwrap().parse().unwrap();
        // The scheduler sends it where all look for it.
        let line = if knows { priority } else { Priority::default() };
        let subject = site.nats.names().dispatch_by(&site.app, &sleep, line, (run, 0, 1));
        site.nats.js().publish(subject, work.to_string().into()).await.unwrap().await.unwrap();
        run
    };
    let [first, last] = lines;
    for _ in 0..2 {
        let run = put(Priority::default(), 1_500).await;
        site.started(run, 1).await;
    }
    let mut waiting = Vec::new();
    for priority in [last, Priority::default(), first, last, Priority::default(), first] {
        waiting.push((priority, put(priority, 300).await));
    }
    let mut begun = Vec::new();
    for (priority, run) in &waiting {
        let result = site.result(*run).await;
        expect(&result, Outcome::Succeeded, None);
        assert_eq!(result.delivery, 1, "it was taken without a slot");
        begun.push((result.started_at.unwrap(), *priority));
    }
    begun.sort_unstable();
    if knows {
        assert!(begun.iter().map(|(_, priority)| *priority).is_sorted(), "{begun:?}");
    }
    site.wait_until_done().await;
    executor.stop().await;
}

/// A result that cannot be stored is tried again, and the dispatch is acked only after it; the
/// ack is a request, so that its answer can be looked at.
pub async fn the_result_is_stored_before_the_ack(subject: &Subject) {
    let site = Site::start(subject).await;
    let executor = site.executor().await;
    let client = site.nats.client();
    let mut said = client.subscribe(format!("taskparty.result.{}", site.app)).await.unwrap();
    let mut acks = client.subscribe("$JS.ACK.>").await.unwrap();
    client.flush().await.unwrap();
    site.nats.js().delete_stream(site.nats.names().results_stream()).await.unwrap();
    let run = site.run("echo", json!(null)).await;
    for _ in 0..2 {
        next(&mut said).await;
    }
    assert_eq!(site.left().await, 1, "acked without a stored result");
    assert!(timeout(Duration::ZERO, acks.next()).await.is_err(), "acked without a stored result");
    site.topology.create_missing().await.unwrap();
    expect(&site.result(run).await, Outcome::Succeeded, None);
    let ack = next(&mut acks).await;
    assert_eq!((&ack.payload[..], ack.reply.is_some()), (&b"+ACK"[..], true));
    site.wait_until_done().await;
    executor.stop().await;
}

async fn next(messages: &mut Subscriber) -> async_nats::Message {
    timeout(Duration::from_secs(60), messages.next()).await.expect("a message").unwrap()
}
