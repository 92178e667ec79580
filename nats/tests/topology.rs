//! Streams, buckets and consumers are made once, compared, and changed only when asked.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::time::Duration;

use futures::future::join_all;
use serde_json::{Value, json};
use taskparty_common::name::{App, Handler, Prefix};
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::consume::{Pull, PullConfig};
use taskparty_nats::history::stream_info;
use taskparty_nats::lease;
use taskparty_nats::publish::{Draft, Publisher};
use taskparty_nats::server::{Cluster, ClusterConfig, Search, Server, ServerConfig, find};
use taskparty_nats::topology::{Kind, Missing, Outcome, Topology, TopologyConfig, TopologyError};
use uuid::Uuid;

fn server_config() -> ServerConfig {
    ServerConfig::new(find(&Search::from_env()).expect("nats/install.sh has been run").path)
}

async fn on(server: &Server) -> Nats {
    connect(&ConnectConfig::new(server.url())).await.unwrap()
}

fn names() -> (App, Handler) {
    (App::new("order-service").unwrap(), Handler::new("settle").unwrap())
}

async fn config_of(nats: &Nats, stream: &str) -> Value {
    let info: Value = nats.js().request(format!("STREAM.INFO.{stream}"), &()).await.unwrap();
    info["config"].clone()
}

#[tokio::test]
async fn what_is_made_is_what_the_files_say_and_a_second_call_makes_nothing() {
    let server = Server::start(server_config()).await.unwrap();
    let nats = on(&server).await;
    let topology = Topology::new(nats.clone(), TopologyConfig::default());
    let (app, handler) = names();

    assert_eq!(topology.differences().await.unwrap().len(), topology.expected().len());
    assert_eq!(topology.create_missing().await.unwrap(), topology.expected());
    topology.ensure_handler(&app, &handler).await.unwrap();
    topology.ensure_handler(&app, &Handler::new("other").unwrap()).await.unwrap();
    assert_eq!(topology.differences().await.unwrap(), []);
    assert_eq!(topology.create_missing().await.unwrap(), []);
    assert_eq!(topology.apply().await.unwrap(), []);

    // The buckets are buckets, for the client and so for the nats CLI.
    for bucket in ["jobs", "fires", "cursors", "overlap", "executors", "schedulers"] {
        nats.js().get_key_value(format!("taskparty_{bucket}")).await.unwrap();
    }
    assert_eq!(
        nats.js().get_key_value("taskparty_jobs").await.unwrap().status().await.unwrap().history(),
        10
    );
}

#[tokio::test]
async fn two_installations_share_an_account() {
    let server = Server::start(server_config()).await.unwrap();
    let first = Topology::new(on(&server).await, TopologyConfig::default());
    let config = ConnectConfig {
        prefix: Prefix::new("acme-2").unwrap(),
        ..ConnectConfig::new(server.url())
    };
    let second = Topology::new(connect(&config).await.unwrap(), TopologyConfig::default());
    let (app, handler) = names();
    for topology in [&first, &second] {
        topology.create_missing().await.unwrap();
        topology.ensure_handler(&app, &handler).await.unwrap();
        assert_eq!(topology.differences().await.unwrap(), []);
    }
}

#[tokio::test]
async fn a_difference_is_reported_and_only_apply_changes_it() {
    let server = Server::start(server_config()).await.unwrap();
    let nats = on(&server).await;
    let mut small = TopologyConfig {
        alerts_bytes: 1 << 20,
        lease: Duration::from_secs(10),
        ..Default::default()
    };
    let before = Topology::new(nats.clone(), small.clone());
    let (app, handler) = names();
    before.create_missing().await.unwrap();
    before.ensure_handler(&app, &handler).await.unwrap();
    nats.js().delete_stream("TASKPARTY_LOGS").await.unwrap();
    // What an operator has set and we say nothing about must stay.
    let mut alerts = config_of(&nats, "TASKPARTY_ALERTS").await;
    alerts["max_msgs"] = json!(77);
    let _: Value = nats.js().request("STREAM.UPDATE.TASKPARTY_ALERTS", &alerts).await.unwrap();

    small.alerts_bytes = 2 << 20;
    small.lease = Duration::from_secs(20);
    let after = Topology::new(nats.clone(), small);
    assert_eq!(after.create_missing().await.unwrap().len(), 1, "only the missing stream is made");
    nats.js().delete_stream("TASKPARTY_LOGS").await.unwrap();
    let found = after.differences().await.unwrap();
    let seen: Vec<_> =
        found.iter().map(|d| (d.kind, d.name.as_str(), d.field.as_deref(), &d.found)).collect();
    assert_eq!(
        seen,
        [
            (Kind::Stream, "TASKPARTY_LOGS", None, &Value::Null),
            (Kind::Stream, "TASKPARTY_ALERTS", Some("max_bytes"), &json!(1 << 20)),
            (
                Kind::Consumer,
                "TASKPARTY_DISPATCH_order-service/settle",
                Some("ack_wait"),
                &json!(10_000_000_000_i64)
            ),
        ]
    );

    let done = after.apply().await.unwrap();
    let outcomes: Vec<_> = done.iter().map(|applied| &applied.outcome).collect();
    assert_eq!(outcomes, [&Outcome::Created, &Outcome::Changed, &Outcome::Changed]);
    assert_eq!(after.differences().await.unwrap(), []);
    assert_eq!(config_of(&nats, "TASKPARTY_ALERTS").await["max_msgs"], 77);
    assert_eq!(serde_json::to_value(&done[1]).unwrap()["outcome"], "changed");
}

