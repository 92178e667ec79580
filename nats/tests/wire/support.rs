//! A server, a connection, and the streams that a test needs.

use std::future::Future;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy};
use taskparty_nats::bucket::Buckets;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::history::stream_info;
use taskparty_nats::publish::{Draft, PublishConfig, Publisher};
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::Bucket;

/// No test waits longer than this for anything.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn binary() -> std::path::PathBuf {
    find(&Search::from_env()).expect("nats/install.sh has been run").path
}

pub(crate) async fn server() -> Server {
    Server::start(ServerConfig::new(binary())).await.unwrap()
}

pub(crate) async fn connected(url: &str) -> Nats {
    connect(&ConnectConfig::new(url)).await.unwrap()
}

/// A publisher that gives up on an attempt soon, and on a message late.
pub(crate) async fn publisher(nats: &Nats) -> Publisher {
    let config =
        PublishConfig { attempt: Duration::from_millis(300), deadline: PATIENCE, in_flight: 256 };
    Publisher::start_with(nats.client(), config).await.unwrap()
}

pub(crate) async fn buckets(nats: &Nats) -> Buckets {
    Buckets::new(nats.clone(), publisher(nats).await)
}

/// A work queue `WORK` on `work.>`.
pub(crate) async fn work(nats: &Nats) {
    stream(nats, Config { retention: RetentionPolicy::WorkQueue, ..plain("WORK", "work.>") }).await;
}

pub(crate) fn plain(name: &str, subject: &str) -> Config {
    Config {
        name: name.into(),
        subjects: vec![subject.into()],
        num_replicas: 1,
        ..Config::default()
    }
}

pub(crate) async fn stream(nats: &Nats, config: Config) {
    nats.js().create_stream(config).await.unwrap();
}

/// A bucket as the topology makes it; with `markers` expired values leave a mark.
pub(crate) async fn bucket(nats: &Nats, bucket: Bucket, markers: Option<Duration>) {
    stream(nats, bucket_config(nats, bucket, markers)).await;
}

pub(crate) fn bucket_config(nats: &Nats, bucket: Bucket, markers: Option<Duration>) -> Config {
    Config {
        max_messages_per_subject: 1,
        discard: DiscardPolicy::New,
        allow_rollup: true,
        allow_direct: true,
        allow_message_ttl: true,
        subject_delete_marker_ttl: markers,
        ..plain(&nats.names().bucket_stream(bucket), &nats.names().key(bucket, ">"))
    }
}

/// A durable consumer `con` on `WORK`.
pub(crate) async fn consumer(nats: &Nats, ack_wait: Duration) {
    let config = pull::Config {
        durable_name: Some("con".into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait,
        ..pull::Config::default()
    };
    nats.js().create_consumer_on_stream(config, "WORK").await.unwrap();
}

pub(crate) async fn publish(
    publisher: &Publisher,
    subject: &str,
    bodies: impl IntoIterator<Item = String>,
) {
    for body in bodies {
        publisher.publish(Draft::new(subject.to_owned(), body)).await.unwrap();
    }
}

pub(crate) async fn messages(nats: &Nats, stream: &str) -> u64 {
    stream_info(nats.js(), stream).await.unwrap().messages
}

/// Waits until `check` is true.
pub(crate) async fn until<F: Future<Output = bool>>(what: &str, mut check: impl FnMut() -> F) {
    let waited = tokio::time::timeout(PATIENCE, async {
        while !check().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("never came: {what}"));
}

/// Waits for `future`, but not for ever.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("this takes too long")
}
