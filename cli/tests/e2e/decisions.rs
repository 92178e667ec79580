//! The log writer is killed wherever it can hurt: each decision is made once all the same.

use std::collections::BTreeMap;

use chrono::{SecondsFormat, TimeDelta};
use serde_json::json;
use taskparty_common::outcome::{RunState, Trigger};
use taskparty_nats::clock::Clock;

use crate::facts::recorded_once;
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job, until};

/// Jobs that fail once, are retried, fail again and raise an alert.
const JOBS: usize = 10;

#[tokio::test(flavor = "multi_thread")]
async fn a_log_writer_killed_at_every_step_decides_one_retry_and_one_alert_for_each_run() {
    let site = Site::start().await;
    let scheduler = site.serve("scheduler,api").await;
    let shop = Shop::open(&site);
    let at = Clock::system().now() + TimeDelta::seconds(1);
    let more = json!({
        "schedule": { "at": at.to_rfc3339_opts(SecondsFormat::Millis, true) },
        "params": 99,
        "retry": { "max": 1, "initial": "100ms" },
    });
    let jobs: Vec<_> = (0..JOBS).map(|n| job(&format!("bad-{n}"), "flaky", more.clone())).collect();
    site.apply(&jobs).await;
    // Before anything is kept; when a batch is kept and not acked, and so its decisions are not
    // out; when the retries are out and nobody knows.
    for point in ["log_writer.before_commit", "log_writer.after_commit", "log_writer.after_publish"]
    {
        let writer = site.serve_until("log-writer", &format!("{point}=kill@1")).await;
        writer.dies().await;
    }
    // The same for alerts: each of these lives gets further by what it publishes first.
    while site.alerts().await.is_empty() {
        let mut writer = site.serve_until("log-writer", "log_writer.after_publish=kill@2").await;
        until("a death, or the end", async || {
            (writer.has_ended() || site.alerts().await.len() >= JOBS).then_some(())
        })
        .await;
    }
    let writer = site.serve("log-writer").await;
    let runs = site.all_ended().await;
    assert_eq!(runs.len(), JOBS);
    for run in runs.values() {
        assert_eq!((run.state, run.attempts), (RunState::Failed, 2), "{run:#?}");
        let detail = async || site.store().await.run(run.run).await.unwrap().unwrap();
        let decided = until("what was decided is out", async || {
            let detail = detail().await;
            detail.pending.is_empty().then_some(detail)
        });
        assert_eq!(decided.await.alerts.len(), 1);
    }
    // A trigger that is published again comes again; it must have changed nothing.
    let pending = async || {
        let info = taskparty_nats::history::stream_info(site.nats.js(), "TASKPARTY_TRIGGERS");
        info.await.unwrap().messages
    };
    until("an empty stream of triggers", async || (pending().await == 0).then_some(())).await;
    let mut alerts: BTreeMap<_, usize> = BTreeMap::new();
    for alert in site.alerts().await {
        *alerts.entry(alert.run).or_default() += 1;
    }
    assert!(alerts.len() == JOBS && alerts.values().all(|count| *count == 1), "{alerts:?}");
    let fired = site.fired().await;
    recorded_once(&fired);
    let retries = fired.iter().filter(|fired| fired.trigger == Trigger::Retry).count();
    assert_eq!((fired.len(), retries), (2 * JOBS, JOBS));
    assert_eq!(started_once(&starts(&site)).len(), 2 * JOBS);
    shop.close().await;
    scheduler.stop().await;
    writer.stop().await;
}
