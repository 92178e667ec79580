//! A real nats-server, schedulers on it, and what they recorded.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use taskparty_common::fire::Fired;
use taskparty_common::job::{Job, JobSpec, Paused, Unknown};
use taskparty_common::outcome::{SkipReason, TriggerResult};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::history::{Start, read};
use taskparty_nats::proxy::Proxy;
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::{Topology, TopologyConfig};
use taskparty_scheduler::{Node, NodeConfig, Role};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How long anything is waited for. Long: the machine may be busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Rig {
    pub(crate) server: Server,
    pub(crate) nats: Nats,
    pub(crate) buckets: Buckets,
    /// The clock of every scheduler that is started.
    pub(crate) clock: Clock,
}

/// A scheduler in this process.
pub(crate) struct Scheduler {
    pub(crate) node: Node,
    shutdown: CancellationToken,
}

impl Rig {
    pub(crate) async fn start() -> Self {
        let binary = find(&Search::from_env()).unwrap();
        let server = Server::start(ServerConfig::new(binary.path)).await.unwrap();
        let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
        let publisher = Publisher::start(nats.client()).await.unwrap();
        let buckets = Buckets::new(nats.clone(), publisher);
        Topology::new(nats.clone(), topology()).create_missing().await.unwrap();
        Self { server, nats, buckets, clock: Clock::system() }
    }

    /// A scheduler that takes part, with a connection of its own.
    pub(crate) async fn scheduler(&self) -> Scheduler {
        self.scheduler_with(self.clock.clone(), None).await
    }

    /// A scheduler that reaches the server through `proxy`.
    pub(crate) async fn scheduler_over(&self, proxy: &Proxy) -> Scheduler {
        start(proxy.url(), self.clock.clone(), None).await
    }

    /// A scheduler with a clock of its own.
    pub(crate) async fn scheduler_with(
        &self,
        clock: Clock,
        clock_tolerance: Option<Duration>,
    ) -> Scheduler {
        start(self.server.url(), clock, clock_tolerance).await
    }

    /// Saves a job as of now, and returns when it was saved.
    pub(crate) async fn save(&self, spec: Value) -> Job {
        let job = Job::new(checked(spec), self.clock.now(), "test");
        self.store(&job).await;
        job
    }

    /// Stores a job as it is; returns its revision.
    pub(crate) async fn store(&self, job: &Job) -> u64 {
        let value = serde_json::to_vec(&job.to_json()).unwrap();
        self.buckets.put(Bucket::Jobs, job.spec.id.as_str(), value, None).await.unwrap()
    }

    /// Pauses a job, as the API does; returns its revision.
    pub(crate) async fn pause(&self, job: &Job) -> (Job, u64) {
        let now = self.clock.now();
        let paused = Paused { at: now, by: "test".into(), reason: String::new(), until: None };
        let job = job.with_pause(Some(paused), now, "test");
        let revision = self.store(&job).await;
        (job, revision)
    }

    /// All fired records so far, in the order in which they were stored.
    pub(crate) async fn fired(&self) -> Vec<Fired> {
        let names = self.nats.names();
        let subjects = [names.fired_all()];
        let mut all = Vec::new();
        read(
            self.nats.js(),
            &names.results_stream(),
            &subjects,
            Start::First,
            PATIENCE,
            |record| {
                for line in record.payload.split(|byte| *byte == b'\n') {
                    all.push(serde_json::from_slice(line).unwrap());
                }
                ControlFlow::Continue(())
            },
        )
        .await
        .unwrap();
        all
    }

