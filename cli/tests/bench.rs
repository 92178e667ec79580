//! Each measurement, briefly: that it works and says what it found; never how fast it was.
#![allow(clippy::unwrap_used, reason = "what helps tests is a test")]

mod support;

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
        for of_setting in ["cores", "nats", "storage", "fsync", "history"] {
            let on = report["on"].as_array().unwrap();
            assert!(on.iter().any(|pair| pair[0] == of_setting), "{of_setting}: {report}");
        }
        Self(report)
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
}

#[tokio::test]
async fn the_history_is_written_and_asked() {
    let figures = Figures::of(&["store", "--runs", "2000"]).await;
    assert!(figures.get("runs written") > 0.0);
    assert!(figures.get("the newest 50 runs") > 0.0);
}

#[tokio::test]
async fn an_executor_works_off_what_waits() {
    let args = ["executor", "--runs", "500", "--handlers", "3", "--seconds", "1"];
    let figures = Figures::of(&args).await;
    assert!(figures.get("memory of the executor") > 0.0);
}
