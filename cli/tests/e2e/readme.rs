//! The commands that README.md and docs/nats.md show, beside a running demo: they are taken from
//! the pages, so that these cannot drift, and run by a shell, as a reader does.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use tokio::process::Command;

use crate::process::Process;
use crate::site::{until, within};
use crate::support::Desk;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The commands of a page that begin with `program`, in their order.
fn commands(page: &str, program: &str) -> Vec<String> {
    let text = std::fs::read_to_string(root().join(page)).unwrap();
    let mut inside = false;
    let mut found = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("```") {
            Some(kind) => inside = kind == "console",
            None => {
                let command = line.strip_prefix("$ ").filter(|_| inside);
                found.extend(command.filter(|c| c.split(' ').next() == Some(program)));
            }
        }
    }
    assert!(!found.is_empty(), "{page} shows no command of {program}");
    found.into_iter().map(str::to_owned).collect()
}

/// A demo that has shown everything once and goes on.
struct Demo {
    process: Process,
    desk: Desk,
    url: String,
}

impl Demo {
    async fn start() -> Self {
        let desk = Desk::new();
        for entry in std::fs::read_dir(root().join("examples/jobs")).unwrap() {
            let path = entry.unwrap().path();
            let name = format!("examples/jobs/{}", path.file_name().unwrap().display());
            desk.file(&name, &std::fs::read_to_string(&path).unwrap());
        }
        let command = desk.command(&["dev", "--demo"]);
        let mut process = Process::start(command, desk.dir.path().join("demo.log"));
        assert!(process.says("demo: all is well").await, "{}", process.log());
        let log = process.log();
        let url = log.lines().find_map(|line| line.strip_prefix("NATS ")).unwrap();
        let url = url.split_whitespace().next().unwrap().to_owned();
        Self { process, desk, url }
    }

