//! Routes, broadcasts and shards on real executors, while executors join and leave: R9.

mod gone;
mod probes;
mod shards;

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Value, json};
use taskparty_common::name::Instance;
use taskparty_common::outcome::{Code, RunState};
use taskparty_executor::{Context, Executor, HandlerError, slots};
use taskparty_nats::history::consumer_info;
use taskparty_scheduler::store::{AttemptRow, RunDetail};
use tokio::sync::Semaphore;
use uuid::Uuid;

use crate::rig::{Running, Site, job, until};
use crate::shop::{Shop, executor};

const URL: &str = "TASKPARTY_TEST_URL";
const INSTANCE: &str = "TASKPARTY_TEST_INSTANCE";

/// How long executors have to answer a probe, less what is lost when times are written down.
const DEADLINE: TimeDelta = TimeDelta::milliseconds(490);

fn instance(name: &str) -> Instance {
    Instance::new(name).unwrap()
}

/// An executor of that name: `who` says who ran it, `stuck` never ends where its params name it.
fn named(url: &str, name: &str) -> Executor {
    let stuck_at = async |ctx: &Context, name: &str| {
        if ctx.instance().as_str() == name {
            std::future::pending::<()>().await;
        }
    };
    executor(url)
        .instance(instance(name))
        .handler_with("who", slots(8), |ctx: Context, ms: u64| async move {
            tokio::time::sleep(Duration::from_millis(ms)).await;
            Ok(ctx.instance().clone())
        })
        .handler_with("stuck", slots(1), move |ctx: Context, name: String| async move {
            stuck_at(&ctx, &name).await;
            Ok((ctx.instance().clone(), ctx.shard_index(), ctx.shard_total()))
        })
}

/// What executor processes run: this test binary, asked for this one test.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process of its own, for the tests below"]
async fn executor_process() {
    let (Ok(url), Ok(name)) = (std::env::var(URL), std::env::var(INSTANCE)) else { return };
    named(&url, &name).run(std::future::pending::<()>()).await.unwrap();
}

/// A process that is killed with the test.
struct Process(Child);

impl Process {
    fn start(site: &Site, name: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "routes::executor_process", "--ignored", "--nocapture"]);
        command.env(URL, site.url()).env(INSTANCE, name);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Site {
    fn named(&self, name: &str) -> Shop {
        Shop::run(named(&self.url(), name))
    }

    /// `job.trigger` over the API, as everybody does it.
    async fn triggered(&self, request: Value) -> Uuid {
        let subject = self.nats.names().api("job", "trigger");
        let answer = self.nats.client().request(subject, request.to_string().into()).await.unwrap();
        let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
        serde_json::from_value(answer["run"].clone()).unwrap_or_else(|_| panic!("{answer:#}"))
    }

    /// The run, when it is such.
    async fn run(&self, run: Uuid, wanted: impl Fn(&RunDetail) -> bool) -> RunDetail {
        until("the run", async || {
            let found = self.store().await.run(run).await.ok()??;
            wanted(&found).then_some(found)
        })
        .await
    }

    async fn ended(&self, run: Uuid) -> RunDetail {
        self.run(run, |run| run.run.state.is_terminal()).await
    }

    /// Triggers `job` so often, one after the other, and says who ran it. Of `failover` only what
    /// was answered in time counts.
    async fn who(&self, job: &str, times: usize) -> String {
        let mut who = Vec::new();
        for _ in 0..times {
            let run = until("answers that come in time", async || {
                let run = self.ended(self.triggered(json!({ "id": job })).await).await;
                assert_eq!(run.run.state, RunState::Succeeded, "{run:#?}");
                (job != "failover" || answered_in_time(&run)).then_some(run)
            });
            who.extend(run.await.attempt_rows.iter().map(by));
        }
        who.join(" ")
    }

    /// Waits until no consumer is left for an executor that has gone.
    async fn consumer_is_removed(&self, name: &str) {
        let app = taskparty_common::name::App::new("shop").unwrap();
        let stream = self.nats.names().dispatch_stream(&app);
        let consumer = format!("on_{name}");
        until("the end of a consumer", async || {
            consumer_info(self.nats.js(), &stream, &consumer).await.ok()?.is_none().then_some(())
        })
        .await;
    }
}

