use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use taskparty_nats::connect::Nats;
use taskparty_nats::consume::{Pull, PullConfig};
use taskparty_nats::history::consumer_info;
use taskparty_nats::lease;
use taskparty_nats::proxy::Proxy;
use tokio::sync::Semaphore;

use crate::support::{
    PATIENCE, connected, consumer, publish, publisher, server, soon, until, work,
};

fn quick() -> PullConfig {
    PullConfig {
        heartbeat: Duration::from_millis(300),
        expires: Duration::from_secs(2),
        ..PullConfig::default()
    }
}

fn pull(nats: &Nats) -> Pull {
    Pull::new(nats.js(), "WORK", "con", quick())
}

fn bodies(numbers: std::ops::Range<usize>) -> impl Iterator<Item = String> {
    numbers.map(|n| n.to_string())
}

#[tokio::test]
async fn no_more_messages_come_than_there_are_free_slots() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    consumer(&nats, PATIENCE).await;
    let publisher = publisher(&nats).await;
    publish(&publisher, "work.a", bodies(0..10)).await;
    let slots = Arc::new(Semaphore::new(3));
    let (mut pull, mut reserved, mut running) = (pull(&nats), Vec::new(), Vec::new());
    for _ in 0..3 {
        running.push(soon(pull.next_slot(&slots, &mut reserved)).await.unwrap());
    }
    let none =
        tokio::time::timeout(Duration::from_millis(700), pull.next_slot(&slots, &mut reserved));
    assert!(none.await.is_err());
    let info = consumer_info(nats.js(), "WORK", "con").await.unwrap().unwrap();
    assert_eq!((info.ack_pending, info.pending), (3, 7));
    for _ in 0..7 {
        let (done, slot) = running.remove(0);
        lease::ack(&publisher, &done.delivery, PATIENCE).await.unwrap();
        drop(slot);
        running.push(soon(pull.next_slot(&slots, &mut reserved)).await.unwrap());
        let info = consumer_info(nats.js(), "WORK", "con").await.unwrap().unwrap();
        assert!(info.ack_pending <= 3, "{info:?}");
    }
}

#[tokio::test]
async fn messages_come_after_requests_have_expired_many_times() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    consumer(&nats, PATIENCE).await;
    let publisher = publisher(&nats).await;
    let config = PullConfig {
        heartbeat: Duration::from_millis(300),
        expires: Duration::from_secs(1),
        ..PullConfig::default()
    };
    let mut pull = Pull::new(nats.js(), "WORK", "con", config);
    let nothing = tokio::time::timeout(Duration::from_millis(2_500), pull.next(4)).await;
    assert!(nothing.is_err());
    publish(&publisher, "work.a", bodies(0..20)).await;
    for n in 1..=20 {
        let received = soon(pull.next(4)).await.unwrap();
        assert_eq!(received.delivery.stream_seq, n);
        assert!(pull.asked() <= 3);
    }
}

#[tokio::test]
async fn a_consumer_that_comes_late_goes_and_comes_again_is_waited_for() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    let publisher = publisher(&nats).await;
    publish(&publisher, "work.a", ["1".into()]).await;
    let mut pull = pull(&nats);
    let (received, ()) = tokio::join!(soon(pull.next(1)), async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        consumer(&nats, PATIENCE).await;
    });
    lease::ack(&publisher, &received.unwrap().delivery, PATIENCE).await.unwrap();
    let waiting = tokio::time::timeout(Duration::from_millis(300), pull.next(1)).await;
    assert!(waiting.is_err());
    nats.js().delete_consumer_from_stream("con", "WORK").await.unwrap();
    publish(&publisher, "work.a", ["2".into()]).await;
    consumer(&nats, PATIENCE).await;
    assert_eq!(soon(pull.next(1)).await.unwrap().delivery.stream_seq, 2);
}

#[tokio::test]
async fn a_restart_and_a_frozen_server_are_lived_through() {
    let mut server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    consumer(&nats, Duration::from_secs(2)).await;
    let publisher = publisher(&nats).await;
    let mut pull = pull(&nats);
    let mut seen = BTreeSet::new();
    for round in 0..4_usize {
        publish(&publisher, "work.a", bodies(round * 5..round * 5 + 5)).await;
        while seen.len() < (round + 1) * 5 {
            let received = soon(pull.next(4)).await.unwrap();
            seen.insert(received.delivery.stream_seq);
            lease::ack(&publisher, &received.delivery, PATIENCE).await.unwrap();
        }
        let idle = tokio::time::timeout(Duration::from_millis(50), pull.next(4)).await;
        if round == 0 {
            server.restart().await.unwrap();
        } else if round == 1 {
            server.pause().unwrap();
            let silent = tokio::time::timeout(Duration::from_millis(1_500), pull.next(4)).await;
            assert!(silent.is_err());
            server.resume().unwrap();
        }
        drop(idle);
    }
}

