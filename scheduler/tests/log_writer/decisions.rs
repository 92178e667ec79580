//! What follows from results: retries, one alert, the next of a fixed delay.

use chrono::TimeDelta;
use serde_json::json;
use taskparty_common::outcome::{Outcome, RunState, SkipReason, Trigger, TriggerResult};
use taskparty_nats::publish::Draft;
use taskparty_scheduler::log_writer::Chain;
use taskparty_scheduler::store::RunFilter;

use crate::rig::{Rig, fired_again, in_state, job, result, spec, started, until};

#[tokio::test]
async fn a_run_that_always_fails_has_four_attempts_with_growing_delays_and_one_alert_after_the_last()
 {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let spec = spec(json!({ "retry": { "max": 3, "initial": "100ms", "factor": 2, "jitter": 0 } }));
    let fired = rig.fired(1, spec);
    rig.fire(&fired).await;
    rig.end(&result(&fired, Outcome::Failed)).await;
    let mut triggers = rig.triggers();
    for attempt in 2..=4 {
        assert_eq!(rig.alerts().await.len(), 0, "no alert before the last attempt");
        let trigger = rig.trigger(&mut triggers).await;
        assert!(trigger.at <= rig.clock.now(), "never earlier than promised");
        assert_eq!((trigger.trigger, trigger.run), (Trigger::Retry, fired.run));
        let again = fired_again(&fired, &trigger);
        assert_eq!((again.plan.only, again.plan.attempt), (Some(0), attempt));
        rig.fire(&again).await;
        rig.end(&result(&again, Outcome::Failed)).await;
    }
    let run = in_state(&writer.store, fired.run, RunState::Failed).await;
    let alerts =
        until("an alert", || async { Some(rig.alerts().await).filter(|a| !a.is_empty()) }).await;
    assert_eq!(alerts.len(), 1);
    assert_eq!((alerts[0].run, alerts[0].attempts), (Some(fired.run), 4));
    assert!(alerts[0].message.contains("no money left"), "{}", alerts[0].message);

    assert_eq!(run.attempt_rows.len(), 4);
    let waits: Vec<TimeDelta> = run
        .attempt_rows
        .windows(2)
        .map(|pair| pair[1].due_at.unwrap() - pair[0].ended_at.unwrap())
        .collect();
    assert!(waits.windows(2).all(|pair| pair[0] < pair[1]), "{waits:?}");
    writer.stop().await;
}

#[tokio::test]
async fn duplicates_and_any_order_change_nothing() {
    let rig = Rig::start().await;
    let spec = spec(json!({ "retry": { "max": 1, "initial": "1h" } }));
    let mut fired = rig.fired(1, spec);
    fired.plan.total = 2;
    let good = result(&fired, Outcome::Succeeded);
    let mut bad = result(&fired, Outcome::Failed);
    bad.shard.index = 1;
    // All of it before anybody writes: results first, everything twice, joined and alone.
    for _ in 0..2 {
        rig.end(&bad).await;
        rig.begin(&started(&fired)).await;
        let both = format!("{}\n{}", json!(good), json!(bad));
        let subject = rig.nats.names().result(&crate::rig::app());
        rig.publisher.publish(Draft::new(subject, both)).await.unwrap();
        rig.fire(&fired).await;
    }
    let writer = rig.log_writer().await;
    let run = in_state(&writer.store, fired.run, RunState::Retrying).await;
    rig.all_processed().await;
    let states: Vec<_> =
        run.attempt_rows.iter().map(|row| (row.shard, row.attempt, row.state)).collect();
    assert_eq!(
        states,
        [(0, 1, RunState::Succeeded), (1, 1, RunState::Failed), (1, 2, RunState::Retrying)]
    );
    let triggers = rig.nats.names().triggers_stream();
    until("the retry is scheduled", || async {
        (rig.messages(&triggers).await == 1).then_some(())
    })
    .await;
    assert_eq!(writer.status.get().set_aside, 0);
    writer.stop().await;
}

#[tokio::test]
async fn decisions_that_were_committed_and_not_published_are_published_once_by_the_next_writer() {
    let rig = Rig::start().await;
    let names = rig.nats.names().clone();
    // Without these streams nothing can be published: as if the writer died after its commit.
    for stream in [names.triggers_stream(), names.alerts_stream()] {
        rig.nats.js().delete_stream(stream).await.unwrap();
    }
    let first = rig.log_writer().await;
    let retried = rig.fired(1, spec(json!({ "retry": { "max": 1, "initial": "1h" } })));
    let failed = rig.fired(2, spec(json!({})));
    for fired in [&retried, &failed] {
        rig.fire(fired).await;
        rig.end(&result(fired, Outcome::Failed)).await;
    }
    let run = in_state(&first.store, failed.run, RunState::Failed).await;
    in_state(&first.store, retried.run, RunState::Retrying).await;
    assert_eq!(run.pending.len(), 1, "the alert waits");
    rig.all_processed().await;
    first.task.abort();
    rig.topology.create_missing().await.unwrap();

    let second = rig.log_writer().await;
    until("both are published", || async {
        let pending = [failed.run, retried.run].map(|run| second.store.run(run));
        let pending = futures::future::join_all(pending).await;
        pending.into_iter().all(|run| run.unwrap().unwrap().pending.is_empty()).then_some(())
    })
    .await;
    assert_eq!(rig.alerts().await.len(), 1);
    assert_eq!(rig.messages(&names.triggers_stream()).await, 1);
    second.stop().await;
}

