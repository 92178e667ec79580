//! Triggering a job from a service, against what the API answers.

use std::time::Duration;

use async_nats::HeaderMap;
use futures::StreamExt;
use serde_json::{Value, json};
use taskparty_executor::{Client, ClientError};
use uuid::Uuid;

use crate::rig::Rig;

/// Answers each request with what `answer` makes of it; none: not at all.
async fn serve(rig: &Rig, answer: impl Fn(Value) -> Option<(HeaderMap, Value)> + Send + 'static) {
    let client = rig.nats.client().clone();
    let mut requests = client.subscribe(rig.nats.names().api("job", "trigger")).await.unwrap();
    client.flush().await.unwrap();
    tokio::spawn(async move {
        while let Some(request) = requests.next().await {
            let Some((headers, body)) = answer(serde_json::from_slice(&request.payload).unwrap())
            else {
                continue;
            };
            let reply = request.reply.unwrap();
            client.publish_with_headers(reply, headers, body.to_string().into()).await.unwrap();
        }
    });
}

#[tokio::test]
async fn a_trigger_says_what_when_and_under_which_key_and_gives_the_run() {
    let rig = Rig::start().await;
    let run = Uuid::now_v7();
    serve(&rig, move |request| {
        let later = json!({"id": "report", "params": ["x"], "key": "k-1", "in": "1m30s",
            "instance": "web-1"});
        assert_eq!(request, later);
        Some((HeaderMap::new(), json!({"run": run, "more": 1})))
    })
    .await;
    let trigger = Client::new(rig.nats.clone()).trigger("report").params(&["x"]).unwrap();
    let trigger = trigger.key("k-1").after(Duration::from_secs(90)).instance("web-1");
    let made = trigger.send().await.unwrap();
    assert_eq!(made, run);
}

#[tokio::test]
async fn a_refusal_a_bad_name_and_silence_are_told_apart() {
    let rig = Rig::start().await;
    let client = Client::new(rig.nats.clone());
    let silent = client.trigger("report").deadline(Duration::from_millis(300)).send().await;
    assert!(matches!(silent, Err(ClientError::NoAnswer { .. })));
    assert!(matches!(client.trigger("a b").send().await, Err(ClientError::Name(_))));
    assert!(matches!(client.trigger("a").key("a.b").send().await, Err(ClientError::Name(_))));
    assert!(matches!(client.trigger("a").instance("").send().await, Err(ClientError::Name(_))));
    serve(&rig, |_| {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Service-Error-Code", "404");
        headers.insert("Nats-Service-Error", "there is no job report");
        Some((headers, json!({"code": "job_not_found", "title": "there is no job report"})))
    })
    .await;
    let refused = client.trigger("report").send().await.unwrap_err();
    assert_eq!(refused.to_string(), "there is no job report");
    assert!(matches!(refused, ClientError::Refused { code, .. } if code == "job_not_found"));
}
