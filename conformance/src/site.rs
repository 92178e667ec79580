//! A real nats-server with all of TaskParty's streams, and what a scheduler and a log writer do
//! there: make consumers of what registers, dispatch, read what comes back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, Info, pull};
use futures::StreamExt;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use taskparty_common::dispatch::{Dispatch, ExecutorEntry, ResultRecord, Started};
use taskparty_common::name::{App, Handler, Instance};
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::{Topology, TopologyConfig};
use tokio::time::Instant;
use uuid::Uuid;

use crate::process::{Process, Starting};
use crate::subject::Subject;

/// How long anything is waited for. Long: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The drain time of an executor for which the case does not say another.
const DRAIN: Duration = Duration::from_secs(20);

/// The job of all runs.
pub const JOB: &str = "a-job";

/// One case's own server.
#[derive(Debug)]
pub struct Site {
    /// The server.
    pub server: Server,
    /// The driver's own connection.
    pub nats: Nats,
    /// The streams and consumers.
    pub topology: Topology,
    /// The app of which the subject is an executor.
    pub app: App,
    lease: Duration,
    subject: Subject,
}

impl Site {
    /// A server whose leases are so long that no case sees one end.
    pub async fn start(subject: &Subject) -> Self {
        Self::with_lease(subject, 5 * PATIENCE).await
    }

    /// A server whose consumers have this ack-wait.
    pub async fn with_lease(subject: &Subject, lease: Duration) -> Self {
        let binary = find(&Search::from_env()).unwrap();
        let server = Server::start(ServerConfig::new(binary.path)).await.unwrap();
        let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
        let config = TopologyConfig { lease, results_bytes: 64 << 20, ..TopologyConfig::default() };
        let topology = Topology::new(nats.clone(), config);
        topology.create_missing().await.unwrap();
        let app = App::new("shop").unwrap();
        Self { server, nats, topology, app, lease, subject: subject.clone() }
    }

    /// Starts an executor, waits until it has registered, and makes the consumers of its handlers.
    pub async fn executor(&self) -> Process {
        self.executor_with(DRAIN).await
    }

    /// The same, with a drain time.
    pub async fn executor_with(&self, drain: Duration) -> Process {
        let before = self.registered().await;
        let url = self.server.url();
        let mut starting = Starting::start(&self.subject, &url, self.app.as_str(), drain);
        let known = |instance: &Instance| before.iter().any(|entry| entry.instance == *instance);
        let end = Instant::now() + PATIENCE;
        let entry = loop {
            starting.check();
            let entries = self.registered().await;
            if let Some(entry) = entries.into_iter().find(|entry| !known(&entry.instance)) {
                break entry;
            }
            assert!(Instant::now() < end, "the executor did not register");
            pause().await;
        };
        for handler in entry.handlers.keys() {
            self.topology.ensure_handler(&self.app, handler).await.unwrap();
        }
        starting.registered(entry.instance)
    }

    /// A dispatch as a scheduler makes it, with a field that nobody has heard of.
    pub fn work(&self, handler: &str, params: Value) -> Value {
        let now = taskparty_nats::clock::Clock::system().now();
        let run = Uuid::now_v7();
        json!({
            "v": 1, "run": run, "job": JOB, "app": self.app, "handler": handler, "params": params,
            "shard": {"index": 0, "total": 1, "colour": "red"}, "attempt": 1, "trigger": "schedule",
            "fire_time": now, "timezone": "UTC", "dispatched_at": now,
            "start_by": now + chrono::TimeDelta::hours(1), "timeout_ms": null,
            "lease_ms": self.lease.as_millis() as u64, "max_deliveries": 3,
            "idempotency_key": format!("{run}/0"), "a_later_field": {"of": ["a newer", "scheduler"]},
        })
    }

    /// Puts `work` into the stream and returns its run.
    pub async fn dispatch(&self, work: &Value) -> Uuid {
        let dispatch: Dispatch = serde_json::from_value(work.clone()).unwrap();
        self.put(&dispatch.handler, dispatch.run, work.to_string()).await;
        dispatch.run
    }

    /// Dispatches new work.
    pub async fn run(&self, handler: &str, params: Value) -> Uuid {
        self.dispatch(&self.work(handler, params)).await
    }

    /// Puts `body` where `handler` looks for work.
    pub async fn put(&self, handler: &Handler, run: Uuid, body: String) {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let attempt = NEXT.fetch_add(1, Ordering::Relaxed);
        let subject = self.nats.names().dispatch(&self.app, handler, run, 0, attempt);
        self.nats.js().publish(subject, body.into()).await.unwrap().await.unwrap();
    }

