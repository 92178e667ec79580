//! Runs that are cancelled: asked again until they have ended, and kept from being dispatched where
//! they are not yet.

use chrono::TimeDelta;
use futures::StreamExt;
use serde_json::json;
use taskparty_common::ask::{Ask, Asked};
use taskparty_common::dispatch::Cancel;
use taskparty_common::fire::{FireId, Fired, Scheduled};
use taskparty_common::outcome::{Code, Outcome, RunState, Trigger, TriggerResult};
use taskparty_common::overlap::{Places, WhenFull};
use taskparty_nats::consume::{Pull, PullConfig};
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;

use crate::rig::{PATIENCE, Rig, app, handler, in_state, job, result, spec, started, until};

async fn cancel(rig: &Rig, fired: &Fired) {
    let asked = Asked {
        v: 1,
        run: fired.run,
        job: job(),
        app: app(),
        ask: Ask::Cancel { round: None },
        by: "ada".into(),
        at: rig.clock.now(),
    };
    rig.publish(&rig.nats.names().asked(&app()), &asked).await;
}

/// An executor takes what is there, and says nothing.
async fn take(rig: &Rig) {
    let stream = rig.nats.names().dispatch_stream(&app());
    let mut pull = Pull::new(rig.nats.js(), stream, handler().as_str(), PullConfig::default());
    pull.next(1).await.unwrap();
    pull.stop().await;
}

#[tokio::test]
async fn a_run_that_goes_on_is_asked_again_and_again_and_its_answer_counts() {
    let rig = Rig::start().await;
    let mut requests = rig.nats.client().subscribe(rig.nats.names().cancels(&app())).await.unwrap();
    let first = rig.log_writer().await;
    let fired = rig.fired(1, spec(json!({ "retry": { "max": 3 } })));
    rig.dispatch(&fired).await;
    take(&rig).await;
    rig.fire(&fired).await;
    rig.begin(&started(&fired)).await;
    in_state(&first.store, fired.run, RunState::Running).await;
    cancel(&rig, &fired).await;
    let mut next = async || {
        let message = tokio::time::timeout(PATIENCE, requests.next()).await.unwrap().unwrap();
        assert_eq!(message.subject.as_str(), rig.nats.names().cancel(&app(), fired.run));
        serde_json::from_slice::<Cancel>(&message.payload).unwrap()
    };
    let request = next().await;
    assert_eq!((request.run, request.by.as_str()), (fired.run, "ada"));
    let run = in_state(&first.store, fired.run, RunState::Running).await;
    assert!(run.run.cancel_requested_at.is_some(), "it is to stop, and has not ended");
    first.stop().await;
    // Another log writer goes on with it.
    let second = rig.log_writer().await;
    next().await;
    rig.end(&result(&fired, Outcome::Cancelled)).await;
    let run = in_state(&second.store, fired.run, RunState::Cancelled).await;
    assert_eq!((run.attempt_rows.len(), run.alerts.len()), (1, 0));
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_orders").await, 0, "nobody else gets the work");
    second.stop().await;
}

#[tokio::test]
async fn what_nobody_took_is_taken_back_and_a_silent_executor_has_a_lease() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    rig.register("executor-1").await;
    let silent = rig.fired(1, spec(json!({ "timeout": null })));
    rig.dispatch(&silent).await;
    rig.fire(&silent).await;
    take(&rig).await;
    rig.begin(&started(&silent)).await;
    in_state(&writer.store, silent.run, RunState::Running).await;
    let untouched = rig.fired(2, spec(json!({})));
    rig.dispatch(&untouched).await;
    rig.fire(&untouched).await;
    in_state(&writer.store, untouched.run, RunState::Dispatched).await;
    cancel(&rig, &silent).await;
    cancel(&rig, &untouched).await;
    let run = in_state(&writer.store, untouched.run, RunState::Cancelled).await;
    let message = &run.attempt_rows[0].message;
    assert_eq!(message, "cancelled by ada before an executor had it");
    let run = in_state(&writer.store, silent.run, RunState::Cancelled).await;
    let message = &run.attempt_rows[0].message;
    assert!(message.contains("executor-1 was asked to stop and has not answered"), "{message}");
    assert_eq!(run.attempt_rows[0].code, Some(Code::Cancelled));
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_orders").await, 0);
    // What it says in the end is a note.
    rig.end(&result(&silent, Outcome::Succeeded)).await;
    until("a note", || async {
        let run = writer.store.run(silent.run).await.unwrap().unwrap();
        assert_eq!(run.run.state, RunState::Cancelled);
        (run.attempt_rows[0].notes.len() == 1).then_some(())
    })
    .await;
    writer.stop().await;
}

