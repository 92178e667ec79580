//! R12 and R13: executors that are not there, come later, or go.

use rustix::process::Signal;
use serde_json::json;
use taskparty_common::outcome::RunState;
use taskparty_executor::{ConnectConfig, Context, Executor};

use crate::process::Process;
use crate::shop::{self, Shop, deliveries, started_once, starts};
use crate::site::{Site, job, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_nobody_knows_is_waited_for_and_then_ends_not_started_with_the_reason() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    // Other handlers of the app are there.
    let shop = Shop::open(&site);
    let job = |id: &str, wait: &str| {
        job(id, "new", json!({ "no_executor_wait": wait, "alert": { "when": ["failed"] } }))
    };
    site.apply(&[job("hurried", "0s"), job("waiting", "2s"), job("patient", "1m")]).await;
    let hurried = site.trigger("hurried", &[]).await;
    let waiting = site.trigger("waiting", &[]).await;
    let patient = site.trigger("patient", &[]).await;
    for (run, result) in [(&hurried, "no_executor"), (&waiting, "queued")] {
        let ended = site.ended(run).await;
        assert_eq!(ended["state"], "not_started", "{ended:#}");
        assert_eq!(
            (&ended["code"], &ended["trigger_result"]),
            (&json!("no_executor"), &json!(result))
        );
        let shown = site.run(&["run", "get", run]).await.exits(0).stdout;
        assert!(shown.contains("no executor of shop/new"), "{shown}");
    }
    let alerts = until("two alerts", async || {
        let alerts = site.alerts().await;
        (alerts.len() >= 2).then_some(alerts)
    })
    .await;
    assert!(alerts.iter().all(|alert| alert.state == Some(RunState::NotStarted)), "{alerts:#?}");

    // The next version of the service comes in time for the third.
    let waits = site.seen(&patient, |state| !state.is_terminal()).await;
    assert_eq!(waits["trigger_result"], "queued");
    let new = async |_: Context, _: serde_json::Value| Ok("done");
    let url = site.server.url();
    let next = Executor::new("shop").unwrap().connect(ConnectConfig::new(url));
    let next = Shop::run(next.handler("new", new));
    let ended = site.ended(&patient).await;
    assert_eq!(
        (&ended["state"], &ended["tries"][0]["output"]),
        (&json!("succeeded"), &json!("done"))
    );
    assert_eq!((site.alerts().await.len(), starts(&site).len(), site.work_left().await), (2, 0, 0));
    next.close().await;
    shop.close().await;
    node.stop().await;
}

/// An installation with an executor process in the middle of a run.
async fn in_mid_run(ms: u64) -> (Site, Process, Process, String) {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let executor = shop::process(&site);
    site.apply(&[job("long", "work", json!({ "params": ms }))]).await;
    let run = site.trigger("long", &[]).await;
    site.seen(&run, |state| state == RunState::Running).await;
    (site, node, executor, run)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_is_told_to_end_finishes_its_run() {
    let (site, node, mut executor, run) = in_mid_run(5_000).await;
    executor.signal(Signal::TERM);
    assert!(executor.ended().await.success(), "{}", executor.log());
    let ended = site.ended(&run).await;
    assert_eq!((&ended["state"], &ended["tries"][0]["output"]), (&json!("succeeded"), &json!(1)));
    assert_eq!(started_once(&starts(&site)).len(), 1);
    let logs = site.run(&["run", "logs", &run]).await.exits(0).stdout;
    assert!(logs.contains("5000 ms of work"), "{logs}");
    assert_eq!(site.work_left().await, 0);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_of_a_killed_executor_goes_to_another_when_its_lease_has_ended() {
    let (site, node, executor, run) = in_mid_run(3_000).await;
    executor.signal(Signal::TERM);
    executor.kill().await;
    let shop = Shop::open(&site);
    let ended = site.ended(&run).await;
    assert_eq!((&ended["state"], &ended["tries"][0]["output"]), (&json!("succeeded"), &json!(2)));
    assert_eq!(ended["tries"].as_array().unwrap().len(), 1, "another delivery is no retry");
    let deliveries: Vec<_> = deliveries(&starts(&site)).into_values().collect();
    assert_eq!(deliveries, [[1, 2]]);
    assert_eq!(site.work_left().await, 0);
    shop.close().await;
    node.stop().await;
}
