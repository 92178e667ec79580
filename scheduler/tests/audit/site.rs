//! A real nats-server with a node of all roles, and what a user does with it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};
use taskparty_common::fire::Fired;
use taskparty_common::job::{Job, JobSpec, Paused, Unknown};
use taskparty_common::outcome::RunState;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::history::{Start, read};
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::TopologyConfig;
use taskparty_scheduler::audit::AskRuns;
use taskparty_scheduler::store::{RunFilter, Store};
use taskparty_scheduler::{Node, NodeConfig, Role};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::shop::Shop;

/// How long anything is waited for. Long: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(90);

pub(crate) struct Site {
    pub(crate) nats: Nats,
    pub(crate) buckets: Buckets,
    node: Node,
    shutdown: CancellationToken,
    server: Server,
    dir: tempfile::TempDir,
    clock: Clock,
}

/// A job of the app `shop`.
pub(crate) fn spec(id: &str, handler: &str, schedule: Value) -> Value {
    let mut spec = json!({ "id": id, "app": "shop", "handler": handler, "overlap": "allow" });
    if !schedule.is_null() {
        spec["schedule"] = schedule;
    }
    spec
}

impl Site {
    pub(crate) async fn start() -> Self {
        let binary = find(&Search::from_env()).unwrap();
        let server = Server::start(ServerConfig::new(binary.path)).await.unwrap();
        let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let config = NodeConfig {
            roles: BTreeSet::from([Role::Scheduler, Role::LogWriter, Role::Api]),
            topology: TopologyConfig { results_bytes: 64 << 20, ..TopologyConfig::default() },
            store: format!("sqlite:{}", dir.path().join("history.db").display()),
            host: "test".into(),
            drain: Duration::from_secs(5),
            clock_tolerance: None,
        };
        let (clock, shutdown) = (Clock::system(), CancellationToken::new());
        let node =
            Node::start(config, nats.clone(), clock.clone(), shutdown.clone()).await.unwrap();
        let publisher = Publisher::start(nats.client()).await.unwrap();
        let buckets = Buckets::new(nats.clone(), publisher);
        Self { nats, buckets, node, shutdown, server, dir, clock }
    }

    /// Now, to the millisecond, as runs are counted.
    pub(crate) fn now(&self) -> DateTime<Utc> {
        self.clock.now().trunc_subsecs(3)
    }

    pub(crate) fn clock_ahead(&self, by: TimeDelta) -> Clock {
        let clock = Clock::system();
        clock.step(by);
        clock
    }

    pub(crate) fn store(&self) -> &Store {
        self.node.store().unwrap()
    }

    pub(crate) fn shop(&self, name: &str) -> Shop {
        Shop::start(&self.server.url(), self.dir.path().join(format!("{name}.ndjson")))
    }

    pub(crate) async fn save(&self, spec: Value) {
        self.save_as_of(spec, self.now()).await;
    }

    /// Saves a job whose past began at `since`: what was due since then was missed.
    pub(crate) async fn save_as_of(&self, spec: Value, since: DateTime<Utc>) {
        let spec = JobSpec::from_json(&spec, Unknown::Refuse).unwrap();
        self.put(&Job::new(spec, since, "test")).await;
    }

    async fn put(&self, job: &Job) {
        let value = serde_json::to_vec(&job.to_json()).unwrap();
        self.buckets.put(Bucket::Jobs, job.spec.id.as_str(), value, None).await.unwrap();
    }

    /// Jobs that are edited, paused and deleted while they fire.
    pub(crate) async fn edited(&self, from: DateTime<Utc>) {
        let job = |id: &str, schedule| {
            let spec = JobSpec::from_json(&spec(id, "well", schedule), Unknown::Refuse).unwrap();
            Job::new(spec, self.now(), "test")
        };
        let often = json!({ "fixed_rate": "500ms" });
        let [edited, paused, deleted] =
            ["edited", "paused", "deleted"].map(|id| job(id, often.clone()));
        for job in [&edited, &paused, &deleted] {
            self.put(job).await;
        }
        self.handled_up_to(from + TimeDelta::seconds(4)).await;
        let seldom = job("edited", json!({ "fixed_rate": "2s" })).spec;
        self.put(&edited.with_spec(seldom, self.now(), "test")).await;
        let now = self.now();
        let pause = Paused { at: now, by: "test".into(), reason: String::new(), until: None };
        let off = paused.with_pause(Some(pause), now, "test");
        self.put(&off).await;
        self.buckets.delete(Bucket::Jobs, "deleted").await.unwrap();
        self.handled_up_to(from + TimeDelta::seconds(10)).await;
        self.put(&off.with_pause(None, self.now(), "test")).await;
    }