#[tokio::test]
async fn a_retry_that_waits_for_its_time_is_removed_and_its_lock_is_taken() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let fired = rig.fired(1, spec(json!({ "retry": { "max": 3, "initial": "1h" } })));
    rig.fire(&fired).await;
    rig.end(&result(&fired, Outcome::Failed)).await;
    in_state(&writer.store, fired.run, RunState::Retrying).await;
    until("the retry waits in NATS", || async {
        (rig.messages("TASKPARTY_TRIGGERS").await == 1).then_some(())
    })
    .await;
    cancel(&rig, &fired).await;
    let run = in_state(&writer.store, fired.run, RunState::Cancelled).await;
    assert_eq!(run.attempt_rows[1].outcome, Some(Outcome::Cancelled));
    until("the trigger is gone", || async {
        (rig.messages("TASKPARTY_TRIGGERS").await == 0).then_some(())
    })
    .await;
    let lock = format!("{}.x.{}.0.2", job(), fired.run);
    assert!(rig.buckets.get_leader(Bucket::Fires, &lock).await.unwrap().is_some());
    writer.stop().await;
}

#[tokio::test]
async fn a_delayed_trigger_is_removed_unless_it_has_been_fired() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let (mut early, mut late) = (rig.fired(1, spec(json!({}))), rig.fired(2, spec(json!({}))));
    for fired in [&mut early, &mut late] {
        fired.trigger = Trigger::Delayed;
        fired.fire_time += TimeDelta::hours(1);
        let scheduled = Scheduled {
            v: 1,
            lock: fired.lock.clone(),
            run: fired.run,
            job: job(),
            app: app(),
            handler: handler(),
            trigger: Trigger::Delayed,
            fire_time: fired.fire_time,
            by: String::new(),
            params: None,
            instance: None,
            overlap: None,
        };
        let key = fired.lock.rsplit('.').next().unwrap();
        let names = rig.nats.names();
        let draft = Draft::new(names.delay_at(&job(), key), "{}");
        let draft = draft.at(fired.fire_time, names.trigger(&job()));
        rig.publisher.publish(draft).await.unwrap();
        rig.publish(&names.scheduled(&app()), &scheduled).await;
        in_state(&writer.store, fired.run, RunState::Scheduled).await;
    }
    // The first has just been fired, and nobody has told.
    rig.buckets.create(Bucket::Fires, &early.lock, "{}", None).await.unwrap();
    for fired in [&early, &late] {
        cancel(&rig, fired).await;
    }
    in_state(&writer.store, late.run, RunState::Cancelled).await;
    let run = in_state(&writer.store, early.run, RunState::Scheduled).await;
    assert!(run.run.cancel_requested_at.is_some());
    until("the trigger is gone", || async {
        (rig.messages("TASKPARTY_TRIGGERS").await == 1).then_some(())
    })
    .await;
    rig.dispatch(&early).await;
    rig.fire(&early).await;
    in_state(&writer.store, early.run, RunState::Cancelled).await;
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_orders").await, 0);
    writer.stop().await;
}

#[tokio::test]
async fn a_run_that_waits_for_its_turn_leaves_its_place_to_the_next() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let runs: Vec<Fired> = (0..3)
        .map(|n| {
            let mut fired = rig.fired(n, spec(json!({ "overlap": "queue" })));
            if n > 0 {
                (fired.result, fired.start_by) = (TriggerResult::Queued, None);
            }
            fired
        })
        .collect();
    let mut places = Places::default();
    for fired in &runs {
        places.admit(fired.run, 1, WhenFull::Wait { limit: None });
        rig.fire(fired).await;
    }
    let entry = serde_json::to_vec(&places).unwrap();
    rig.buckets.put(Bucket::Overlap, job().as_str(), entry, None).await.unwrap();
    let waiter = format!("{}.{}", job(), runs[1].run);
    rig.buckets.put(Bucket::Overlap, &waiter, "{}", None).await.unwrap();
    in_state(&writer.store, runs[2].run, RunState::Waiting).await;
    cancel(&rig, &runs[1]).await;
    let run = in_state(&writer.store, runs[1].run, RunState::Cancelled).await;
    assert_eq!(run.run.trigger_message, "cancelled by ada before it was dispatched");
    let left = until("its place is given back", || async {
        let entry = rig.buckets.get_leader(Bucket::Overlap, job().as_str()).await.unwrap();
        let places: Places = serde_json::from_slice(&entry.unwrap().value.unwrap()).unwrap();
        (places.leaving.is_empty() && places.waiting.len() == 1).then_some(places)
    })
    .await;
    assert_eq!((left.active[0].run, left.waiting[0]), (runs[0].run, runs[2].run));
    until("what it was to do is dropped", || async {
        let entry = rig.buckets.get_leader(Bucket::Overlap, &waiter).await.unwrap();
        entry.is_none_or(|entry| entry.value.is_none()).then_some(())
    })
    .await;
    assert!(FireId::from_lock_key(&runs[1].lock).is_some());
    writer.stop().await;
}
