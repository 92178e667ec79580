//! What never started, never reported, or never came ends all the same, on time.

use chrono::TimeDelta;
use serde_json::json;
use taskparty_common::fire::{FireId, Scheduled, TriggerRequest};
use taskparty_common::name::{Instance, Prefix};
use taskparty_common::outcome::{Code, Outcome, RunState, Trigger, TriggerResult};
use taskparty_nats::consume::{Pull, PullConfig};

use crate::rig::{Rig, app, handler, in_state, job, result, spec, started, until};

#[tokio::test]
async fn what_nobody_started_in_time_is_removed_and_ends() {
    let rig = Rig::start().await;
    rig.register("executor-1").await;
    let writer = rig.log_writer().await;
    let mut fired = rig.fired(1, spec(json!({})));
    fired.start_by = Some(fired.fire_time + TimeDelta::seconds(1));
    rig.dispatch(&fired).await;
    rig.fire(&fired).await;
    let run = in_state(&writer.store, fired.run, RunState::NotStarted).await;
    assert_eq!(run.run.code, Some(Code::StartDeadline));
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_orders").await, 0);
    assert_eq!(run.alerts.len(), 1);
    writer.stop().await;
}

#[tokio::test]
async fn without_an_executor_a_run_ends_after_its_wait() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let mut fired = rig.fired(1, spec(json!({ "no_executor_wait": "1s" })));
    fired.result = TriggerResult::Queued;
    rig.dispatch(&fired).await;
    rig.fire(&fired).await;
    in_state(&writer.store, fired.run, RunState::Waiting).await;
    let run = in_state(&writer.store, fired.run, RunState::NotStarted).await;
    assert_eq!(run.run.code, Some(Code::NoExecutor));
    assert!(run.attempt_rows[0].message.contains("orders/daily"), "{:?}", run.attempt_rows);
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_orders").await, 0);
    writer.stop().await;
}

#[tokio::test]
async fn what_an_executor_may_have_gets_a_lease_more_and_its_result_counts() {
    let rig = Rig::start().await;
    rig.register("executor-1").await;
    let mut fired = rig.fired(1, spec(json!({})));
    fired.start_by = Some(fired.fire_time + TimeDelta::milliseconds(100));
    rig.dispatch(&fired).await;
    // An executor takes it and has not said so yet.
    let stream = rig.nats.names().dispatch_stream(&app());
    let mut pull = Pull::new(rig.nats.js(), stream, handler().as_str(), PullConfig::default());
    pull.next(1).await.unwrap();
    let writer = rig.log_writer().await;
    rig.fire(&fired).await;
    until("the dispatch is removed", || async {
        (rig.messages("TASKPARTY_DISPATCH_orders").await == 0).then_some(())
    })
    .await;
    rig.end(&result(&fired, Outcome::Succeeded)).await;
    in_state(&writer.store, fired.run, RunState::Succeeded).await;
    writer.stop().await;
}

#[tokio::test]
async fn an_executor_that_never_reports_is_lost_after_its_timeout_and_two_leases() {
    let rig = Rig::start().await;
    rig.register("executor-1").await;
    let writer = rig.log_writer().await;
    let fired = rig.fired(1, spec(json!({ "timeout": "500ms" })));
    rig.dispatch(&fired).await;
    rig.fire(&fired).await;
    rig.begin(&started(&fired)).await;
    in_state(&writer.store, fired.run, RunState::Running).await;
    let run = in_state(&writer.store, fired.run, RunState::Lost).await;
    assert_eq!(run.run.code, Some(Code::ExecutorLost));
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_orders").await, 0);
    // The late result of a slow executor is kept, and changes nothing.
    rig.end(&result(&fired, Outcome::Succeeded)).await;
    let noted = until("the late result is noted", || async {
        let run = writer.store.run(fired.run).await.unwrap().unwrap();
        (!run.attempt_rows[0].notes.is_empty()).then_some(run)
    })
    .await;
    assert_eq!(noted.run.state, RunState::Lost);
    writer.stop().await;
}

#[tokio::test]
async fn without_a_timeout_a_run_is_lost_when_its_dispatch_is_gone_and_no_result_comes() {
    let rig = Rig::start().await;
    rig.register("executor-1").await;
    let writer = rig.log_writer().await;
    let fired = rig.fired(1, spec(json!({ "timeout": "none" })));
    rig.fire(&fired).await;
    rig.begin(&started(&fired)).await;
    let run = in_state(&writer.store, fired.run, RunState::Lost).await;
    assert_eq!(run.run.code, Some(Code::ExecutorLost));
    writer.stop().await;
}

#[tokio::test]
async fn a_planned_run_whose_trigger_went_missing_is_triggered_as_it_was_asked_for() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let at = chrono::SubsecRound::trunc_subsecs(rig.clock.now() - TimeDelta::seconds(20), 3);
    let fire = FireId::trigger(job(), "order-1");
    let run = fire.run(&Prefix::default(), 0, at);
    let asked = TriggerRequest {
        by: "ada".into(),
        instance: Instance::new("till-1").ok(),
        overlap: Some("skip".into()),
        params: Some(serde_json::value::to_raw_value(&json!({ "order": 1 })).unwrap()),
        ..TriggerRequest::new("order-1", job(), (app(), handler()), Trigger::Delayed, run, at)
    };
    rig.publish(&rig.nats.names().scheduled(&app()), &Scheduled::from(asked.clone())).await;
    let again = rig.trigger(&mut rig.triggers()).await;
    let json = |trigger: &TriggerRequest| serde_json::to_value(trigger).unwrap();
    assert_eq!(json(&again), json(&asked));
    writer.stop().await;
}