    /// Dispatches `work`, waits for its result and until nothing of it is left.
    pub async fn outcome(&self, work: &Value) -> ResultRecord {
        let run = self.dispatch(work).await;
        let result = self.result(run).await;
        self.wait_until_done().await;
        assert_eq!(self.results(run).await.len(), 1, "more than one result");
        result
    }

    /// Waits for the first result of `run`.
    pub async fn result(&self, run: Uuid) -> ResultRecord {
        until("a result", async || self.results(run).await.into_iter().next()).await
    }

    /// The results of `run` so far.
    pub async fn results(&self, run: Uuid) -> Vec<ResultRecord> {
        let all: Vec<ResultRecord> = self.records("result").await;
        all.into_iter().filter(|result| result.run == run).collect()
    }

    /// What was said of the start of `run` so far.
    pub async fn starts(&self, run: Uuid) -> Vec<Started> {
        let all: Vec<Started> = self.records("started").await;
        all.into_iter().filter(|started| started.run == run).collect()
    }

    /// Waits until `run` has been announced by its `delivery`th holder.
    pub async fn started(&self, run: Uuid, delivery: u64) -> Started {
        let found = async || self.starts(run).await.into_iter().find(|s| s.delivery == delivery);
        until("the start of a run", found).await
    }

    /// Everything on `taskparty.<kind>.<app>`.
    async fn records<T: DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let filter = format!("taskparty.{kind}.{}", self.app);
        let mut records = Vec::new();
        for message in self.stored(self.nats.names().results_stream(), filter).await {
            let text = std::str::from_utf8(&message.payload).unwrap();
            for line in text.lines() {
                let read = serde_json::from_str(line);
                records.push(read.unwrap_or_else(|error| panic!("{error} in a {kind}: {line}")));
            }
        }
        records
    }

    /// Every message of `stream` under `filter`.
    pub async fn stored(&self, stream: String, filter: String) -> Vec<async_nats::Message> {
        let config = pull::Config {
            ack_policy: AckPolicy::None,
            filter_subject: filter,
            memory_storage: true,
            ..Default::default()
        };
        let consumer = self.nats.js().create_consumer_on_stream(config, stream).await.unwrap();
        let mut batch = consumer.fetch().max_messages(10_000).messages().await.unwrap();
        let mut messages = Vec::new();
        while let Some(message) = batch.next().await {
            messages.push(message.unwrap().message);
        }
        messages
    }

    /// How many dispatches are in the stream: not done.
    pub async fn left(&self) -> u64 {
        let name = self.nats.names().dispatch_stream(&self.app);
        self.nats.js().get_stream(name).await.unwrap().cached_info().state.messages
    }

    /// Waits until every dispatch is acked.
    pub async fn wait_until_done(&self) {
        until("an empty stream", async || (self.left().await == 0).then_some(())).await;
    }

    /// How many messages of `handler` are in somebody's hands.
    pub async fn in_hand(&self, handler: &str) -> usize {
        self.consumer(handler).await.num_ack_pending
    }

    /// How often a message of `handler` was handed to somebody.
    pub async fn deliveries(&self, handler: &str) -> u64 {
        self.consumer(handler).await.delivered.consumer_sequence
    }

    async fn consumer(&self, handler: &str) -> Info {
        let stream = self.nats.names().dispatch_stream(&self.app);
        let stream = self.nats.js().get_stream(stream).await.unwrap();
        stream.consumer_info(handler).await.unwrap()
    }

    /// The registry: the live executors, each with the revision of its entry.
    pub async fn registry(&self) -> BTreeMap<String, (u64, ExecutorEntry)> {
        let bucket = self.nats.names().bucket(Bucket::Executors);
        let stored = self.stored(format!("KV_{bucket}"), format!("$KV.{bucket}.>")).await;
        let mut entries = BTreeMap::new();
        let gone = |message: &async_nats::Message| {
            let Some(headers) = &message.headers else { return false };
            let operation = headers.get("KV-Operation").map(|operation| operation.as_str());
            operation == Some("DEL") || headers.get("Nats-Marker-Reason").is_some()
        };
        for message in stored.into_iter().filter(|message| !gone(message)) {
            let entry: ExecutorEntry = serde_json::from_slice(&message.payload).unwrap();
            let delivery = taskparty_nats::lease::Delivery::of(&message).unwrap();
            entries.insert(message.subject.to_string(), (delivery.stream_seq, entry));
        }
        entries
    }

    /// The live executors.
    pub async fn registered(&self) -> Vec<ExecutorEntry> {
        self.registry().await.into_values().map(|(_, entry)| entry).collect()
    }
}

/// Waits until `look` finds something, for as long as the patience lasts.
pub async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        pause().await;
    }
}

/// A moment between two looks.
pub async fn pause() {
    tokio::time::sleep(Duration::from_millis(40)).await;
}
