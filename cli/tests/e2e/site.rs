//! An installation of one test: a nats-server, a folder with the history, and the binary.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_nats::Request;
use serde_json::{Value, json};
use taskparty_common::outcome::RunState;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::Server;
use taskparty_scheduler::store::Store;
use tokio::sync::OnceCell;
use tokio::time::Instant;

use crate::process::Process;
use crate::support::{Desk, Ran, server_config};

/// How long anything is waited for. Long: the machine may be busy, and a lease takes 30 s.
const PATIENCE: Duration = Duration::from_secs(100);

pub(crate) struct Site {
    pub(crate) desk: Desk,
    pub(crate) nats: Nats,
    pub(crate) buckets: Buckets,
    pub(crate) server: Server,
    store: OnceCell<Store>,
    started: AtomicU64,
}

impl Site {
    /// A nats-server with nothing on it.
    pub(crate) async fn start() -> Self {
        let server = Server::start(server_config()).await.unwrap();
        let desk = Desk::with_url(server.url());
        let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
        let publisher = Publisher::start(nats.client()).await.unwrap();
        let buckets = Buckets::new(nats.clone(), publisher);
        let (store, started) = (OnceCell::new(), AtomicU64::new(0));
        Self { desk, nats, buckets, server, store, started }
    }

    /// A process with these roles, when it is up.
    pub(crate) async fn serve(&self, roles: &str) -> Process {
        self.serve_until(roles, "").await
    }

    /// A process that hits `fail_points`.
    pub(crate) async fn serve_until(&self, roles: &str, fail_points: &str) -> Process {
        let mut process = self.launch(roles, fail_points);
        let up = process.says("taskparty 0").await;
        assert!(up || !fail_points.is_empty(), "it ended before it was up: {}", process.log());
        process
    }

    fn launch(&self, roles: &str, fail_points: &str) -> Process {
        let store = self.store_url();
        let args = ["serve", "--roles", roles, "--store-url", &store];
        let mut command = self.desk.command(&args);
        if !fail_points.is_empty() {
            command.env("TASKPARTY_FAIL_POINTS", fail_points);
        }
        Process::start(command, self.log(roles))
    }

    /// A file for what the next process says.
    pub(crate) fn log(&self, name: &str) -> std::path::PathBuf {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        self.desk.dir.path().join(format!("{number}-{name}.log"))
    }

    fn store_url(&self) -> String {
        format!("sqlite:{}", self.history().display())
    }

    /// The SQLite file.
    pub(crate) fn history(&self) -> std::path::PathBuf {
        self.desk.dir.path().join("history.db")
    }

    /// The history, for reading.
    pub(crate) async fn store(&self) -> &Store {
        self.store.get_or_init(async || Store::open(&self.store_url()).await.unwrap()).await
    }

    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        self.desk.run(args).await
    }

    /// `job apply`.
    pub(crate) async fn apply(&self, jobs: &[Value]) {
        let name = self.log("jobs").with_extension("json");
        std::fs::write(&name, json!({ "jobs": jobs }).to_string()).unwrap();
        self.run(&["job", "apply", "-f", name.to_str().unwrap()]).await.exits(0);
    }

    /// `job trigger` with more options; the run.
    pub(crate) async fn trigger(&self, job: &str, more: &[&str]) -> String {
        let ran = self.run(&[&["job", "trigger", job], more].concat()).await.exits(0);
        ran.stdout.trim().to_owned()
    }

    /// Pauses a job; when this returns, nothing of its schedule is fired any more.
    pub(crate) async fn pause(&self, job: &str) {
        let request = Request::new().payload(json!({ "id": job }).to_string().into());
        // It waits for the schedulers that live, and for those just killed until they count as gone.
        let request = request.timeout(Some(Duration::from_secs(30)));
        let subject = self.nats.names().api("job", "pause");
        let answer = self.nats.client().send_request(subject, request).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        assert_eq!((&answer["changed"], &answer["confirmed"]), (&json!(true), &json!(true)));
    }

    /// `run get`, when the run has ended.
    pub(crate) async fn ended(&self, run: &str) -> Value {
        self.seen(run, RunState::is_terminal).await
    }

    /// `run get`, when the run is in a state such as this.
    pub(crate) async fn seen(&self, run: &str, wanted: impl Fn(RunState) -> bool) -> Value {
        until("a run's state", async || {
            let ran = self.run(&["run", "get", run, "-o", "json"]).await;
            let state = (ran.code == 0).then(|| ran.json()["state"].clone())?;
            wanted(RunState::from_word(state.as_str().unwrap()).unwrap()).then(|| ran.json())
        })
        .await
    }
}

/// A job of the shop that may overlap itself.
pub(crate) fn job(id: &str, handler: &str, more: Value) -> Value {
    let mut job = json!({ "id": id, "app": "shop", "handler": handler, "overlap": "allow" });
    for (field, value) in more.as_object().unwrap() {
        job[field] = value.clone();
    }
    job
}

/// Jobs that are due each second.
pub(crate) fn each_second(count: usize, handler: &str, more: Value) -> Vec<Value> {
    let spec = |n| {
        let mut job = job(&format!("{handler}-{n}"), handler, more.clone());
        job["schedule"] = json!({ "fixed_rate": "1s" });
        job
    };
    (0..count).map(spec).collect()
}

/// Waits until `look` finds something.
pub(crate) async fn until<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < end, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits for `event`.
pub(crate) async fn within<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, event).await {
        Ok(value) => value,
        Err(_) => panic!("waited in vain for {what}"),
    }
}
