//! A real nats-server with the streams of one app, and what a scheduler and a log writer would do.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use futures::StreamExt;
use serde_json::{Value, json};
use taskparty_common::dispatch::{ExecutorEntry, ResultRecord};
use taskparty_common::name::{App, Handler, Instance};
use taskparty_common::outcome::Outcome;
use taskparty_common::priority::Priority;
use taskparty_executor::{ConnectConfig, Executor, Nats, RunError};
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::{Bucket, of_priority};
use taskparty_nats::topology::{Topology, TopologyConfig};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// How long anything is waited for. Long: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// The lease of tests that do not say otherwise.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) nats: Nats,
    pub(crate) app: App,
    topology: Topology,
    lease: Duration,
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::with_lease(LEASE).await
    }

    /// A server whose consumers have this ack-wait.
    pub(crate) async fn with_lease(lease: Duration) -> Self {
        let binary = find(&Search::from_env()).unwrap();
        let server = Server::start(ServerConfig::new(binary.path)).await.unwrap();
        let nats = taskparty_executor::connect(&ConnectConfig::new(server.url())).await.unwrap();
        let config = TopologyConfig { lease, results_bytes: 64 << 20, ..TopologyConfig::default() };
        let topology = Topology::new(nats.clone(), config);
        topology.create_missing().await.unwrap();
        Self { server, nats, app: App::new("shop").unwrap(), topology, lease }
    }

    /// Makes the app's stream and the handler's consumer, as the scheduler does.
    pub(crate) async fn make_consumer(&self, handler: &str) {
        let handler = Handler::new(handler).unwrap();
        self.topology.ensure_handler(&self.app, &handler).await.unwrap();
    }

    /// Makes the consumer of an instance's own work, as the scheduler does when it sees its entry.
    pub(crate) async fn make_consumer_of(&self, instance: &Instance) {
        self.topology.ensure_instance(&self.app, instance).await.unwrap();
    }

    /// Makes the consumer of a handler's work of a priority, as the scheduler does.
    pub(crate) async fn make_line(&self, handler: &str, priority: u32) {
        let (handler, priority) =
            (Handler::new(handler).unwrap(), Priority::new(priority).unwrap());
        self.topology.ensure_priority(&self.app, &handler, priority).await.unwrap();
    }

    /// Dispatches new work of a priority.
    pub(crate) async fn put_in_line(&self, handler: &str, priority: u32) -> Uuid {
        let work = self.work(handler, json!(null));
        let run: Uuid = work["run"].as_str().unwrap().parse().unwrap();
        let (handler, priority) =
            (Handler::new(handler).unwrap(), Priority::new(priority).unwrap());
        let names = self.nats.names();
        let subject = names.dispatch_by(&self.app, &handler, priority, (run, 0, 1));
        self.nats.js().publish(subject, work.to_string().into()).await.unwrap().await.unwrap();
        run
    }

    /// How many messages of a handler's work of these priorities are in somebody's hands.
    pub(crate) async fn in_hand(&self, handler: &str, priorities: &[u32]) -> usize {
        let (stream, handler) =
            (self.nats.names().dispatch_stream(&self.app), Handler::new(handler).unwrap());
        let stream = self.nats.js().get_stream(stream).await.unwrap();
        let mut all = 0;
        for priority in priorities {
            let consumer = of_priority(&handler, Priority::new(*priority).unwrap());
            all += stream.consumer_info(consumer).await.unwrap().num_ack_pending;
        }
        all
    }

    /// Dispatches new work that is for `instance` alone.
    pub(crate) async fn pin(&self, instance: &Instance, handler: &str, params: Value) -> Uuid {
        let work = self.work(handler, params);
        let run: Uuid = work["run"].as_str().unwrap().parse().unwrap();
        let handler = Handler::new(handler).unwrap();
        let subject = self.nats.names().direct(&self.app, instance, &handler, run, 0, 1);
        self.nats.js().publish(subject, work.to_string().into()).await.unwrap().await.unwrap();
        run
    }

    /// An executor of the app on this server, without handlers.
    pub(crate) fn executor(&self) -> Executor {
        self.executor_at(&self.server.url())
    }

    pub(crate) fn executor_at(&self, url: &str) -> Executor {
        Executor::builder(self.app.clone()).connect(ConnectConfig::new(url))
    }

    /// A dispatch for `handler`, as a scheduler would make it.
    pub(crate) fn work(&self, handler: &str, params: Value) -> Value {
        let now = taskparty_nats::clock::Clock::system().now();
        let run = Uuid::now_v7();
        json!({
            "v": 1, "run": run, "job": "a-job", "app": self.app, "handler": handler,
            "params": params, "shard": {"index": 0, "total": 1}, "attempt": 1,
            "trigger": "schedule", "fire_time": now, "timezone": "UTC", "dispatched_at": now,
            "start_by": now + chrono::TimeDelta::hours(1), "timeout_ms": null,
            "lease_ms": self.lease.as_millis() as u64, "max_deliveries": 3,
            "idempotency_key": format!("{run}/0"),
        })
    }

    /// Dispatches `work` to its handler and returns the run.
    pub(crate) async fn dispatch(&self, work: &Value) -> Uuid {
        let handler = Handler::new(work["handler"].as_str().unwrap()).unwrap();
        let run = work["run"].as_str().unwrap().parse().unwrap();
        self.put(&handler, run, work.to_string()).await;
        run
    }

    pub(crate) async fn run(&self, handler: &str, params: Value) -> Uuid {
        self.dispatch(&self.work(handler, params)).await
    }

    pub(crate) async fn put(&self, handler: &Handler, run: Uuid, body: impl Into<String>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let attempt = NEXT.fetch_add(1, Ordering::Relaxed) as u32;
        let subject = self.nats.names().dispatch(&self.app, handler, run, 0, attempt);
        self.nats.js().publish(subject, body.into().into()).await.unwrap().await.unwrap();
    }

    /// Everything that was recorded on `taskparty.<kind>.<app>` so far.
    pub(crate) async fn records(&self, kind: &str) -> Vec<Value> {
        let filter = format!("taskparty.{kind}.{}", self.app);
        let stored = self.stored(self.nats.names().results_stream(), filter).await;
        let lines = |message: &async_nats::Message| {
            let text = String::from_utf8(message.payload.to_vec()).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        };
        stored.iter().flat_map(lines).collect()
    }

    /// Every message of `stream` under `filter`.
    pub(crate) async fn stored(&self, stream: String, filter: String) -> Vec<async_nats::Message> {
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

    /// The results of `run`.
    pub(crate) async fn results(&self, run: Uuid) -> Vec<ResultRecord> {
        let records = self.records("result").await;
        let records = records.into_iter().map(|record| serde_json::from_value(record).unwrap());
        records.filter(|record: &ResultRecord| record.run == run).collect()
    }

    /// Waits for the first result of `run`.
    pub(crate) async fn result(&self, run: Uuid) -> ResultRecord {
        until("a result", async || self.results(run).await.into_iter().next()).await
    }

    /// Runs `work` to its end and checks that nothing of it is left in the stream.
    pub(crate) async fn outcome(&self, work: &Value) -> ResultRecord {
        let run = self.dispatch(work).await;
        let result = self.result(run).await;
        self.wait_until_idle().await;
        result
    }

    /// How many dispatches are in the stream: not done.
    pub(crate) async fn left(&self) -> u64 {
        let name = self.nats.names().dispatch_stream(&self.app);
        let stream = self.nats.js().get_stream(name).await.unwrap();
        stream.cached_info().state.messages
    }

    pub(crate) async fn wait_until_idle(&self) {
        until("an empty stream", async || (self.left().await == 0).then_some(())).await;
    }

    /// The registry's entries now.
    pub(crate) async fn registered(&self) -> Vec<ExecutorEntry> {
        let bucket = self.nats.names().bucket(Bucket::Executors);
        let stream = format!("KV_{bucket}");
        let mut entries = std::collections::BTreeMap::new();
        for message in self.stored(stream, format!("$KV.{bucket}.>")).await {
            let entry = serde_json::from_slice::<ExecutorEntry>(&message.payload).ok();
            entries.insert(message.subject.to_string(), entry);
        }
        entries.into_values().flatten().collect()
    }
}

