//! Executors as processes of their own, ended by signals.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde_json::json;
use taskparty_common::outcome::Outcome;
use taskparty_executor::{ConnectConfig, Context, Executor, slots};
use tokio::signal::unix::{SignalKind, signal};

use crate::rig::{Rig, assert_outcome, instance, until};

const URL: &str = "TASKPARTY_TEST_EXECUTOR_URL";

/// What the processes run: this test binary, asked for this one test.
#[tokio::test]
#[ignore = "a process of its own, for the tests below"]
async fn executor_process() {
    let Ok(url) = std::env::var(URL) else { return };
    let work = |ctx: Context, ms: u64| async move {
        ctx.info("begun");
        tokio::time::sleep(Duration::from_millis(ms)).await;
        Ok(ctx.delivery())
    };
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let executor = Executor::new("shop").unwrap().connect(ConnectConfig::new(url));
    let executor = executor.instance(instance("child")).handler_with("work", slots(1), work);
    executor.run(terminate.recv()).await.unwrap();
}

/// A process that is killed with the test.
struct Process(Child);

impl Process {
    fn start(rig: &Rig) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "process::executor_process", "--ignored", "--nocapture"]);
        Self(command.env(URL, rig.server.url()).stdout(Stdio::null()).spawn().unwrap())
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let id = rustix::process::Pid::from_raw(self.0.id().cast_signed()).unwrap();
        rustix::process::kill_process(id, signal).unwrap();
    }

    async fn ended(mut self) -> bool {
        let ended = tokio::task::spawn_blocking(move || self.0.wait().unwrap().success());
        ended.await.unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn wait_for_announcements(rig: &Rig, count: usize) {
    until("the start of the run", async || {
        (rig.records("started").await.len() >= count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_run_of_five_seconds_survives_sigterm() {
    let rig = Rig::start().await;
    rig.make_consumer("work").await;
    let process = Process::start(&rig);
    let run = rig.run("work", json!(5_000)).await;
    wait_for_announcements(&rig, 1).await;
    process.signal(rustix::process::Signal::TERM);
    assert!(process.ended().await, "the process ended badly");
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.delivery, 1);
    assert_eq!(rig.left().await, 0);
}

#[tokio::test]
async fn what_came_while_the_process_stood_still_is_left_to_whoever_has_it_by_now() {
    let rig = Rig::with_lease(Duration::from_secs(3)).await;
    rig.make_consumer("work").await;
    let frozen = Process::start(&rig);
    let first = rig.run("work", json!(0)).await;
    rig.result(first).await;
    frozen.signal(rustix::process::Signal::STOP);
    // It has asked for work, and gets it; when its lease is over, the other one does.
    let run = rig.run("work", json!(4_000)).await;
    let other = Process::start(&rig);
    wait_for_announcements(&rig, 1).await;
    frozen.signal(rustix::process::Signal::CONT);
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.delivery, 2);
    rig.wait_until_idle().await;
    for process in [frozen, other] {
        process.signal(rustix::process::Signal::TERM);
        assert!(process.ended().await);
    }
    assert_eq!(rig.results(run).await.len(), 1);
    let announced = rig.records("started").await;
    assert_eq!(announced.len(), 1, "it began twice: {announced:#?}");
}

#[tokio::test]
async fn after_sigkill_the_run_is_delivered_again() {
    let rig = Rig::with_lease(Duration::from_secs(2)).await;
    rig.make_consumer("work").await;
    let process = Process::start(&rig);
    let run = rig.run("work", json!(3_000)).await;
    wait_for_announcements(&rig, 1).await;
    process.signal(rustix::process::Signal::TERM);
    process.signal(rustix::process::Signal::KILL);
    assert!(!process.ended().await);
    let next = Process::start(&rig);
    let result = rig.result(run).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(result.delivery, 2);
    rig.wait_until_idle().await;
    next.signal(rustix::process::Signal::TERM);
    assert!(next.ended().await);
    assert_eq!(rig.results(run).await.len(), 1);
}
