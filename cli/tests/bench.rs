//! Each measurement, briefly: that it works and says what it found; never how fast it was.
#![allow(clippy::unwrap_used, reason = "what helps tests is a test")]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::Desk;

/// The figures of one call, by name.
struct Figures(Value);

impl Figures {
    async fn of(args: &[&str]) -> Self {
        let desk = Desk::new();
        let ran = desk.run(&[&["bench"], args, &["-o", "json"]].concat()).await.exits(0);
        let report: Value = serde_json::from_str(&ran.stdout).unwrap();
        assert_eq!(report["bench"], args[0]);
        let figures = Self(report);
        for of_setting in ["cores", "nats", "storage", "fsync"] {
            assert!(figures.says(of_setting), "{of_setting}: {}", figures.0);
        }
        // An executor by itself has none.
        assert_eq!(figures.says("history"), args[0] != "executor", "{}", figures.0);
        figures
    }

    /// Whether it says that of what it was measured on.
    fn says(&self, name: &str) -> bool {
        self.0["on"].as_array().unwrap().iter().any(|pair| pair[0] == name)
    }

    fn get(&self, name: &str) -> f64 {
        let figures = self.0["figures"].as_array().unwrap();
        let found = figures.iter().find(|figure| figure["name"] == name);
        found.unwrap_or_else(|| panic!("{name}: {}", self.0))["value"].as_f64().unwrap()
    }
}

#[tokio::test]
async fn throughput_is_measured_beside_the_bare_messages() {
    let figures = Figures::of(&["throughput", "--runs", "500", "--due", "400"]).await;
    let (runs, bare) = (figures.get("runs"), figures.get("bare messages of as many runs"));
    assert!(runs > 0.0 && bare > 0.0);
    assert!((figures.get("of the bare messages") - runs / bare).abs() < 0.01);
    assert!(figures.get("processor: scheduler") > 0.0);
}

#[tokio::test]
async fn lateness_is_measured_beside_idle_jobs() {
    let args = ["lateness", "--due", "20", "--idle", "100", "--seconds", "2"];
    let figures = Figures::of(&args).await;
    assert_eq!(figures.get("handler starts"), 40.0);
    assert!(figures.get("max") >= figures.get("p50"));
    assert!(figures.says("warm-up before them"));
}

#[tokio::test]
async fn a_herd_starts_from_its_first_to_its_last() {
    let figures = Figures::of(&["herd", "--jobs", "50"]).await;
    assert!(figures.get("last start") >= figures.get("first start"));
    assert!(figures.get("first start") > 0.0);
}

#[tokio::test]
async fn idle_jobs_cost_memory_and_a_start() {
    let figures = Figures::of(&["idle", "--jobs", "200", "--seconds", "1"]).await;
    assert!(figures.get("start until the first fire") > 0.0);
    assert!(figures.get("memory of the scheduler") > 0.0);
}

#[tokio::test]
async fn a_failover_loses_nothing_and_runs_nothing_twice() {
    let args = ["failover", "--stop", "--rounds", "1", "--due", "20"];
    let figures = Figures::of(&args).await;
    assert_eq!((figures.get("lost"), figures.get("twice")), (0.0, 0.0));
    assert!(figures.get("handler starts") > 20.0);
    assert!(figures.says("nodes") && figures.says("lease of a dispatch"));
}

#[tokio::test]
async fn the_history_is_written_and_asked() {
    let figures = Figures::of(&["store", "--runs", "2000"]).await;
    assert!(figures.get("rows written") > figures.get("runs written"));
    assert_eq!(figures.get("failed runs"), 40.0);
    let rows = figures.get("rows a run: itself, its attempt, the alert when it failed");
    assert!(rows >= 2.0, "{rows}");
    for question in [
        "the newest 50 runs",
        "the newest 50 of an app between two times",
        "the 50 after the middle of all",
        "those of a job that failed",
    ] {
        assert!(figures.get(question) > 0.0, "{question}");
    }
}

#[tokio::test]
async fn an_executor_works_off_what_waits() {
    let args = ["executor", "--runs", "500", "--handlers", "3", "--seconds", "1"];
    let figures = Figures::of(&args).await;
    assert!(figures.get("memory of the executor") > 0.0);
}

#[tokio::test]
async fn what_has_all_begun_at_the_first_look_is_a_figure_too() {
    let args = ["executor", "--runs", "20", "--handlers", "3", "--seconds", "1"];
    let figures = Figures::of(&args).await;
    assert!(figures.get("handlers") > 0.0);
    assert!(figures.get("processor at rest, of one core: executor") >= 0.0);
}

/// The processes in whose command line `text` is.
fn processes(text: &str) -> usize {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count()
}

#[tokio::test]
async fn a_measurement_that_is_interrupted_leaves_nothing_behind() {
    let (desk, temp) = (Desk::new(), tempfile::tempdir().unwrap());
    let folder = temp.path().display().to_string();
    let entries = || std::fs::read_dir(temp.path()).unwrap().count();
    let within = |what: &'static str, done: &dyn Fn() -> bool| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !done() {
            assert!(std::time::Instant::now() < end, "waited in vain: {what}");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    for signal in [Signal::INT, Signal::TERM] {
        let mut command = desk.command(&["bench", "idle", "--jobs", "50", "--seconds", "600"]);
        let child = command.env("TMPDIR", temp.path()).spawn().unwrap();
        within("it is at work", &|| entries() > 0 && processes(&folder) > 0);
        kill_process(Pid::from_raw(child.id().unwrap().cast_signed()).unwrap(), signal).unwrap();
        let output = child.wait_with_output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains("interrupted"), "{said}");
        assert_eq!(entries(), 0, "its folders are gone");
        within("its processes are gone", &|| processes(&folder) == 0);
    }
}