#[tokio::test]
async fn what_cannot_be_changed_is_reported_and_does_not_hold_up_the_rest() {
    let server = Server::start(server_config()).await.unwrap();
    let nats = on(&server).await;
    let odd = json!({"name": "TASKPARTY_ALERTS", "subjects": ["taskparty.alert.*"], "storage": "memory", "max_age": 0});
    let made: Value = nats.js().request("STREAM.CREATE.TASKPARTY_ALERTS", &odd).await.unwrap();
    assert_eq!(made["error"], Value::Null);
    let topology = Topology::new(nats, TopologyConfig::default());
    topology.create_missing().await.unwrap();

    let done = topology.apply().await.unwrap();
    let of =
        |field: &str| done.iter().find(|a| a.difference.field.as_deref() == Some(field)).unwrap();
    assert!(matches!(of("storage").outcome, Outcome::Refused { .. }));
    assert_eq!(of("max_age").outcome, Outcome::Changed);
    let left = topology.differences().await.unwrap();
    assert_eq!(left.iter().map(|d| d.field.as_deref()).collect::<Vec<_>>(), [Some("storage")]);
}

#[tokio::test]
async fn a_deleted_stream_is_made_again_once_it_is_forgotten() {
    let server = Server::start(server_config()).await.unwrap();
    let nats = on(&server).await;
    let topology = Topology::new(nats.clone(), TopologyConfig::default());
    let (app, handler) = names();
    topology.ensure_handler(&app, &handler).await.unwrap();
    nats.js().delete_stream("TASKPARTY_DISPATCH_order-service").await.unwrap();
    topology.forget(&app);
    // Many fires find at once that it is missing: it is made, and reported, once.
    let found = join_all((0..20).map(|_| topology.ensure_handler(&app, &handler))).await;
    assert!(found.iter().all(Result::is_ok), "{found:?}");
    let stream = "TASKPARTY_DISPATCH_order-service";
    assert_eq!(topology.take_made_again(), [stream, &format!("{stream}/settle")]);
    assert_eq!(config_of(&nats, "TASKPARTY_DISPATCH_order-service").await["max_consumers"], 10_000);
}

/// A server takes a stream off its list first and its files away last, a consumer's before the
/// stream's: with many of them it takes long enough for a stream to be made in between. Such a one
/// takes a message, and no more when that is acked.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_is_made_again_while_it_is_still_being_deleted_takes_messages() {
    let server = Server::start(server_config()).await.unwrap();
    let (nats, other) = (on(&server).await, on(&server).await);
    let topology = Topology::new(nats.clone(), TopologyConfig::default());
    let (app, handler) = names();
    for n in 0..500 {
        let handler = Handler::new(&format!("handler-{n}")).unwrap();
        topology.ensure_handler(&app, &handler).await.unwrap();
    }
    let stream = nats.names().dispatch_stream(&app);
    let before = stream_info(nats.js(), &stream).await.unwrap().created;
    let deletion = tokio::spawn({
        let stream = stream.clone();
        async move { other.js().delete_stream(stream).await.unwrap() }
    });
    let is_new = async || stream_info(nats.js(), &stream).await.is_ok_and(|s| s.created != before);
    while !is_new().await || !deletion.is_finished() {
        // As each fire does that finds no stream.
        topology.forget(&app);
        let _ = topology.ensure_handler(&app, &handler).await;
    }
    let publisher = Publisher::start(nats.client()).await.unwrap();
    let mut pull = Pull::new(nats.js(), &stream, handler.as_str(), PullConfig::default());
    for _ in 0..3 {
        let subject = nats.names().dispatch(&app, &handler, Uuid::new_v4(), 0, 1);
        publisher.publish(Draft::new(subject, "work")).await.unwrap();
        let work = pull.next(1).await.unwrap().delivery;
        lease::ack(&publisher, &work, Duration::from_secs(5)).await.unwrap();
    }
}