    pub(crate) async fn trigger(&self, id: &str, key: &str) {
        let subject = self.nats.names().api("job", "trigger");
        let body = json!({ "id": id, "key": key }).to_string();
        let request = async_nats::Request::new().payload(body.into()).timeout(Some(PATIENCE));
        let answer = self.nats.client().send_request(subject, request).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!(answer["created"], true, "{answer}");
    }

    pub(crate) async fn executors_are_live(&self, count: usize) {
        until("the executors", async || {
            let live = self.buckets.entries(Bucket::Executors, ">").await.unwrap();
            (live.len() == count).then_some(())
        })
        .await;
    }

    /// Waits until everything that is due before `at` is handled.
    pub(crate) async fn handled_up_to(&self, at: DateTime<Utc>) {
        until("the watermark", async || {
            let marks = self.buckets.entries(Bucket::Cursors, "scheduler.*").await.unwrap();
            let mark = serde_json::from_slice::<Value>(marks.first()?.value.as_deref()?).unwrap();
            let handled: DateTime<Utc> = serde_json::from_value(mark["handled"].clone()).unwrap();
            (handled > at + TimeDelta::seconds(1)).then_some(())
        })
        .await;
    }

    /// Waits until history has every run that was fired in the period, each at its end.
    pub(crate) async fn all_ended(&self, from: DateTime<Utc>, to: DateTime<Utc>) {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut open: BTreeMap<Uuid, String> = BTreeMap::new();
            for (_, fired) in self.fired(from, to).await {
                open.insert(fired.run, format!("{}, not in history", fired.lock));
            }
            let mut ask = AskRuns { from, to, after: None };
            loop {
                let page = self.store().audited(&ask).await.unwrap();
                for row in page.items {
                    match row.state.is_terminal() {
                        true => open.remove(&row.run),
                        false => open.insert(row.run, format!("{row:?}")),
                    };
                }
                ask.after = page.next;
                if ask.after.is_none() {
                    break;
                }
            }
            if open.is_empty() {
                return;
            }
            let first = open.values().next();
            assert!(Instant::now() < end, "{} runs have not ended: {first:?}", open.len());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn runs_in(&self, state: RunState, count: usize) {
        until("the runs", async || {
            let filter = RunFilter { states: vec![state], ..RunFilter::default() };
            (self.store().runs(&filter).await.unwrap().items.len() == count).then_some(())
        })
        .await;
    }

    /// The fired records of the runs of a period, with the sequences of their messages.
    pub(crate) async fn fired(&self, from: DateTime<Utc>, to: DateTime<Utc>) -> Vec<(u64, Fired)> {
        let names = self.nats.names();
        let mut all = Vec::new();
        let subjects = [names.fired_all()];
        let stream = names.results_stream();
        read(self.nats.js(), &stream, &subjects, Start::First, PATIENCE, |record| {
            for line in record.payload.split(|byte| *byte == b'\n') {
                let fired: Fired = serde_json::from_slice(line).unwrap();
                if from <= fired.fire_time && fired.fire_time < to {
                    all.push((record.seq, fired));
                }
            }
            ControlFlow::Continue(())
        })
        .await
        .unwrap();
        all
    }

    /// A copy of history without `run`.
    pub(crate) async fn copy_of_history(&self, run: Uuid) -> PathBuf {
        let path = self.dir.path().join("copy.db");
        let open = |path: &std::path::Path| SqliteConnectOptions::new().filename(path);
        let mut history = open(self.store().path()).connect().await.unwrap();
        let target = path.display().to_string();
        sqlx::query("VACUUM INTO ?").bind(target).execute(&mut history).await.unwrap();
        history.close().await.unwrap();
        let mut copy = open(&path).connect().await.unwrap();
        for sql in ["DELETE FROM attempts WHERE run = ?", "DELETE FROM runs WHERE id = ?"] {
            sqlx::query(sql).bind(run.as_bytes().to_vec()).execute(&mut copy).await.unwrap();
        }
        copy.close().await.unwrap();
        path
    }

    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.node.ended()).await.unwrap();
    }
}

/// Waits until `look` finds something.
async fn until<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
