//! What others see of an executor: its entry, and its answers to probes.

use std::sync::Arc;

use serde_json::{Value, json};
use taskparty_executor::{Context, slots};
use tokio::sync::{Notify, Semaphore};

use crate::rig::{Rig, Started, instance, until, within};

#[tokio::test]
async fn an_executor_shows_itself_at_once_and_answers_for_its_room() {
    let rig = Rig::start().await;
    rig.make_consumer("wait").await;
    let (begun, go_on) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
    let (seen, open) = (begun.clone(), go_on.clone());
    let wait = move |_: Context, _: Value| {
        let (seen, open) = (seen.clone(), open.clone());
        async move {
            seen.notify_one();
            open.acquire().await?.forget();
            Ok(())
        }
    };
    let idle = |_: Context, _: Value| async move { Ok(()) };
    let executor = rig
        .executor()
        .instance(instance("web-1"))
        .version("1.2.3")
        .host("web")
        .handler_with("wait", slots(2), wait)
        .handler("idle", idle);
    let executor = Started::run(executor);
    let entry = until("the entry", async || rig.registered().await.pop()).await;
    assert_eq!((entry.app, entry.instance), (rig.app.clone(), instance("web-1")));
    assert_eq!(
        (entry.version.as_str(), entry.host.as_str(), entry.pid),
        ("1.2.3", "web", std::process::id())
    );
    let slots: Vec<_> = entry.handlers.iter().map(|(name, h)| (name.as_str(), h.slots)).collect();
    assert_eq!(slots, [("idle", 4), ("wait", 2)]);
    assert!(!entry.draining);

    rig.run("wait", json!(null)).await;
    within("the start", begun.notified()).await;
    let probe = async |question: Value| -> Value {
        let subject = rig.nats.names().probe(&rig.app, &instance("web-1"));
        let answer = rig.nats.client().request(subject, question.to_string().into()).await.unwrap();
        serde_json::from_slice(&answer.payload).unwrap()
    };
    assert_eq!(probe(json!({"job": "a-job"})).await, json!({"free": 5, "running": true}));
    assert_eq!(
        probe(json!({"job": "b", "handler": "wait"})).await,
        json!({"free": 1, "running": false})
    );
    until("the running job in the entry", async || {
        let entry = rig.registered().await.pop()?;
        (entry.handlers["wait"].running == ["a-job".parse().unwrap()]).then_some(())
    })
    .await;
    go_on.add_permits(1);
    executor.stop().await;
    assert!(rig.registered().await.is_empty());
}