    /// Waits until the fired records are as `wanted`, and returns them.
    pub(crate) async fn fired_until(&self, wanted: impl Fn(&[Fired]) -> bool) -> Vec<Fired> {
        let end = Instant::now() + PATIENCE;
        loop {
            let fired = self.fired().await;
            if wanted(&fired) {
                return fired;
            }
            let shown: Vec<String> = fired.iter().rev().take(5).map(|f| f.lock.clone()).collect();
            assert!(Instant::now() < end, "{} records, the last of them {shown:?}", fired.len());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Waits until every live scheduler shows `revision` of the jobs.
    pub(crate) async fn seen(&self, revision: u64) {
        let end = Instant::now() + PATIENCE;
        loop {
            let live = self.buckets.entries(Bucket::Schedulers, ">").await.unwrap();
            let shown = |value: &[u8]| {
                serde_json::from_slice::<Value>(value).unwrap()["jobs_revision"].as_u64()
            };
            let all =
                live.iter().all(|entry| shown(entry.value.as_ref().unwrap()) >= Some(revision));
            if all && !live.is_empty() {
                return;
            }
            assert!(Instant::now() < end, "no scheduler shows revision {revision}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// The messages in a stream.
    pub(crate) async fn messages(&self, stream: &str) -> u64 {
        taskparty_nats::history::stream_info(self.nats.js(), stream).await.unwrap().messages
    }

    /// The locks that were taken, by key.
    pub(crate) async fn locks(&self) -> BTreeSet<String> {
        let locks = self.buckets.entries(Bucket::Fires, ">").await.unwrap();
        locks.into_iter().map(|entry| entry.key.to_string()).collect()
    }
}

async fn start(url: String, clock: Clock, clock_tolerance: Option<Duration>) -> Scheduler {
    let nats = connect(&ConnectConfig::new(url)).await.unwrap();
    let shutdown = CancellationToken::new();
    let config = NodeConfig {
        roles: BTreeSet::from([Role::Scheduler]),
        topology: topology(),
        store: String::new(),
        host: "test".into(),
        drain: Duration::from_secs(10),
        clock_tolerance,
    };
    let node = Node::start(config, nats, clock, shutdown.clone()).await.unwrap();
    Scheduler { node, shutdown }
}

impl Scheduler {
    /// Ends it as SIGTERM does.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.node.ended()).await.unwrap();
    }
}

fn topology() -> TopologyConfig {
    TopologyConfig { results_bytes: 64 << 20, ..TopologyConfig::default() }
}

pub(crate) fn checked(spec: Value) -> JobSpec {
    JobSpec::from_json(&spec, Unknown::Refuse).unwrap()
}

/// A job with `schedule`.
pub(crate) fn job(id: &str, schedule: Value) -> Value {
    json!({ "id": id, "app": "shop", "handler": "settle", "overlap": "allow", "schedule": schedule })
}

/// Each instant that `fired` accounts for, in order of time: of a record of several the first and
/// how many.
pub(crate) fn instants(fired: &[Fired]) -> Vec<(DateTime<Utc>, u64)> {
    let mut instants: Vec<_> = fired
        .iter()
        .map(|fired| match &fired.skipped {
            Some(skipped) => (skipped.first, skipped.count),
            None => (fired.fire_time, 1),
        })
        .collect();
    instants.sort_unstable();
    instants
}

/// What comes after each record of a job that is due each `period`, and what should: the record, the
/// instant that is accounted for next, and the one that should be.
fn followers(
    fired: &[Fired],
    period: TimeDelta,
) -> impl Iterator<Item = ((DateTime<Utc>, u64), DateTime<Utc>, DateTime<Utc>)> {
    let instants = instants(fired);
    (1..instants.len()).map(move |at| {
        let (first, count) = instants[at - 1];
        ((first, count), instants[at].0, first + period * i32::try_from(count).unwrap())
    })
}

/// Whether the instants of a job that is due each `period` are all accounted for, once.
pub(crate) fn is_complete(fired: &[Fired], period: TimeDelta) -> bool {
    followers(fired, period).all(|(_, found, next)| found == next)
}

/// Asserts that they are.
pub(crate) fn assert_complete(fired: &[Fired], period: TimeDelta) {
    for ((first, count), found, next) in followers(fired, period) {
        assert_eq!(found, next, "after {first} ({count})");
    }
}

pub(crate) fn ran(fired: &[Fired]) -> Vec<&Fired> {
    let ran =
        |fired: &&Fired| matches!(fired.result, TriggerResult::Dispatched | TriggerResult::Queued);
    fired.iter().filter(ran).collect()
}

pub(crate) fn skipped(fired: &[Fired], reason: SkipReason) -> u64 {
    fired
        .iter()
        .filter_map(|f| f.skipped.as_ref())
        .filter(|s| s.reason == reason)
        .map(|s| s.count)
        .sum()
}
