//! Whatever ends an attempt ends all the processes that it started.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use taskparty_common::dispatch::Cancel;
use taskparty_common::outcome::Outcome;
use taskparty_executor::ConnectConfig;
use taskparty_executor::script::{self, Language, ScriptConfig};
use taskparty_nats::proxy::Proxy;

use crate::bench::{Bench, gone, output};
use crate::rig::{Rig, Started, assert_outcome};

/// A script with a child and a grandchild, which ignores SIGTERM in all of them.
const STUBBORN: &str = "trap '' TERM
sh -c 'sleep 1000 & echo $! > grandchild; wait' &
echo $! > child
cut -d' ' -f5 /proc/$$/stat > leader
echo $$ > self
wait";

async fn all_gone(bench: &Bench) {
    for name in ["self", "child", "grandchild", "leader"] {
        gone(&bench.written(name).await).await;
    }
}

#[tokio::test]
async fn a_timeout_ends_the_whole_group_and_the_result_comes_after_its_end() {
    let bench = Bench::start().await;
    let executor = bench.run(ScriptConfig { grace: Duration::from_millis(300), ..bench.config() });
    bench.script("it.sh", STUBBORN);
    let mut work = bench.rig.work("shell", json!({"file": "it.sh"}));
    work["timeout_ms"] = json!(4_000);
    let result = bench.rig.outcome(&work).await;
    assert_outcome(&result, Outcome::TimedOut, "timeout");
    assert!(result.retryable);
    let said = "timeout of 4000 ms; it did not end within 300ms of SIGTERM, and was killed";
    assert!(result.message.contains(said), "{result:?}");
    all_gone(&bench).await;
    bench.logged("did not end within 300ms of SIGTERM").await;
    executor.stop().await;
}

#[tokio::test]
async fn a_cancelled_script_may_tidy_up() {
    let bench = Bench::start().await;
    let executor = bench.run(ScriptConfig { grace: Duration::from_secs(30), ..bench.config() });
    bench.script(
        "it.sh",
        "trap 'sleep 1.5; echo tidied; echo tidied > tidied; exit 0' TERM
        echo $$ > self
        while :; do sleep 0.1; done",
    );
    let run = bench.rig.run("shell", json!({"file": "it.sh"})).await;
    let pid = bench.written("self").await;
    let cancel = Cancel { run, shard: None, by: "ada".into() };
    let subject = bench.rig.nats.names().cancel(&bench.rig.app, run);
    let body = serde_json::to_vec(&cancel).unwrap();
    bench.rig.nats.client().publish(subject, body.into()).await.unwrap();
    let result = bench.rig.result(run).await;
    assert_outcome(&result, Outcome::Cancelled, "cancelled");
    assert!(result.message.contains("ada") && !result.message.contains("SIGTERM"), "{result:?}");
    assert!(bench.folder().join("tidied").exists(), "the result waits for the script's end");
    gone(&pid).await;
    bench.logged("tidied").await;
    executor.stop().await;
}

#[tokio::test]
async fn a_child_that_outlives_its_script_is_killed() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    // One that holds the script's output open, and one that does not.
    for to in ["", ">/dev/null 2>&1"] {
        let text = format!("sleep 1000 {to} & echo $!");
        let result = bench.shell(&text, json!({})).await;
        assert_outcome(&result, Outcome::Succeeded, "");
        gone(&output(&result).to_string()).await;
    }
    let late = bench.shell("(sleep 0.3; echo late) & echo early", json!({})).await;
    assert_eq!(output(&late), json!("late"), "there is a moment for last words");
    executor.stop().await;
}

#[tokio::test]
async fn at_the_end_of_the_executor_scripts_are_stopped_and_their_work_is_handed_back() {
    let bench = Bench::start().await;
    let config = ScriptConfig { grace: Duration::from_millis(300), ..bench.config() };
    let executor = Started::run(bench.executor(config).drain(Duration::ZERO));
    bench.script("it.sh", STUBBORN);
    let run = bench.rig.run("shell", json!({"file": "it.sh"})).await;
    bench.written("grandchild").await;
    bench.written("self").await;
    executor.stop().await;
    all_gone(&bench).await;
    assert!(bench.rig.results(run).await.is_empty());
    bench.script("it.sh", "echo again");
    let next = bench.run(bench.config());
    let result = bench.rig.result(run).await;
    assert_eq!((output(&result), result.delivery), (json!("again"), 2));
    next.stop().await;
}

#[tokio::test]
async fn with_its_lease_lost_a_script_has_no_grace() {
    let bench = Bench::on(Rig::with_lease(Duration::from_secs(3)).await).await;
    let proxy = Proxy::start(bench.rig.server.address()).await.unwrap();
    let config = ScriptConfig { grace: Duration::from_secs(1000), ..bench.config() };
    let executor = script::executor(bench.rig.app.clone(), config).unwrap();
    let executor = Started::run(executor.connect(ConnectConfig::new(proxy.url())));
    bench.script("it.sh", STUBBORN);
    let run = bench.rig.run("shell", json!({"file": "it.sh"})).await;
    bench.written("grandchild").await;
    proxy.refuse();
    all_gone(&bench).await;
    assert!(bench.rig.results(run).await.is_empty());
    executor.crash().await;
}

#[tokio::test]
async fn an_executor_that_is_dropped_takes_its_scripts_along() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    bench.script("it.sh", STUBBORN);
    bench.rig.run("shell", json!({"file": "it.sh"})).await;
    bench.written("grandchild").await;
    executor.crash().await;
    all_gone(&bench).await;
}

const URL: &str = "TASKPARTY_TEST_SCRIPT_URL";
const FOLDER: &str = "TASKPARTY_TEST_SCRIPT_FOLDER";

/// What the process below runs: this test binary, asked for this one test.
#[tokio::test]
#[ignore = "a process of its own, for the test below"]
async fn script_process() {
    let (Ok(url), Some(folder)) = (std::env::var(URL), std::env::var_os(FOLDER)) else { return };
    let config = ScriptConfig {
        folder: Some(folder.into()),
        interpreters: [(Language::Shell, "/bin/sh".into())].into(),
        ..ScriptConfig::default()
    };
    let app = taskparty_executor::App::new("shop").unwrap();
    let executor = script::executor(app, config).unwrap().connect(ConnectConfig::new(url));
    executor.run(std::future::pending::<()>()).await.unwrap();
}

/// A process that is killed with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn when_the_executor_is_killed_its_scripts_end_too() {
    let bench = Bench::start().await;
    bench.script("it.sh", STUBBORN);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "stop::script_process", "--ignored", "--nocapture"]);
    command.env(URL, bench.rig.server.url()).env(FOLDER, bench.folder()).stdout(Stdio::null());
    let process = Process(command.spawn().unwrap());
    bench.rig.run("shell", json!({"file": "it.sh"})).await;
    bench.written("grandchild").await;
    bench.written("self").await;
    // Killed, and not told: nothing of ours runs any more that could tidy up.
    drop(process);
    all_gone(&bench).await;
}
