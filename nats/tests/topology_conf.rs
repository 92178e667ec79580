//! The configuration files that operators copy are valid, and the rights in the accounts example
//! are enough for what each part does, and no more.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{PullConsumer, pull};
use futures::StreamExt;
use serde_json::Value;
use taskparty_common::name::{App, Handler};
use taskparty_nats::connect::{ConnectConfig, Nats, Secret, connect};
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::topology::{Topology, TopologyConfig};

const CONF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/conf");
const USERS: [(&str, &str); 3] = [
    ("scheduler", "$TASKPARTY_SCHEDULER_PASSWORD"),
    ("order-service", "$TASKPARTY_ORDER_SERVICE_PASSWORD"),
    ("operator", "$TASKPARTY_OPERATOR_PASSWORD"),
];
const STREAM: &str = "TASKPARTY_DISPATCH_order-service";

fn binary() -> std::path::PathBuf {
    find(&Search::from_env()).expect("nats/install.sh has been run").path
}

#[test]
fn every_configuration_file_is_valid() {
    let mut seen = 0;
    for entry in std::fs::read_dir(CONF).unwrap() {
        let path = entry.unwrap().path();
        let mut check = Command::new(binary());
        check.args(["-t", "-c"]).arg(&path);
        check.envs(USERS.map(|(user, variable)| (variable.trim_start_matches('$'), user)));
        let output = check.output().unwrap();
        assert!(output.status.success(), "{path:?}: {}", String::from_utf8_lossy(&output.stderr));
        seen += 1;
    }
    assert!(seen >= 5, "{seen} files in nats/conf");
}

async fn server_with_accounts() -> Server {
    let mut extra = std::fs::read_to_string(Path::new(CONF).join("accounts.conf")).unwrap();
    for (user, variable) in USERS {
        extra = extra.replace(variable, &format!("\"{user}-pw\""));
    }
    Server::start(ServerConfig { extra, ..ServerConfig::new(binary()) }).await.unwrap()
}

async fn as_user(server: &Server, user: &str) -> Nats {
    let config = ConnectConfig {
        user: Some(user.to_owned()),
        password: Some(Secret::new(format!("{user}-pw"))),
        inbox_prefix: Some(format!("_INBOX_{user}")),
        request_deadline: Duration::from_millis(500),
        ..ConnectConfig::new(server.url())
    };
    connect(&config).await.unwrap()
}

async fn publish(nats: &Nats, subject: &str) -> bool {
    match nats.js().publish(subject.to_owned(), "{}".into()).await {
        Ok(ack) => ack.await.is_ok(),
        Err(_) => false,
    }
}

/// Whether the server refuses this, by its own word.
async fn refused(nats: &Nats, subject: &str) -> bool {
    let since = Instant::now();
    let answered = publish(nats, subject).await;
    !answered && nats.events().denied_since(subject, since).is_some()
}

#[tokio::test]
async fn a_scheduler_makes_everything_and_an_executor_does_its_work_and_nothing_else() {
    let server = server_with_accounts().await;
    let scheduler = as_user(&server, "scheduler").await;
    let topology = Topology::new(scheduler.clone(), TopologyConfig::default());
    let (app, settle) = (App::new("order-service").unwrap(), Handler::new("settle").unwrap());
    topology.create_missing().await.unwrap();
    topology.ensure_handler(&app, &settle).await.unwrap();
    topology.ensure_handler(&App::new("other").unwrap(), &settle).await.unwrap();
    assert_eq!(topology.differences().await.unwrap(), []);
    assert_eq!(topology.apply().await.unwrap(), []);
    let jobs = scheduler.js().get_key_value("taskparty_jobs").await.unwrap();
    jobs.put("j", "{}".into()).await.unwrap();
    assert!(jobs.get("j").await.unwrap().is_some());
    assert!(jobs.watch_with_history(">").await.unwrap().next().await.unwrap().is_ok());
    assert!(publish(&scheduler, "taskparty.dispatch.order-service.settle.r.0.1").await);

    let executor = as_user(&server, "order-service").await;
    let executors = executor.js().get_key_value("taskparty_executors").await.unwrap();
    executors.put("order-service.i1", "{}".into()).await.unwrap();
    let stream = executor.js().get_stream(STREAM).await.unwrap();
    let consumer: PullConsumer = stream.get_consumer::<pull::Config>("settle").await.unwrap();
    let mut batch = consumer.fetch().max_messages(1).messages().await.unwrap();
    let message = batch.next().await.unwrap().unwrap();
    assert!(publish(&executor, "taskparty.result.order-service").await);
    message.double_ack().await.unwrap();

    for subject in [
        "taskparty.dispatch.order-service.settle.r.0.2",
        "taskparty.result.other",
        "taskparty.trigger.j",
        "$KV.taskparty_jobs.j",
        "$KV.taskparty_executors.other.i1",
        "$JS.API.STREAM.CREATE.X",
        "$JS.API.CONSUMER.MSG.NEXT.TASKPARTY_DISPATCH_other.settle",
    ] {
        assert!(refused(&executor, subject).await, "an executor may publish to {subject}");
    }
    for subject in
        ["$JS.API.STREAM.DELETE.TASKPARTY_RESULTS", "$JS.API.STREAM.PURGE.TASKPARTY_RESULTS"]
    {
        assert!(refused(&scheduler, subject).await, "a scheduler may publish to {subject}");
    }
}

#[tokio::test]
async fn an_operator_asks_the_api_and_is_answered() {
    let server = server_with_accounts().await;
    let scheduler = as_user(&server, "scheduler").await;
    let mut asked = scheduler.client().subscribe("taskparty.api.job.list").await.unwrap();
    scheduler.client().flush().await.unwrap();
    let answering = tokio::spawn(async move {
        let question = asked.next().await.unwrap();
        scheduler.client().publish(question.reply.unwrap(), "{\"items\":[]}".into()).await.unwrap();
        scheduler.client().flush().await.unwrap();
    });

    let operator = as_user(&server, "operator").await;
    let answer = operator.client().request("taskparty.api.job.list", "{}".into()).await.unwrap();
    let answer: Value = serde_json::from_slice(&answer.payload).unwrap();
    assert_eq!(answer["items"], Value::Array(vec![]));
    answering.await.unwrap();
    assert!(refused(&operator, "taskparty.trigger.j").await);
}