#[tokio::test]
async fn many_nodes_make_one_topology_in_a_cluster_stored_three_times() {
    let mut cluster = Cluster::start(ClusterConfig::new(server_config().binary)).await.unwrap();
    let mut nodes = Vec::new();
    for _ in 0..4 {
        let nats = connect(&ConnectConfig::new(cluster.url())).await.unwrap();
        nodes.push(Topology::new(
            nats,
            TopologyConfig { deadline: Duration::from_secs(30), ..Default::default() },
        ));
    }
    let (app, handler) = names();
    let made = join_all(nodes.iter().map(Topology::create_missing)).await;
    assert!(made.iter().all(Result::is_ok), "{made:?}");
    assert!(
        join_all(nodes.iter().map(|node| node.ensure_handler(&app, &handler)))
            .await
            .iter()
            .all(Result::is_ok)
    );
    assert_eq!(nodes[0].differences().await.unwrap(), []);
    assert!(
        nodes[0]
            .expected()
            .iter()
            .all(|d| d.kind == Kind::Consumer || d.config["num_replicas"] == 3)
    );

    // The leader dies: what is asked during the election is done after it.
    let leader = cluster.leader().await.unwrap();
    cluster.node(leader).kill();
    let late = Handler::new("late").unwrap();
    nodes[1].ensure_handler(&app, &late).await.unwrap();
}

#[tokio::test]
async fn failures_name_the_stream_and_what_to_do() {
    let small = ServerConfig { max_store: 64 << 20, ..server_config() };
    let server = Server::start(small).await.unwrap();
    let error = Topology::new(on(&server).await, TopologyConfig::default())
        .create_missing()
        .await
        .unwrap_err();
    assert!(
        matches!(&error, TopologyError::Limit { name, .. } if name == "TASKPARTY_RESULTS"),
        "{error}"
    );

    let server = Server::start(server_config()).await.unwrap();
    let config = TopologyConfig {
        replicas: Some(3),
        deadline: Duration::from_secs(1),
        ..Default::default()
    };
    let error = Topology::new(on(&server).await, config).create_missing().await.unwrap_err();
    assert!(matches!(&error, TopologyError::Peers { replicas: 3, .. }), "{error}");

    let users =
        "accounts { A { jetstream: enabled, users: [{user: bob, password: pw, permissions: {
        publish: [\"$JS.API.INFO\", \"$JS.API.STREAM.INFO.*\"], subscribe: [\"_INBOX.>\"] }}] } }";
    let server =
        Server::start(ServerConfig { extra: users.into(), ..server_config() }).await.unwrap();
    let nats =
        connect(&ConnectConfig::new(format!("nats://bob:pw@{}", server.address()))).await.unwrap();
    let error = Topology::new(nats, TopologyConfig::default()).create_missing().await.unwrap_err();
    assert!(
        matches!(&error, TopologyError::Denied { action, .. } if action.contains("STREAM.CREATE")),
        "{error}"
    );
}

#[tokio::test]
async fn what_is_deleted_by_hand_is_made_again_and_old_acks_do_no_harm() {
    let server = Server::start(server_config()).await.unwrap();
    let nats = on(&server).await;
    let topology = Topology::new(nats.clone(), TopologyConfig::default());
    topology.create_missing().await.unwrap();
    let (app, handler) = names();
    topology.ensure_handler(&app, &handler).await.unwrap();
    assert_eq!(topology.missing().await.unwrap(), []);

    let publisher = Publisher::start(nats.client()).await.unwrap();
    let stream = nats.names().dispatch_stream(&app);
    let subject = |run: Uuid| nats.names().dispatch(&app, &handler, run, 0, 1);
    let mut pull = Pull::new(nats.js(), &stream, handler.as_str(), PullConfig::default());
    let mut old = Vec::new();
    for _ in 0..3 {
        publisher.publish(Draft::new(subject(Uuid::new_v4()), "old")).await.unwrap();
        old.push(pull.next(1).await.unwrap().delivery);
    }
    nats.js().delete_stream(&stream).await.unwrap();
    nats.js().delete_stream("KV_taskparty_cursors").await.unwrap();
    nats.js().delete_consumer_from_stream("schedulers", "TASKPARTY_TRIGGERS").await.unwrap();
    let missing = topology.missing().await.unwrap();
    let names: Vec<&str> = missing.iter().map(Missing::name).collect();
    let consumer = format!("{stream}/{handler}");
    assert_eq!(
        names,
        ["KV_taskparty_cursors", &stream, "TASKPARTY_TRIGGERS/schedulers", &consumer]
    );
    for missing in &missing {
        assert!(topology.make_again(missing).await.unwrap());
    }
    assert_eq!(
        (topology.missing().await.unwrap(), topology.differences().await.unwrap()),
        (vec![], vec![])
    );

    // Who still has work of the deleted stream acks it: before and after new work is there.
    let mut new = Vec::new();
    for delivery in &old {
        lease::ack(&publisher, delivery, Duration::from_secs(5)).await.unwrap();
        let run = Uuid::new_v4();
        new.push(subject(run));
        publisher.publish(Draft::new(subject(run), "new")).await.unwrap();
    }
    for delivery in &old {
        lease::ack(&publisher, delivery, Duration::from_secs(5)).await.unwrap();
    }
    for subject in new {
        let received = pull.next(1).await.unwrap();
        assert_eq!(received.message.subject.as_str(), subject);
        assert!(received.delivery.stream_seq > old[2].stream_seq);
    }
}
