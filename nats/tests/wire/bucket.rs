use std::collections::BTreeMap;
use std::time::Duration;

use taskparty_nats::bucket::{Buckets, Change, Entry, Watch};
use taskparty_nats::proxy::{Direction, Proxy};
use taskparty_nats::subject::Bucket;
use tokio_util::sync::CancellationToken;

use crate::support::{bucket, buckets, connected, server, soon, until};

const JOBS: Bucket = Bucket::Jobs;

fn watch(buckets: &Buckets, filter: &str) -> Watch {
    Watch::start(buckets, JOBS, filter, &CancellationToken::new())
}

/// What a watcher who applies the changes has, once it is `wanted`.
async fn converges(
    watch: &mut Watch,
    have: &mut BTreeMap<String, String>,
    wanted: &[(&str, &str)],
) {
    let wanted: BTreeMap<String, String> =
        wanted.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    while *have != wanted {
        match soon(watch.next()).await.expect("the watch goes on") {
            Change::Ready => panic!("ready comes once, before"),
            Change::Entry(entry) => match entry.value {
                Some(value) => {
                    have.insert(entry.key.to_string(), String::from_utf8(value.to_vec()).unwrap());
                }
                None => assert!(have.remove(&*entry.key).is_some(), "{} was not there", entry.key),
            },
        }
    }
}

#[tokio::test]
async fn all_that_is_there_comes_then_ready_then_changes() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    bucket(&nats, JOBS, None).await;
    let buckets = buckets(&nats).await;
    let mut empty = watch(&buckets, ">");
    assert_eq!(soon(empty.next()).await, Some(Change::Ready));
    for (key, value) in [("a", "1"), ("b", "1"), ("a", "2"), ("gone", "1")] {
        buckets.put(JOBS, key, value, None).await.unwrap();
    }
    buckets.delete(JOBS, "gone").await.unwrap();
    let keys = |entries: Vec<Entry>| {
        entries.into_iter().map(|entry| entry.key.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(keys(soon(buckets.entries(JOBS, ">")).await.unwrap()), ["a", "b"]);
    let mut full = watch(&buckets, ">");
    for key in ["b", "a"] {
        let Some(Change::Entry(entry)) = soon(full.next()).await else { panic!("a value") };
        assert_eq!(*entry.key, *key);
    }
    assert_eq!(soon(full.next()).await, Some(Change::Ready));
    buckets.put(JOBS, "c", "1", None).await.unwrap();
    buckets.purge(JOBS, "a").await.unwrap();
    for (key, value) in [("c", true), ("a", false)] {
        let Some(Change::Entry(entry)) = soon(full.next()).await else { panic!("a change") };
        assert_eq!((&*entry.key, entry.value.is_some()), (key, value));
    }
    converges(&mut empty, &mut BTreeMap::new(), &[("b", "1"), ("c", "1")]).await;
}

#[tokio::test]
async fn what_vanished_during_an_outage_is_told_as_deleted() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    bucket(&direct, JOBS, None).await;
    let writer = buckets(&direct).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let mut watch = watch(&buckets(&connected(&proxy.url()).await).await, ">");
    assert_eq!(soon(watch.next()).await, Some(Change::Ready));
    let mut have = BTreeMap::new();
    for (key, value) in [("a", "1"), ("b", "1"), ("c", "1")] {
        writer.put(JOBS, key, value, None).await.unwrap();
    }
    converges(&mut watch, &mut have, &[("a", "1"), ("b", "1"), ("c", "1")]).await;

    proxy.refuse();
    writer.put(JOBS, "a", "2", None).await.unwrap();
    writer.forget(JOBS, "b").await.unwrap();
    writer.delete(JOBS, "c").await.unwrap();
    writer.put(JOBS, "d", "1", None).await.unwrap();
    proxy.heal();
    converges(&mut watch, &mut have, &[("a", "2"), ("d", "1")]).await;
}

#[tokio::test]
async fn a_watch_outlives_a_restart_a_lost_consumer_and_a_bucket_made_again() {
    let mut server = server().await;
    let nats = connected(&server.url()).await;
    let buckets = buckets(&nats).await;
    let mut watch = watch(&buckets, "x.*");
    bucket(&nats, JOBS, None).await;
    assert_eq!(soon(watch.next()).await, Some(Change::Ready), "a bucket that comes late");
    let mut have = BTreeMap::new();
    buckets.put(JOBS, "x.a", "1", None).await.unwrap();
    buckets.put(JOBS, "y.a", "1", None).await.unwrap();
    converges(&mut watch, &mut have, &[("x.a", "1")]).await;

    server.restart().await.unwrap();
    buckets.put(JOBS, "x.b", "1", None).await.unwrap();
    converges(&mut watch, &mut have, &[("x.a", "1"), ("x.b", "1")]).await;

    let stream = nats.js().get_stream(nats.names().bucket_stream(JOBS)).await.unwrap();
    let names: Vec<String> =
        futures::TryStreamExt::try_collect(stream.consumer_names()).await.unwrap();
    for name in names {
        stream.delete_consumer(&name).await.unwrap();
    }
    buckets.put(JOBS, "x.c", "1", None).await.unwrap();
    converges(&mut watch, &mut have, &[("x.a", "1"), ("x.b", "1"), ("x.c", "1")]).await;

    nats.js().delete_stream(nats.names().bucket_stream(JOBS)).await.unwrap();
    bucket(&nats, JOBS, None).await;
    buckets.put(JOBS, "x.c", "2", None).await.unwrap();
    converges(&mut watch, &mut have, &[("x.c", "2")]).await;
}

#[tokio::test]
async fn silence_is_measured() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    bucket(&direct, JOBS, None).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let mut watch = watch(&buckets(&connected(&proxy.url()).await).await, ">");
    assert_eq!(soon(watch.next()).await, Some(Change::Ready));
    let liveness = watch.liveness();
    let long = Duration::from_millis(2_500);
    let loud = tokio::time::timeout(long, until("silence", async || liveness.silent_for() > long));
    assert!(loud.await.is_err(), "heartbeats are heard");
    proxy.hold(Direction::ToClient);
    until("silence", async || liveness.silent_for() > long).await;
    proxy.heal();
    until("a sign of life", async || liveness.silent_for() < Duration::from_millis(500)).await;
}
