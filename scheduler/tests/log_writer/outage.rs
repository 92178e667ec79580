//! SQL that is locked, and a writer that is away: nothing is lost.

use serde_json::json;
use sqlx::Connection;
use taskparty_common::outcome::{Outcome, RunState};
use taskparty_nats::history;
use taskparty_scheduler::store::RunFilter;

use crate::rig::{Rig, in_state, result, spec, until};

#[tokio::test]
async fn results_that_come_while_sql_is_locked_are_recorded_once_when_it_is_free() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let first = rig.fired(0, spec(json!({})));
    rig.fire(&first).await;
    rig.end(&result(&first, Outcome::Succeeded)).await;
    in_state(&writer.store, first.run, RunState::Succeeded).await;

    let mut other = sqlx::SqliteConnection::connect(&rig.url("history.db")).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    let mut runs = Vec::new();
    for n in 1..=200 {
        let fired = rig.fired(n, spec(json!({})));
        rig.fire(&fired).await;
        rig.end(&result(&fired, if n % 10 == 0 { Outcome::Failed } else { Outcome::Succeeded }))
            .await;
        runs.push(fired.run);
    }
    until("the outage is noticed", || async { writer.status.get().outage_since }).await;
    // Longer than the lease: what is held must not come twice in the end, nor be given up.
    let held = history::consumer_info(rig.nats.js(), "TASKPARTY_RESULTS", "log-writer");
    assert!(held.await.unwrap().unwrap().ack_pending > 0);
    tokio::time::sleep(crate::rig::LEASE * 2).await;
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();

    rig.all_processed().await;
    let filter = RunFilter { limit: Some(1000), ..RunFilter::default() };
    let page = writer.store.runs(&filter).await.unwrap();
    assert_eq!(page.items.len(), 201);
    let failed = page.items.iter().filter(|run| run.state == RunState::Failed).count();
    let succeeded = page.items.iter().filter(|run| run.state == RunState::Succeeded).count();
    assert_eq!((failed, succeeded), (20, 181));
    until("twenty alerts", || async { (rig.alerts().await.len() == 20).then_some(()) }).await;
    assert_eq!(writer.status.get().outage_since, None);
    writer.stop().await;
}

#[tokio::test]
async fn an_outage_of_sql_ends_no_healthy_run() {
    let rig = Rig::start().await;
    rig.register("executor-1").await;
    // Its start deadline passes while nobody writes; it was started long before.
    let mut fired = rig.fired(1, spec(json!({ "timeout": "1h" })));
    fired.start_by = Some(fired.fire_time);
    fired.fired_at = fired.fire_time - chrono::TimeDelta::minutes(10);
    rig.fire(&fired).await;
    rig.begin(&crate::rig::started(&fired)).await;
    let writer = rig.log_writer().await;
    in_state(&writer.store, fired.run, RunState::Running).await;
    rig.end(&result(&fired, Outcome::Succeeded)).await;
    in_state(&writer.store, fired.run, RunState::Succeeded).await;
    writer.stop().await;
}
