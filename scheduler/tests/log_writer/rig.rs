//! A real server, a real file, and hands that play scheduler and executor.

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta};
use serde_json::{Value, json};
use taskparty_common::dispatch::{Alert, ResultRecord, Shard, Started};
use taskparty_common::fire::{FireId, Fired, Plan, TriggerRequest};
use taskparty_common::name::{App, Handler, Instance, JobId, Prefix};
use taskparty_common::outcome::{Code, Outcome, RunState, Trigger, TriggerResult};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::consume::{Pull, PullConfig};
use taskparty_nats::history;
use taskparty_nats::lease;
use taskparty_nats::publish::{Draft, Publisher};
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::{Bucket, SCHEDULERS};
use taskparty_nats::topology::{Topology, TopologyConfig};
use taskparty_scheduler::log_writer::{
    Chain, LogWriter, LogWriterConfig, LogWriterError, StatusHandle,
};
use taskparty_scheduler::registry::Registry;
use taskparty_scheduler::store::{RunDetail, Store};
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

/// The lease in these tests.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// How long anything may take to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Rig {
    pub(crate) nats: Nats,
    pub(crate) publisher: Publisher,
    pub(crate) buckets: Buckets,
    pub(crate) topology: Topology,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) server: Server,
    pub(crate) dir: TempDir,
    shutdown: CancellationToken,
}

/// A log writer that runs.
pub(crate) struct Running {
    pub(crate) store: Store,
    pub(crate) status: StatusHandle,
    pub(crate) stop: CancellationToken,
    pub(crate) task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap();
        self.store.close().await;
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.shutdown.cancel();
    }
}

impl Rig {
    pub(crate) async fn start() -> Self {
        let binary = find(&Search::from_env()).unwrap();
        let server = Server::start(ServerConfig::new(binary.path)).await.unwrap();
        let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
        let topology = Topology::new(
            nats.clone(),
            TopologyConfig { lease: LEASE, results_bytes: 64 << 20, ..TopologyConfig::default() },
        );
        topology.create_missing().await.unwrap();
        topology.ensure_handler(&app(), &handler()).await.unwrap();
        let publisher = Publisher::start(nats.client()).await.unwrap();
        let buckets = Buckets::new(nats.clone(), publisher.clone());
        let (registry, shutdown) = (Registry::default(), CancellationToken::new());
        tokio::spawn(registry.clone().run(buckets.clone(), shutdown.clone()));
        registry.ready().await;
        Self {
            nats,
            publisher,
            buckets,
            topology,
            registry,
            clock: Clock::system(),
            server,
            dir: tempfile::tempdir().unwrap(),
            shutdown,
        }
    }

    pub(crate) fn url(&self, file: &str) -> String {
        format!("sqlite:{}", self.dir.path().join(file).display())
    }

    pub(crate) async fn log_writer(&self) -> Running {
        self.log_writer_on("history.db", Vec::new()).await.unwrap()
    }

    pub(crate) async fn log_writer_on(
        &self,
        file: &str,
        chains: Vec<Chain>,
    ) -> Result<Running, LogWriterError> {
        self.log_writer_with(file, chains, |_| {}).await
    }

    pub(crate) async fn log_writer_with(
        &self,
        file: &str,
        chains: Vec<Chain>,
        adjust: impl FnOnce(&mut LogWriterConfig),
    ) -> Result<Running, LogWriterError> {
        let store = Store::open(&self.url(file)).await.unwrap();
        let instance = Instance::fresh("test", Uuid::new_v4());
        let mut config = LogWriterConfig {
            sweep_every: Duration::from_millis(100),
            chain_grace: Duration::from_secs(1),
            ..LogWriterConfig::new(instance, LEASE)
        };
        adjust(&mut config);
        let log_writer = LogWriter::new(
            config,
            self.buckets.clone(),
            store.clone(),
            self.registry.clone(),
            self.clock.clone(),
            Arc::new(move || chains.clone()),
        )
        .await?;
        let (stop, status) = (CancellationToken::new(), log_writer.status());
        let task = tokio::spawn(log_writer.run(stop.clone()));
        Ok(Running { store, status, stop, task })
    }

    pub(crate) async fn publish(&self, subject: &str, value: &impl serde::Serialize) {
        let body = serde_json::to_vec(value).unwrap();
        self.publisher.publish(Draft::new(subject, body)).await.unwrap();
    }

    pub(crate) async fn fire(&self, fired: &Fired) {
        self.publish(&self.nats.names().fired(&fired.app), fired).await;
    }

    pub(crate) async fn end(&self, result: &ResultRecord) {
        self.publish(&self.nats.names().result(&app()), result).await;
    }

    pub(crate) async fn begin(&self, started: &Started) {
        self.publish(&self.nats.names().started(&app()), started).await;
    }

    /// Puts an attempt's dispatch in its stream.
    pub(crate) async fn dispatch(&self, fired: &Fired) {
        for shard in fired.plan.shards() {
            let subject = self.nats.names().dispatch(
                &app(),
                &handler(),
                fired.run,
                shard,
                fired.plan.attempt,
            );
            self.publisher.publish(Draft::new(subject, "{}")).await.unwrap();
        }
    }

    /// Registers an executor of the handler.
    pub(crate) async fn register(&self, instance: &str) {
        let key = format!("{}.{instance}", app());
        let entry = json!({
            "v": 1, "app": app(), "instance": instance, "started_at": self.clock.now(),
            "handlers": { handler().as_str(): { "slots": 4 } },
        });
        let body = entry.to_string();
        self.buckets.put(Bucket::Executors, &key, body, None).await.unwrap();
        until("the executor is registered", || async {
            self.registry.has(&app(), &handler()).then_some(())
        })
        .await;
    }