#[tokio::test]
async fn a_poisonous_message_is_set_aside_with_an_alert_and_blocks_nobody() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let subject = rig.nats.names().result(&crate::rig::app());
    let fired = rig.fired(1, spec(json!({})));
    rig.fire(&fired).await;
    let lines = format!("{{\"run\": 7}}\n{}", json!(result(&fired, Outcome::Succeeded)));
    rig.publisher.publish(Draft::new(subject, lines)).await.unwrap();
    in_state(&writer.store, fired.run, RunState::Succeeded).await;
    let alerts =
        until("an alert", || async { Some(rig.alerts().await).filter(|a| !a.is_empty()) }).await;
    assert_eq!((alerts[0].kind.as_str(), alerts[0].job.as_ref()), ("set_aside", None));
    assert_eq!(writer.status.get().set_aside, 1);
    writer.stop().await;
}

#[tokio::test]
async fn what_sql_refuses_is_set_aside_alone() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    writer.stop().await;
    // SQL that does not like one instance's name stands for any data that it refuses.
    let pool = sqlx::SqlitePool::connect(&rig.url("history.db")).await.unwrap();
    sqlx::query(
        "CREATE TRIGGER picky BEFORE INSERT ON attempts WHEN NEW.instance = 'poison' \
         BEGIN SELECT RAISE(ABORT, 'picky'); END",
    )
    .execute(&pool)
    .await
    .unwrap();
    let mut runs = Vec::new();
    for n in 0..20 {
        let fired = rig.fired(n, spec(json!({})));
        rig.fire(&fired).await;
        let mut result = result(&fired, Outcome::Succeeded);
        if n == 7 {
            result.instance = "poison".parse().unwrap();
        } else {
            runs.push(fired.run);
        }
        rig.end(&result).await;
    }
    let writer = rig.log_writer().await;
    for run in runs {
        in_state(&writer.store, run, RunState::Succeeded).await;
    }
    rig.all_processed().await;
    assert!(writer.status.get().set_aside > 0);
    let kept: i64 =
        sqlx::query_scalar("SELECT count(*) FROM set_aside").fetch_one(&pool).await.unwrap();
    assert!((1..=2).contains(&kept), "{kept}");
    writer.stop().await;
}

#[tokio::test]
async fn a_fixed_delay_goes_on_after_each_run_and_is_started_again_when_its_chain_broke_off() {
    let rig = Rig::start().await;
    let spec = spec(json!({ "schedule": { "fixed_delay": "200ms" } }));
    let mut fired = rig.fired(1, spec);
    fired.since = fired.fire_time;
    let chain = Chain {
        job: job(),
        since: chrono::SubsecRound::trunc_subsecs(fired.since, 3),
        delay: std::time::Duration::from_millis(200),
    };
    let writer = rig.log_writer_on("history.db", vec![chain]).await.unwrap();
    let mut triggers = rig.triggers();
    rig.fire(&fired).await;
    rig.end(&result(&fired, Outcome::Failed)).await;
    let next = rig.trigger(&mut triggers).await;
    assert_eq!((next.trigger, next.id.clone()), (Trigger::Schedule, format!("{}.next", fired.run)));
    assert_eq!(next.since.map(|at| at.timestamp_millis()), Some(fired.since.timestamp_millis()));
    // Its trigger is gone and no run came of it.
    let again = rig.trigger(&mut triggers).await;
    assert_eq!(again.id, next.id);
    writer.stop().await;
}

#[tokio::test]
async fn a_skipped_fire_is_a_row_with_its_reason() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let mut fired = rig.fired(1, spec(json!({})));
    fired.result = TriggerResult::Skipped;
    fired.skipped = Some(taskparty_common::fire::Skipped {
        reason: SkipReason::Misfire,
        count: 720,
        first: fired.fire_time - TimeDelta::hours(6),
    });
    rig.fire(&fired).await;
    let run = in_state(&writer.store, fired.run, RunState::Skipped).await;
    assert_eq!((run.run.skip_reason, run.run.skip_count), (Some(SkipReason::Misfire), Some(720)));
    let page = writer.store.runs(&RunFilter::default()).await.unwrap();
    assert_eq!((page.items.len(), page.next), (1, None));
    assert_eq!(rig.alerts().await.len(), 0);
    writer.stop().await;
}
