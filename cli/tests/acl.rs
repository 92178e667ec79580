//! The rights that `topology acl` prints are enough for a whole installation, and no more.

#![allow(clippy::unwrap_used, reason = "what helps tests is a test")]

mod support;

use std::time::Duration;

use async_nats::jetstream;
use support::{Desk, Rig, job, server_config};
use taskparty_executor::{
    CancellationToken, ConnectConfig, Context, Executor, HandlerError, Secret,
};
use taskparty_nats::server::ServerConfig;
use taskparty_scheduler::Role;

async fn settle(ctx: Context, _: serde_json::Value) -> Result<u32, HandlerError> {
    ctx.info("settling");
    ctx.progress(1, Some(2), "half");
    // Long enough for the lease to be extended, and for a started record.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    Ok(7)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_with_the_rights_that_are_printed() {
    let desk = Desk::new();
    let acl = ["topology", "acl", "--app", "order-service"];
    let users = desk.run(&acl).await.exits(0).stdout;
    let users = users
        .replace("$TASKPARTY_ORDER_SERVICE_PASSWORD", "executor")
        .replace("$TASKPARTY_SCHEDULER_PASSWORD", "node");
    let extra = format!("authorization {{ users: [\n{users}] }}\n");
    let config = ServerConfig { extra, ..server_config() };
    let roles = [Role::Scheduler, Role::LogWriter, Role::Api];
    let mut rig = Rig::start_on(config, "scheduler:node", &roles).await;
    // People use the node's user here; what they need themselves is in nats/conf/accounts.conf.
    rig.desk.inbox("_INBOX_scheduler");

    let executor = ConnectConfig {
        user: Some("order-service".into()),
        password: Some(Secret::new("executor")),
        inbox_prefix: Some("_INBOX_order-service".into()),
        ..ConnectConfig::new(rig.url(""))
    };
    let stop = CancellationToken::new();
    let running = Executor::new("order-service")
        .unwrap()
        .handler("settle", settle)
        .connect(executor)
        .run(stop.clone().cancelled_owned());
    let running = tokio::spawn(running);

    // Which probes, and goes to the executor's own consumer.
    rig.desk.file("job.yaml", &job("demand", "params: {}\nroute: failover\n"));
    rig.run(&["job", "apply", "-f", "job.yaml"]).await.exits(0);
    let live = support::until(async || {
        let live = rig.run(&["executor", "list", "-o", "json"]).await.exits(0).json();
        live["items"][0]["instance"].as_str().map(ToOwned::to_owned)
    })
    .await;
    rig.run(&["job", "trigger", "demand", "--key", "k"]).await.exits(0);
    let named = ["--job", "demand", "--key", "k", "-o", "json"];
    let run = support::until(async || {
        let ran = rig.run(&[&["run", "get"], &named[..]].concat()).await;
        (ran.code == 0).then(|| ran.json()).filter(|run| run["state"] == "succeeded")
    })
    .await;
    assert_eq!(
        (&run["tries"][0]["output"], &run["tries"][0]["target"]),
        (&7.into(), &live[..].into())
    );
    let pinned = ["job", "trigger", "demand", "--instance", &live, "--key", "pinned"];
    rig.run(&pinned).await.exits(0);
    support::until(async || {
        let ran = rig.run(&["run", "get", "--job", "demand", "--key", "pinned"]).await;
        ran.stdout.contains("succeeded").then_some(())
    })
    .await;
    let gone = rig.run(&["job", "trigger", "demand", "--instance", "long-gone"]).await.exits(2);
    gone.says("long-gone").says("no live executor of order-service/settle").says(&live);
    let logs = rig.run(&[&["run", "logs"], &named[..]].concat()).await.exits(0);
    assert!(logs.stdout.contains("settling"), "{logs:#?}");
    rig.run(&["doctor"]).await.exits(0);
    rig.run(&["topology", "apply"]).await.exits(0);

    // And no more: an executor makes nothing and reads no definition.
    let options = async_nats::ConnectOptions::new()
        .user_and_password("order-service".into(), "executor".into())
        .custom_inbox_prefix("_INBOX_order-service");
    let mut intruder = jetstream::new(options.connect(rig.url("")).await.unwrap());
    intruder.set_timeout(Duration::from_millis(500));
    assert!(intruder.create_stream("X").await.is_err());
    assert!(intruder.get_key_value("taskparty_jobs").await.is_err());

    stop.cancel();
    tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap().unwrap();
    rig.stop().await;
}

#[tokio::test]
async fn the_rights_follow_the_prefix_and_the_app_is_checked() {
    let desk = Desk::new();
    let acl = ["topology", "acl", "--app", "mail", "--prefix", "team-2", "-o", "json"];
    let json = desk.run(&acl).await.exits(0).json();
    let publish = json["executors"]["publish"].as_array().unwrap();
    assert!(publish.contains(&"team-2.result.mail".into()), "{json}");
    assert!(!json.to_string().contains("taskparty"), "{json}");
    desk.run(&["topology", "acl", "--app", "a.b"]).await.exits(2).says("--app");
}