#[tokio::test]
async fn a_cut_connection_stalls_nothing() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    work(&direct).await;
    consumer(&direct, Duration::from_secs(2)).await;
    let publisher = publisher(&direct).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let nats = connected(&proxy.url()).await;
    let mut pull = pull(&nats);
    for n in 0..5_u64 {
        let waiting = tokio::time::timeout(Duration::from_millis(100), pull.next(2)).await;
        assert!(waiting.is_err());
        proxy.cut();
        publish(&publisher, "work.a", ["x".into()]).await;
        let received = soon(pull.next(2)).await.unwrap();
        assert_eq!(received.delivery.stream_seq, n + 1);
        lease::ack(&publisher, &received.delivery, PATIENCE).await.unwrap();
    }
}

#[tokio::test]
async fn a_batch_holds_what_has_gathered() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    consumer(&nats, PATIENCE).await;
    let publisher = publisher(&nats).await;
    let mut pull = pull(&nats);
    assert!(pull.next_batch(500, Duration::from_millis(100)).await.unwrap().is_empty());
    publish(&publisher, "work.a", bodies(0..1_000)).await;
    let (mut all, mut batches) = (Vec::new(), 0);
    while all.len() < 1_000 {
        let batch = soon(pull.next_batch(500, PATIENCE)).await.unwrap();
        assert!(batch.len() <= 500);
        batches += 1;
        all.extend(batch.into_iter().map(|received| received.delivery.stream_seq));
    }
    assert_eq!(all, (1..=1_000).collect::<Vec<_>>());
    assert!(batches < 100, "{batches} batches");
}

#[tokio::test]
async fn a_stopped_pull_leaves_no_demand_behind() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    consumer(&nats, PATIENCE).await;
    let publisher = publisher(&nats).await;
    let mut pull = pull(&nats);
    assert!(tokio::time::timeout(Duration::from_millis(100), pull.next(4)).await.is_err());
    assert_eq!(pull.asked(), 4);
    publish(&publisher, "work.a", bodies(0..2)).await;
    let arrived =
        async || consumer_info(nats.js(), "WORK", "con").await.unwrap().unwrap().ack_pending;
    until("their delivery", async || arrived().await == 2).await;
    let rest = soon(pull.stop()).await;
    assert_eq!(rest.len(), 2);
    publish(&publisher, "work.a", bodies(2..6)).await;
    let info = consumer_info(nats.js(), "WORK", "con").await.unwrap().unwrap();
    assert_eq!((info.ack_pending, info.pending), (2, 4), "nothing goes into the void");
}

/// As after a SIGSTOP: what was asked for has come meanwhile, and its request is long over.
#[tokio::test]
async fn who_stood_still_for_long_gets_no_more_than_there_are_slots() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    consumer(&nats, PATIENCE).await;
    let publisher = publisher(&nats).await;
    let slots = Arc::new(Semaphore::new(1));
    let (mut pull, mut reserved) = (pull(&nats), Vec::new());
    let idle = Duration::from_millis(200);
    assert!(tokio::time::timeout(idle, pull.next_slot(&slots, &mut reserved)).await.is_err());
    publish(&publisher, "work.a", bodies(0..3)).await;
    let in_hand =
        async || consumer_info(nats.js(), "WORK", "con").await.unwrap().unwrap().ack_pending;
    until("one of them to come", async || in_hand().await == 1).await;
    // The request waits for 2 s, and 5 s later its end is no longer waited for.
    tokio::time::sleep(Duration::from_millis(7_500)).await;
    for n in 1..=3 {
        let (received, slot) = soon(pull.next_slot(&slots, &mut reserved)).await.unwrap();
        let more = tokio::time::timeout(idle, pull.next_slot(&slots, &mut reserved)).await;
        assert!(more.is_err());
        assert_eq!((received.delivery.stream_seq, in_hand().await), (n, 1));
        lease::ack(&publisher, &received.delivery, PATIENCE).await.unwrap();
        drop(slot);
    }
}
