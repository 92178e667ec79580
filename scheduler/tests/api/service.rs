//! The service itself: what it is asked wrongly, how it is found, and the installation that it shows.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use taskparty_common::dispatch::SchedulerEntry;
use taskparty_common::name::Instance;
use taskparty_nats::clock::Clock;
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::Role;
use taskparty_scheduler::api::ENDPOINTS;

use crate::rig::{Rig, spec};

#[tokio::test]
async fn garbage_gets_an_error_and_harms_nobody() {
    let rig = Rig::start(&[Role::Api]).await;
    let deep = format!("{{\"jobs\": {}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
    let garbage = [
        "\u{0}\u{1}",
        "{",
        "[]",
        "null",
        "7",
        "{\"id\": 7}",
        "{\"nonsense\": 1}",
        "{\"jobs\": [1]}",
        &deep,
    ];
    for (noun, verb) in ENDPOINTS {
        for body in garbage {
            let message = rig.send(noun, verb, body.to_owned()).await;
            let headers = message.headers.expect("an error is said in the headers");
            let code: u16 =
                headers.get("Nats-Service-Error-Code").unwrap().as_str().parse().unwrap();
            assert!((400..500).contains(&code), "{noun}.{verb} {body:.20}: {code}");
            let line = headers.get("Nats-Service-Error").unwrap().to_string();
            let problem: Value = serde_json::from_slice(&message.payload).unwrap();
            let detail: String = problem["detail"].as_str().unwrap().chars().take(40).collect();
            assert!(line.replace(' ', "").contains(&detail.replace([' ', '\n'], "")), "{line}");
            assert!(problem["code"].is_string() && problem["detail"].is_string(), "{problem}");
        }
        // What no request is needed for is answered, and so is no body at all.
        let message = rig.send(noun, verb, "").await;
        serde_json::from_slice::<Value>(&message.payload).unwrap();
    }
    assert_eq!(
        rig.ask("job", "list", json!({})).await.unwrap(),
        json!({"items": [], "next": null})
    );
    rig.stop().await;
}

#[tokio::test]
async fn the_service_is_found_as_any_nats_service_is() {
    let rig = Rig::start(&[Role::Api]).await;
    let pong = rig.nats.client().request("$SRV.INFO.taskparty", "".into()).await.unwrap();
    let info: Value = serde_json::from_slice(&pong.payload).unwrap();
    let subjects = info["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|endpoint| endpoint["subject"].as_str().unwrap());
    let subjects: BTreeSet<&str> = subjects.collect();
    assert!(
        subjects.contains("taskparty.api.job.apply") && subjects.len() == ENDPOINTS.len(),
        "{subjects:?}"
    );
    rig.stop().await;
}

#[tokio::test]
async fn a_scheduler_that_lags_is_named_and_the_edit_is_not_called_confirmed() {
    let rig = Rig::start(&[Role::Api, Role::Scheduler]).await;
    let applied = rig.ask("job", "apply", json!({"jobs": [spec("one")]})).await.unwrap();
    assert_eq!(applied["confirmed"], true);
    let entry = SchedulerEntry {
        late: None,
        sent_at: None,
        v: 1,
        instance: Instance::new("laggard").unwrap(),
        jobs_revision: 0,
        jobs: 0,
        host: "elsewhere".into(),
        pid: 1,
        version: "0".into(),
        started_at: Clock::system().now(),
    };
    let entry = serde_json::to_vec(&entry).unwrap();
    rig.buckets().await.put(Bucket::Schedulers, "laggard", entry, None).await.unwrap();
    let paused = rig.ask("job", "pause", json!({"id": "one"})).await.unwrap();
    assert_eq!((&paused["changed"], &paused["confirmed"]), (&json!(true), &json!(false)));
    assert_eq!(paused["waiting_for"], json!(["laggard"]));
    rig.stop().await;
}

#[tokio::test]
async fn the_topology_lists_what_jobs_and_executors_name_and_makes_it_on_demand() {
    let rig = Rig::start(&[Role::Api]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("one")]})).await.unwrap();
    let entry = json!({
        "v": 1, "app": "mail", "instance": "m1", "handlers": {"send": {"slots": 1}},
        "started_at": Clock::system().now(),
    });
    let buckets = rig.buckets().await;
    buckets.put(Bucket::Executors, "mail.m1", entry.to_string(), None).await.unwrap();
    let names = [
        "TASKPARTY_DISPATCH_order-service",
        "TASKPARTY_DISPATCH_order-service/settle",
        "TASKPARTY_DISPATCH_mail",
        "TASKPARTY_DISPATCH_mail/send",
        "TASKPARTY_DISPATCH_mail/on_m1",
    ];
    let states = async |verb: &str| {
        let shown = rig.ask("topology", verb, json!({})).await.unwrap();
        let items = shown["items"].as_array().unwrap().clone();
        names.map(|name| {
            let item = items.iter().find(|item| item["name"] == name);
            item.unwrap_or_else(|| panic!("{name}: {shown}"))["state"].as_str().unwrap().to_owned()
        })
    };
    assert_eq!(states("show").await, ["later", "later", "missing", "missing", "missing"]);
    assert_eq!(states("apply").await, ["created"; 5]);
    assert_eq!(states("show").await, ["ok"; 5]);
    rig.stop().await;
}