/// Waits until `look` finds something, for as long as the patience lasts.
pub(crate) async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(40)).await;
    }
}

/// Waits for `event`, for as long as the patience lasts.
pub(crate) async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}

/// An executor that runs in a task of the test.
pub(crate) struct Started {
    stop: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Started {
    pub(crate) fn run(executor: Executor) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(executor.run(stop.clone().cancelled_owned()));
        Self { stop, task }
    }

    /// Asks for the end without waiting for it.
    pub(crate) fn shut_down(&self) {
        self.stop.cancel();
    }

    /// Waits for the end, which must be a good one.
    pub(crate) async fn ended(self) {
        within("the executor's end", self.task).await.unwrap().unwrap();
    }

    pub(crate) async fn stop(self) {
        self.shut_down();
        self.ended().await;
    }

    /// Drops the executor where it stands, as a crash would.
    pub(crate) async fn crash(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// A value that says when it is dropped: put into a handler, it says that the handler's future is.
pub(crate) struct Dropped(pub(crate) CancellationToken);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

pub(crate) fn assert_outcome(record: &ResultRecord, outcome: Outcome, code: &str) {
    let found = record.code.map_or("", |code| code.as_str());
    assert_eq!((record.outcome, found), (outcome, code), "{record:?}");
}

pub(crate) fn instance(name: &str) -> Instance {
    Instance::new(name).unwrap()
}
