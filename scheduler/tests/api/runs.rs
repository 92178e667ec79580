//! Runs that are triggered, listed and named.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskparty_common::name::JobId;
use taskparty_nats::history::{delete_message, last_by_subject};
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::Role;

use crate::rig::{PATIENCE, Rig, spec};

#[tokio::test]
async fn a_key_makes_one_run_however_many_ask_at_once() {
    let rig = Rig::start(&[Role::Api, Role::Scheduler]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("demand")]})).await.unwrap();
    let asks = (0..20).map(|_| {
        rig.ask("job", "trigger", json!({"id": "demand", "key": "order-1", "params": null}))
    });
    let answers: Vec<Value> =
        futures::future::join_all(asks).await.into_iter().map(Result::unwrap).collect();
    let runs: BTreeSet<&str> =
        answers.iter().map(|answer| answer["run"].as_str().unwrap()).collect();
    assert_eq!(runs.len(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer["created"] == true).count(), 1);
    // The run that was named is the run that is fired.
    let buckets = rig.buckets().await;
    let lock = async {
        loop {
            if let Some(entry) =
                buckets.get_leader(Bucket::Fires, "demand.x.order-1").await.unwrap()
            {
                return serde_json::from_slice::<Value>(&entry.value.unwrap()).unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    let intent = tokio::time::timeout(PATIENCE, lock).await.unwrap();
    assert_eq!(intent["run"].as_str(), runs.first().copied());
    let again = rig.ask("job", "trigger", json!({"id": "demand", "key": "order-1"})).await.unwrap();
    assert_eq!((&again["run"], &again["created"]), (&intent["run"], &json!(false)));
    rig.stop().await;
}

#[tokio::test]
async fn runs_are_answered_from_the_log_writers_history_and_from_no_other() {
    // No log writer has been here: nothing has happened, and nothing is wrong with saying so.
    let rig = Rig::start(&[Role::Api]).await;
    assert_eq!(rig.ask("run", "list", json!({})).await.unwrap()["items"], json!([]));
    let writer = rig.beside(&[Role::LogWriter], "other.db").await.unwrap();

    let problem = rig.ask("run", "list", json!({})).await.unwrap_err();
    assert_eq!(problem["code"], "unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("in another store"), "{problem}");
    let run = json!({"run": uuid::Uuid::nil()});
    for verb in ["get", "logs"] {
        assert_eq!(rig.ask("run", verb, run.clone()).await.unwrap_err()["code"], "unavailable");
    }
    let checks = rig.ask("doctor", "run", json!({})).await.unwrap();
    let history = checks["items"].as_array().unwrap().iter().find(|c| c["check"] == "history");
    assert_eq!(history.unwrap()["verdict"], "fail", "{checks}");

    let refused = rig.beside(&[Role::Api], "third.db").await.unwrap_err().to_string();
    assert!(refused.contains("in another store") && refused.contains("third.db"), "{refused}");
    tokio::join!(rig.stop(), async {
        tokio::time::timeout(PATIENCE, writer.ended()).await.unwrap()
    });
}

#[tokio::test]
async fn a_delayed_trigger_is_a_scheduled_run_until_its_time() {
    let rig = Rig::start(&[Role::Scheduler, Role::LogWriter, Role::Api]).await;
    let mut job = spec("demand");
    job["no_executor_wait"] = json!("0s");
    rig.ask("job", "apply", json!({"jobs": [job]})).await.unwrap();
    let later = json!({"id": "demand", "in": "1h", "key": "order-1", "params": {"order": 1}});
    let made = rig.ask("job", "trigger", later.clone()).await.unwrap();
    let run = rig.run_in_state(&made["run"], "scheduled").await;
    assert_eq!(
        (&run["trigger"], &run["handler"], &run["params"], &run["lock"]),
        (&json!("delayed"), &json!("settle"), &json!({"order": 1}), &json!("demand.x.order-1"))
    );
    assert_eq!(run["fire_time"], made["at"]);
    let again = rig.ask("job", "trigger", later).await.unwrap();
    assert_eq!((&again["run"], &again["created"]), (&made["run"], &json!(false)));
    let waits = rig.ask("run", "list", json!({"state": "scheduled"})).await.unwrap();
    assert_eq!(waits["items"].as_array().unwrap().len(), 1, "{waits}");

    let soon = rig.ask("job", "trigger", json!({"id": "demand", "in": "300ms"})).await.unwrap();
    let run = rig.run_in_state(&soon["run"], "not_started").await;
    assert_eq!(run["trigger_result"], "no_executor");
    rig.stop().await;
}

#[tokio::test]
async fn a_page_of_nothing_is_refused() {
    let rig = Rig::start(&[Role::Api]).await;
    for (noun, body) in [("run", json!({ "limit": 0 })), ("job", json!({ "limit": 0 }))] {
        let problem = rig.ask(noun, "list", body).await.unwrap_err();
        assert_eq!(problem["code"], "invalid");
        assert!(problem["detail"].as_str().unwrap().contains("from 1 to"), "{problem}");
    }
    rig.stop().await;
}

#[tokio::test]
async fn a_key_is_known_while_its_trigger_waits_behind_another_and_the_server_has_forgotten_it() {
    let rig = Rig::start(&[Role::Api]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("a")]})).await.unwrap();
    let trigger =
        async |key: &str| rig.ask("job", "trigger", json!({"id": "a", "key": key})).await.unwrap();
    let first = trigger("order-1").await;
    // Stored anew, so that the server does not know the message by its id.
    let buckets = rig.buckets().await;
    let (js, names) = (buckets.nats().js(), buckets.nats().names());
    let (stream, subject) = (names.triggers_stream(), names.trigger(&JobId::new("a").unwrap()));
    let stored = last_by_subject(js, &stream, &subject).await.unwrap().unwrap();
    assert!(delete_message(js, &stream, stored.seq).await.unwrap());
    buckets.publisher().publish(Draft::new(subject, stored.payload)).await.unwrap();
    trigger("order-2").await;
    let again = trigger("order-1").await;
    assert_eq!((&again["run"], &again["created"]), (&first["run"], &json!(false)));
    rig.stop().await;
}

#[tokio::test]
async fn a_run_is_named_by_the_key_that_it_was_triggered_with() {
    let rig = Rig::start(&[Role::Scheduler, Role::LogWriter, Role::Api]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("a"), spec("b")]})).await.unwrap();
    let mut runs = Vec::new();
    for (job, when) in [("a", json!("1h")), ("b", Value::Null)] {
        let mut trigger = json!({"id": job, "key": "order-1"});
        if when.is_string() {
            trigger["in"] = when;
        }
        runs.push(rig.ask("job", "trigger", trigger).await.unwrap()["run"].clone());
    }
    for (run, (job, state)) in runs.iter().zip([("a", "scheduled"), ("b", "waiting")]) {
        rig.run_in_state(run, state).await;
        let named = json!({"job": job, "key": "order-1"});
        assert_eq!(rig.ask("run", "get", named.clone()).await.unwrap()["run"], *run);
        assert_eq!(rig.ask("run", "logs", named).await.unwrap()["ended"], false);
    }
    let nobody = rig.ask("run", "get", json!({"job": "a", "key": "order-2"})).await.unwrap_err();
    assert_eq!(
        (&nobody["code"], &nobody["title"]),
        (&json!("not_found"), &json!("There is no such run"))
    );
    for wrong in [json!({"key": "order-1"}), json!({"run": runs[0], "key": "order-1"})] {
        assert_eq!(rig.ask("run", "get", wrong).await.unwrap_err()["code"], "invalid");
    }
    rig.stop().await;
}
