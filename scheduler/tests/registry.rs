//! Executors that live are known; those that fell silent are not.

use std::time::{Duration, Instant};

use serde_json::json;
use taskparty_common::name::{App, Handler};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::connect::{ConnectConfig, connect};
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::{Topology, TopologyConfig};
use taskparty_scheduler::registry::Registry;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

#[tokio::test]
async fn an_executor_that_falls_silent_is_absent_once_its_entry_is_too_old() {
    let binary = find(&Search::from_env()).unwrap();
    let server = Server::start(ServerConfig::new(binary.path)).await.unwrap();
    let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
    let config = TopologyConfig { results_bytes: 64 << 20, ..TopologyConfig::default() };
    Topology::new(nats.clone(), config).create_missing().await.unwrap();
    let buckets = Buckets::new(nats.clone(), Publisher::start(nats.client()).await.unwrap());
    let (registry, stop) = (Registry::default(), CancellationToken::new());
    let watching = tokio::spawn(registry.clone().run(buckets.clone(), stop.clone()));
    let (app, handler) = (App::new("orders").unwrap(), Handler::new("daily").unwrap());
    registry.ready().await;
    assert!(registry.absent_since(&app, &handler).is_some());

    let begin = Instant::now();
    let entry = json!({
        "v": 1, "app": app, "instance": "e1", "started_at": "2026-01-01T00:00:00Z",
        "handlers": { "daily": { "slots": 4 } },
    });
    buckets.put(Bucket::Executors, "orders.e1", entry.to_string(), None).await.unwrap();
    buckets.put(Bucket::Executors, "orders.e2", "nonsense", None).await.unwrap();
    let mut changes = registry.changed();
    let comes = async {
        while !registry.has(&app, &handler) {
            changes.changed().await.unwrap();
        }
    };
    timeout(Duration::from_secs(10), comes).await.expect("it is known");
    assert_eq!(registry.absent_since(&app, &handler), None);

    let goes = async {
        while registry.has(&app, &handler) {
            changes.changed().await.unwrap();
        }
    };
    timeout(Duration::from_secs(60), goes).await.expect("it is known to have gone");
    assert!(registry.absent_since(&app, &handler).is_some_and(|since| since > begin));
    stop.cancel();
    watching.await.unwrap();
}