    /// The triggers that come in `time`, acked.
    pub(crate) fn triggers(&self) -> Pull {
        let stream = self.nats.names().triggers_stream();
        Pull::new(self.nats.js(), stream, SCHEDULERS, PullConfig::default())
    }

    /// The next trigger, acked.
    pub(crate) async fn trigger(&self, pull: &mut Pull) -> TriggerRequest {
        let next = tokio::time::timeout(PATIENCE, pull.next(1)).await;
        let received = next.expect("a trigger comes").unwrap();
        lease::ack(&self.publisher, &received.delivery, PATIENCE).await.unwrap();
        serde_json::from_slice(&received.message.payload).unwrap()
    }

    /// Every alert so far.
    pub(crate) async fn alerts(&self) -> Vec<Alert> {
        let stream = self.nats.names().alerts_stream();
        let mut alerts = Vec::new();
        let info = history::stream_info(self.nats.js(), &stream).await.unwrap();
        for seq in info.first_seq.max(1)..=info.last_seq {
            let record = history::message(self.nats.js(), &stream, seq).await.unwrap().unwrap();
            alerts.push(serde_json::from_slice(&record.payload).unwrap());
        }
        alerts
    }

    /// How many messages a stream holds.
    pub(crate) async fn messages(&self, stream: &str) -> u64 {
        history::stream_info(self.nats.js(), stream).await.unwrap().messages
    }

    /// How many results are not acked yet.
    pub(crate) async fn unprocessed(&self) -> u64 {
        let stream = self.nats.names().results_stream();
        let info =
            history::consumer_info(self.nats.js(), &stream, "log-writer").await.unwrap().unwrap();
        info.pending + info.ack_pending
    }

    /// Waits until a writer has taken a result and not acked it.
    pub(crate) async fn taken(&self) {
        let stream = self.nats.names().results_stream();
        until("a result is taken", || async {
            let info = history::consumer_info(self.nats.js(), &stream, "log-writer").await;
            (info.unwrap().unwrap().ack_pending > 0).then_some(())
        })
        .await;
    }

    pub(crate) async fn all_processed(&self) {
        until("every result is processed", || async {
            (self.unprocessed().await == 0).then_some(())
        })
        .await;
    }

    /// A fired record of a new run.
    pub(crate) fn fired(&self, n: u32, spec: Value) -> Fired {
        let fire_time = self.clock.now();
        let id = FireId::trigger(job(), format!("{n}"));
        Fired {
            v: 1,
            lock: id.lock_key(),
            run: id.run(&Prefix::default(), 0, fire_time),
            job: job(),
            app: app(),
            handler: handler(),
            revision: 1,
            since: DateTime::UNIX_EPOCH,
            owner: Instance::new("scheduler").unwrap(),
            trigger: Trigger::Schedule,
            result: TriggerResult::Dispatched,
            message: String::new(),
            fire_time,
            fired_at: fire_time,
            start_by: Some(fire_time + TimeDelta::hours(1)),
            plan: Plan::whole(1),
            skipped: None,
            definition: serde_json::value::to_raw_value(&spec).unwrap(),
            params: None,
        }
    }
}

/// A definition with `more`.
pub(crate) fn spec(more: Value) -> Value {
    let mut spec = json!({
        "id": job(), "app": app(), "handler": handler(), "overlap": "allow",
        "schedule": { "cron": "0 0 2 * * ?" },
    });
    for (name, value) in more.as_object().unwrap() {
        spec[name] = value.clone();
    }
    spec
}

/// The fired record of a retry.
pub(crate) fn fired_again(first: &Fired, trigger: &TriggerRequest) -> Fired {
    let retry = trigger.retry.clone().unwrap();
    Fired {
        lock: format!("{}.x.{}", first.job, trigger.id),
        trigger: Trigger::Retry,
        plan: retry.plan,
        definition: retry.definition,
        ..first.clone()
    }
}

pub(crate) fn result(fired: &Fired, outcome: Outcome) -> ResultRecord {
    ResultRecord {
        v: 1,
        run: fired.run,
        job: fired.job.clone(),
        shard: Shard { index: fired.plan.only.unwrap_or(0), total: fired.plan.total, param: None },
        attempt: fired.plan.attempt,
        delivery: 1,
        instance: Instance::new("executor-1").unwrap(),
        outcome,
        code: (outcome == Outcome::Failed).then_some(Code::HandlerError),
        message: if outcome == Outcome::Failed { "no money left".into() } else { String::new() },
        output: None,
        truncated: false,
        retryable: true,
        fire_time: fired.fire_time,
        started_at: Some(fired.fired_at),
        finished_at: fired.fired_at + TimeDelta::milliseconds(5),
    }
}

pub(crate) fn started(fired: &Fired) -> Started {
    Started {
        v: 1,
        run: fired.run,
        job: fired.job.clone(),
        shard: 0,
        attempt: fired.plan.attempt,
        delivery: 1,
        instance: Instance::new("executor-1").unwrap(),
        started_at: fired.fired_at,
    }
}

pub(crate) fn job() -> JobId {
    JobId::new("settle").unwrap()
}

pub(crate) fn app() -> App {
    App::new("orders").unwrap()
}

pub(crate) fn handler() -> Handler {
    Handler::new("daily").unwrap()
}

/// Waits until `look` finds something.
pub(crate) async fn until<T, F: Future<Output = Option<T>>>(what: &str, look: impl Fn() -> F) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "{what}: not in time");
        sleep(Duration::from_millis(20)).await;
    }
}

/// Waits until a run is in this state.
pub(crate) async fn in_state(store: &Store, run: Uuid, state: RunState) -> RunDetail {
    until(&format!("the run is {state}"), || async {
        store.run(run).await.unwrap().filter(|detail| detail.run.state == state)
    })
    .await
}