fn by(row: &AttemptRow) -> String {
    row.instance.as_ref().map_or("-".into(), ToString::to_string)
}

/// How long it took from when the run was due until it was sent: the probes are between.
fn waited(run: &RunDetail) -> TimeDelta {
    run.run.fired_at.unwrap() - run.run.fire_time.unwrap()
}

/// Whether nobody's answer can have been missed: on a busy machine who lives may be too late, and
/// is rightly passed over.
fn answered_in_time(run: &RunDetail) -> bool {
    waited(run) < DEADLINE
}

/// Waits until `node` sees just these executors.
async fn sees(node: &Running, names: &[&str]) {
    let names: BTreeSet<&str> = names.iter().copied().collect();
    until("the executors", async || {
        let live = node.node.registry().entries();
        let live: BTreeSet<&str> = live.iter().map(|entry| entry.instance.as_str()).collect();
        (live == names).then_some(())
    })
    .await;
}

/// The attempts of each shard: state, code and who ran it.
fn told(run: &RunDetail) -> BTreeMap<u32, Vec<(RunState, Option<Code>, String)>> {
    let mut told: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for row in &run.attempt_rows {
        told.entry(row.shard).or_default().push((row.state, row.code, by(row)));
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn each_route_finds_its_executor_while_one_joins_and_one_leaves() {
    let site = Site::single().await;
    let node = site.node().await;
    let (a, b) = (site.named("a"), site.named("b"));
    sees(&node, &["a", "b"]).await;
    let routes = [
        "any",
        "first",
        "last",
        "round_robin",
        "random",
        "consistent_hash",
        "failover",
        "least_frequently_used",
        "least_recently_used",
        "busyover",
        "broadcast",
    ];
    for route in routes {
        let more = json!({ "route": route, "params": 1, "schedule": null });
        site.save(job(route, "who", more)).await;
    }
    let more = json!({ "shards": "executors", "params": 1, "schedule": null });
    site.save(job("shared", "who", more)).await;
    let turns =
        json!({ "route": "round_robin", "overlap": "queue", "params": 50, "schedule": null });
    site.save(job("in-turn", "who", turns)).await;

    let mut asked: BTreeMap<&str, [String; 3]> = BTreeMap::new();
    let ask = async |asked: &mut BTreeMap<&str, [String; 3]>, phase: usize| {
        let who = futures::future::join_all(routes.map(|route| site.who(route, 4))).await;
        for (route, who) in routes.iter().zip(who) {
            asked.entry(*route).or_default()[phase] = who;
        }
    };
    ask(&mut asked, 0).await;
    // At rest a job whose runs wait for each other takes turns as any other.
    let runs =
        futures::future::join_all((0..6).map(|_| site.triggered(json!({ "id": "in-turn" })))).await;
    let mut ran = Vec::new();
    for run in runs {
        let run = site.ended(run).await;
        ran.push((run.attempt_rows[0].started_at, by(&run.attempt_rows[0])));
    }
    ran.sort();
    let ran: Vec<&str> = ran.iter().map(|(_, who)| who.as_str()).collect();
    assert_eq!(ran, ["a", "b", "a", "b", "a", "b"]);

    let c = site.named("c");
    sees(&node, &["a", "b", "c"]).await;
    ask(&mut asked, 1).await;
    let shared = site.ended(site.triggered(json!({ "id": "shared" })).await).await;
    assert_eq!((shared.run.shards, shared.run.state), (Some(3), RunState::Succeeded));
    a.close().await;
    sees(&node, &["b", "c"]).await;
    ask(&mut asked, 2).await;

    for (route, wanted) in [
        ("first", ["a a a a", "a a a a", "b b b b"]),
        ("failover", ["a a a a", "a a a a", "b b b b"]),
        ("last", ["b b b b", "c c c c", "c c c c"]),
        ("round_robin", ["a b a b", "c a b c", "b c b c"]),
        ("least_recently_used", ["a b a b", "c a b c", "b c b c"]),
        ("least_frequently_used", ["a b a b", "c a b c", "b c b c"]),
        ("broadcast", ["a b a b a b a b", "a b c a b c a b c a b c", "b c b c b c b c"]),
    ] {
        assert_eq!(asked[route], wanted, "{route}");
    }
    let hashed = &asked["consistent_hash"];
    let only = |who: &String| who.split(' ').collect::<BTreeSet<_>>().len() == 1;
    assert!(hashed.iter().all(only), "{hashed:?}");
    assert!(hashed[1] == hashed[0] || hashed[1].starts_with('c'), "{hashed:?}");
    assert!(hashed[2] == hashed[1] || hashed[1].starts_with('a'), "{hashed:?}");
    // Whoever has just run it may still be tidying up: `probes` shows what `busyover` is for.
    for route in ["any", "random", "busyover"] {
        assert!(!asked[route][0].contains(['c', '-']) && !asked[route][2].contains(['a', '-']));
    }
    site.consumer_is_removed("a").await;
    b.close().await;
    c.close().await;
    node.stop().await;
}

/// R9: executors come and go while the shards of one run go on.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_and_goes_during_a_run_changes_neither_its_shards_nor_their_total() {
    let site = Site::single().await;
    let node = site.node().await;
    let gate = Arc::new(Semaphore::new(0));
    let run = |name: &str| {
        let gate = gate.clone();
        let piece = move |ctx: Context, (): ()| {
            let gate = gate.clone();
            async move {
                gate.acquire().await?.forget();
                match ctx.shard_index() {
                    1 if ctx.attempt() == 1 => Err(HandlerError::retry("the first time it fails")),
                    index => Ok((index, ctx.shard_total())),
                }
            }
        };
        let executor = executor(&site.url()).instance(instance(name));
        Shop::run(executor.handler_with("piece", slots(1), piece))
    };
    let (a, b) = (run("a"), run("b"));
    sees(&node, &["a", "b"]).await;
    let retry = json!({ "max": 1, "initial": "100ms" });
    for (id, more) in
        [("shared", json!({ "shards": "executors" })), ("all", json!({ "route": "broadcast" }))]
    {
        let mut more = more;
        more["retry"] = retry.clone();
        more["schedule"] = Value::Null;
        site.save(job(id, "piece", more)).await;
    }
    let shared = site.triggered(json!({ "id": "shared" })).await;
    let at_work = |run: &RunDetail| {
        run.attempt_rows.iter().filter(|row| row.state == RunState::Running).count() == 2
    };
    site.run(shared, at_work).await;
    let all = site.triggered(json!({ "id": "all" })).await;
    site.run(all, |run| run.attempt_rows.len() == 2).await;
    let (c, d) = (run("c"), run("d"));
    sees(&node, &["a", "b", "c", "d"]).await;
    gate.add_permits(100);
    for id in [shared, all] {
        let run = site.ended(id).await;
        assert_eq!((run.run.state, run.run.shards), (RunState::Succeeded, Some(2)), "{run:#?}");
        let told: Vec<_> = run.attempt_rows.iter().map(|row| (row.shard, row.attempt)).collect();
        assert_eq!(told, [(0, 1), (1, 1), (1, 2)], "only the shard that failed runs again");
        for row in run.attempt_rows.iter().filter(|row| row.state == RunState::Succeeded) {
            assert_eq!(row.output.as_ref().unwrap().get(), format!("[{},2]", row.shard));
        }
        if id == all {
            let who: Vec<_> = run.attempt_rows.iter().map(by).collect();
            assert_eq!(who, ["a", "b", "b"], "a retry of a pinned shard stays where it is");
        }
    }
    for shop in [a, b, c, d] {
        shop.close().await;
    }
    node.stop().await;
}
