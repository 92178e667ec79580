//! Work belongs to one holder at a time, and to somebody always.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;
use taskparty_common::outcome::Outcome;

use super::expect;
use crate::site::{Site, until};
use crate::subject::Subject;

const LEASE: Duration = Duration::from_secs(2);

/// A run that takes much longer than the lease keeps it.
pub async fn a_long_run_keeps_its_lease(subject: &Subject) {
    let site = Site::with_lease(subject, LEASE).await;
    let executor = site.executor().await;
    let result = site.outcome(&site.work("sleep", json!({"ms": 5_000}))).await;
    expect(&result, Outcome::Succeeded, None);
    assert_eq!(
        site.deliveries("sleep").await,
        1,
        "it was delivered again in the middle of the run"
    );
    executor.stop().await;
}

/// The work of a process that is killed goes to another one.
pub async fn the_work_of_a_killed_process_goes_to_another(subject: &Subject) {
    let site = Site::with_lease(subject, LEASE).await;
    let killed = site.executor().await;
    let run = site.run("sleep", json!({"ms": 1_500})).await;
    site.started(run, 1).await;
    killed.signal(Signal::KILL);
    let other = site.executor().await;
    let result = site.result(run).await;
    expect(&result, Outcome::Succeeded, None);
    assert_eq!((result.delivery, &result.instance), (2, &other.instance));
    site.wait_until_done().await;
    other.stop().await;
}

/// A process that stood still for longer than its lease says nothing about what it held.
pub async fn a_frozen_process_has_lost_its_work(subject: &Subject) {
    let site = Site::with_lease(subject, LEASE).await;
    let frozen = site.executor().await;
    // As many as it has slots, so that it asks for no more while it stands still.
    let mut runs = Vec::new();
    for _ in 0..2 {
        runs.push(site.run("sleep", json!({"ms": 1_500})).await);
    }
    for run in &runs {
        site.started(*run, 1).await;
    }
    frozen.signal(Signal::STOP);
    let other = site.executor().await;
    for run in &runs {
        let result = site.result(*run).await;
        assert_eq!((result.delivery, &result.instance), (2, &other.instance));
    }
    site.wait_until_done().await;
    frozen.signal(Signal::CONT);
    // Once it takes work again it has had its chance to speak.
    until("work for the one that was frozen", async || {
        let run = site.run("echo", json!(null)).await;
        (site.result(run).await.instance == frozen.instance).then_some(())
    })
    .await;
    for run in runs {
        assert_eq!(site.results(run).await.len(), 1, "a stale holder reported");
    }
    frozen.stop().await;
    other.stop().await;
}

/// A server that hangs for longer than the lease: the handler is stopped, and the work runs anew.
pub async fn a_hung_server_costs_the_lease(subject: &Subject) {
    let site = Site::with_lease(subject, LEASE).await;
    let executor = site.executor().await;
    let run = site.run("sleep", json!({"ms": 3_000})).await;
    site.started(run, 1).await;
    site.server.pause().unwrap();
    tokio::time::sleep(LEASE + Duration::from_millis(500)).await;
    site.server.resume().unwrap();
    let result = site.result(run).await;
    expect(&result, Outcome::Succeeded, None);
    assert_eq!(result.delivery, 2, "the handler went on without a lease");
    site.wait_until_done().await;
    assert_eq!(site.results(run).await.len(), 1);
    executor.stop().await;
}