    /// Runs a line as a shell does, with both programs on PATH; what it says, when it ends well.
    async fn shell(&self, line: &str) -> Result<String, String> {
        let taskparty = Path::new(env!("CARGO_BIN_EXE_taskparty")).parent().unwrap();
        let others = std::env::var("PATH").unwrap();
        let nats = root().join("nats/.bin");
        let path = format!("{}:{}:{others}", taskparty.display(), nats.display());
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).current_dir(self.desk.dir.path()).env_clear();
        command.env("PATH", path).env("HOME", self.desk.dir.path()).env("NATS_URL", &self.url);
        command.stdin(Stdio::null()).kill_on_drop(true);
        let output = within(line, command.output()).await.unwrap();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        match output.status.success() {
            true => Ok(said),
            false => Err(format!("{said}{}", String::from_utf8_lossy(&output.stderr))),
        }
    }

    /// Runs each command in its order, and waits until it says what the page says that it shows.
    async fn shows(&self, commands: &[String], expected: &[(&str, &[&str])]) {
        let mut expected: BTreeMap<&str, &[&str]> = expected.iter().copied().collect();
        for command in commands {
            let words = expected.remove(command.as_str()).unwrap_or_default();
            let mut last = String::new();
            let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
            until(command, async || {
                last =
                    self.shell(command).await.unwrap_or_else(|error| panic!("{command}: {error}"));
                let missing = words.iter().find(|word| !last.contains(**word));
                let late = std::time::Instant::now() > end;
                assert!(missing.is_none() || !late, "{command}: no {missing:?} in {last}");
                missing.is_none().then_some(())
            })
            .await;
            assert!(!last.trim().is_empty(), "{command} says nothing");
        }
        assert!(expected.is_empty(), "the page does not show {expected:?}");
    }

    /// Ctrl-C.
    async fn stop(mut self) {
        self.process.signal(Signal::INT);
        assert!(self.process.ended().await.success(), "{}", self.process.log());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_readme_show_what_it_says_beside_a_running_demo() {
    let demo = Demo::start().await;
    demo.shows(
        &commands("README.md", "taskparty"),
        &[
            (
                "taskparty job list",
                &["heartbeat", "flaky-import", "always-fails", "reconcile-bills"],
            ),
            ("taskparty run list", &["heartbeat", "succeeded"]),
            ("taskparty run list --job always-fails", &["failed"]),
            ("taskparty executor list", &["order-service", "heartbeat", "reconcileBills"]),
            ("taskparty doctor", &["log writer"]),
            ("taskparty job apply -f examples/jobs/hello.yaml", &["created hello", "fires next"]),
            ("taskparty job next hello", &["WEEKDAY", ":00Z"]),
            ("taskparty job trigger hello", &["-"]),
            ("taskparty run list --job hello", &["manual", "succeeded"]),
            ("taskparty job get hello -o yaml", &["id: hello", "handler: heartbeat"]),
            ("taskparty job delete hello", &["hello"]),
        ],
    )
    .await;
    demo.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs the nats command line: make test-cli"]
async fn the_nats_command_line_shows_what_the_pages_say_beside_a_running_demo() {
    let nats = root().join("nats/.bin/nats");
    assert!(nats.exists(), "{} is missing: make nats-cli", nats.display());
    let demo = Demo::start().await;
    let streams: &[&str] = &[
        "TASKPARTY_DISPATCH_order-service",
        "TASKPARTY_TRIGGERS",
        "TASKPARTY_RESULTS",
        "TASKPARTY_LOGS",
        "TASKPARTY_ALERTS",
    ];
    let report: &[&str] = &[
        "heartbeat",
        "flakyImport",
        "alwaysFails",
        "reconcileBills",
        "Unprocessed",
        "Ack Pending",
    ];
    demo.shows(
        &commands("README.md", "nats"),
        &[
            ("nats stream ls", streams),
            (
                "nats stream ls -a",
                &["KV_taskparty_jobs", "KV_taskparty_fires", "TASKPARTY_RESULTS"],
            ),
            (
                "nats kv ls taskparty_fires",
                &["heartbeat.t.", "always-fails.x.", "reconcile-bills.x."],
            ),
            ("nats kv get taskparty_jobs heartbeat --raw", &[r#""handler":"heartbeat""#]),
            ("nats consumer report TASKPARTY_DISPATCH_order-service", report),
            ("nats sub --count=3 'taskparty.>'", &["taskparty."]),
            ("nats service ls", &["taskparty"]),
        ],
    )
    .await;
    // What the README says of a key that it cannot know.
    let keys = demo.shell("nats kv ls taskparty_fires").await.unwrap();
    let key = keys.split_whitespace().find(|key| key.starts_with("reconcile-bills.x.")).unwrap();
    let intent = demo.shell(&format!("nats kv get taskparty_fires {key} --raw")).await.unwrap();
    let intent: Value = serde_json::from_str(&intent).unwrap();
    assert_eq!(intent["plan"]["total"], 4);
    assert_eq!(intent["definition"]["handler"], "reconcileBills");
    assert!(intent["run"].is_string());
    demo.shows(
        &commands("docs/nats.md", "nats"),
        &[
            ("nats kv ls taskparty_executors", &["order-service."]),
            ("nats sub --count=1 --raw 'taskparty.dispatch.>'", &[r#""handler":"heartbeat""#]),
            ("nats sub --count=1 --raw 'taskparty.fired.*'", &[r#""result":"dispatched""#]),
            ("nats sub --count=1 --raw 'taskparty.result.order-service'", &["succeeded"]),
            ("nats consumer report TASKPARTY_RESULTS", &["log-writer"]),
            ("nats consumer report TASKPARTY_TRIGGERS", &["schedulers"]),
            ("nats stream subjects TASKPARTY_ALERTS", &["taskparty.alert.always-fails"]),
            ("nats service info taskparty", &["taskparty.api.job.apply"]),
            (
                "nats req taskparty.api.run.list '{\"job\": \"heartbeat\", \"limit\": 1}' --raw",
                &["succeeded"],
            ),
        ],
    )
    .await;
    demo.stop().await;
}
