//! Executors of the app `shop`, in the test or as a process of their own, which write down each
//! start of a handler before anything else.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use taskparty_executor::{ConnectConfig, Context, Executor, HandlerError, RunError, slots};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::process::Process;
use crate::site::{Site, within};

const URL: &str = "TASKPARTY_TEST_URL";
const STARTS: &str = "TASKPARTY_TEST_STARTS";

/// A handler was called.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Start {
    pub(crate) job: String,
    pub(crate) run: Uuid,
    pub(crate) shard: u32,
    pub(crate) attempt: u32,
    pub(crate) delivery: u64,
}

impl Start {
    /// Appends it to the file in one write, which a `kill -9` cannot take back.
    fn note(path: &Path, ctx: &Context) {
        let start = Self {
            job: ctx.job().to_string(),
            run: ctx.run(),
            shard: ctx.shard_index(),
            attempt: ctx.attempt(),
            delivery: ctx.delivery(),
        };
        let line = format!("{}\n", serde_json::to_string(&start).unwrap());
        let file = std::fs::File::options().create(true).append(true).open(path);
        file.unwrap().write_all(line.as_bytes()).unwrap();
    }
}

/// The shop's executor, with every handler that the tests need.
fn executor(url: &str, starts: PathBuf) -> Executor {
    let noted = move |ctx: &Context| Start::note(&starts, ctx);
    let (settle, flaky, work, misbehave) = (noted.clone(), noted.clone(), noted.clone(), noted);
    Executor::new("shop")
        .unwrap()
        .connect(ConnectConfig::new(url))
        // Returns the size of its params.
        .handler_with("settle", slots(64), move |ctx: Context, params: Value| {
            settle(&ctx);
            async move { Ok(params.to_string().len()) }
        })
        // Fails up to the attempt that its shard's own item says, or else its params.
        .handler_with("flaky", slots(64), move |ctx: Context, fails: u32| {
            flaky(&ctx);
            async move {
                let fails = ctx.shard_param()?.unwrap_or(fails);
                match ctx.attempt() {
                    attempt if attempt <= fails => {
                        Err(HandlerError::retry(format!("attempt {attempt} fails")))
                    }
                    attempt => Ok(attempt),
                }
            }
        })
        // Takes as many milliseconds as its params say.
        .handler_with("work", slots(64), move |ctx: Context, ms: u64| {
            work(&ctx);
            async move {
                ctx.info(format!("{ms} ms of work"));
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(ctx.delivery())
            }
        })
        .handler("misbehave", move |ctx: Context, how: String| {
            misbehave(&ctx);
            misbehaves(how)
        })
}

async fn misbehaves(how: String) -> Result<Value, HandlerError> {
    match how.as_str() {
        "panic" => panic!("the till is {}", "open"),
        "spawn and panic" => {
            tokio::spawn(async { panic!("in a task") }).await?;
            unreachable!("the task panics")
        }
        "5 MB" => Ok(json!({ "bill": "😀".repeat(5_000_000 / 4) })),
        "nul" => Ok(json!("\0")),
        "long error" => Err(HandlerError::fatal("😀".repeat(70_000))),
        other => panic!("unknown: {other}"),
    }
}

/// An executor in this process.
pub(crate) struct Shop {
    stop: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Shop {
    pub(crate) fn open(site: &Site) -> Self {
        Self::run(executor(&site.server.url(), starts_file(site)))
    }

    pub(crate) fn run(executor: Executor) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(executor.run(stop.clone().cancelled_owned()));
        Self { stop, task }
    }

    pub(crate) async fn close(self) {
        self.stop.cancel();
        within("the executor's end", self.task).await.unwrap().unwrap();
    }
}

/// An executor as a process of its own.
pub(crate) fn process(site: &Site) -> Process {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "shop::executor_process", "--ignored", "--nocapture"]);
    command.env(URL, site.server.url()).env(STARTS, starts_file(site));
    Process::start(command, site.log("executor"))
}

/// What those processes run: this test binary, asked for this one test.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process of its own, for other tests"]
async fn executor_process() {
    let (Ok(url), Some(starts)) = (std::env::var(URL), std::env::var_os(STARTS)) else { return };
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    executor(&url, starts.into()).run(terminate.recv()).await.unwrap();
}

fn starts_file(site: &Site) -> PathBuf {
    site.desk.dir.path().join("starts.ndjson")
}

/// Every start of a handler so far.
pub(crate) fn starts(site: &Site) -> Vec<Start> {
    let text = std::fs::read_to_string(starts_file(site)).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The deliveries with which handlers were started, by run, shard and attempt.
pub(crate) type Deliveries = BTreeMap<(Uuid, u32, u32), Vec<u64>>;

/// Asserts that no delivery of an attempt was started twice: an attempt that was *dispatched* twice
/// would show as two first deliveries.
pub(crate) fn deliveries(starts: &[Start]) -> Deliveries {
    let mut all = Deliveries::new();
    for start in starts {
        let of_attempt = all.entry((start.run, start.shard, start.attempt)).or_default();
        assert!(!of_attempt.contains(&start.delivery), "twice: {start:?}");
        of_attempt.push(start.delivery);
    }
    all
}

/// Asserts that each attempt was started once.
pub(crate) fn started_once(starts: &[Start]) -> Deliveries {
    let all = deliveries(starts);
    for (attempt, deliveries) in &all {
        assert_eq!(deliveries, &[1], "{attempt:?}");
    }
    all
}
