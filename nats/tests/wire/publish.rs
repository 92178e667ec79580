use std::collections::HashSet;
use std::time::Duration;

use async_nats::jetstream::stream::{Config, DiscardPolicy};
use taskparty_nats::proxy::{Direction, Proxy};
use taskparty_nats::publish::{Draft, PublishError};
use tokio::task::JoinSet;

use crate::support::{connected, messages, plain, publisher, server, soon, stream, until};

#[tokio::test]
async fn the_same_id_is_stored_once() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, plain("S", "s.>")).await;
    let publisher = publisher(&nats).await;
    let first = publisher.publish(Draft::new("s.a", "1").id("x")).await.unwrap();
    let second = publisher.publish(Draft::new("s.a", "1").id("x")).await.unwrap();
    assert_eq!((first.stream.as_str(), first.seq, first.duplicate), ("S", 1, false));
    assert_eq!((second.seq, second.duplicate), (1, true));
}

#[tokio::test]
async fn each_refusal_has_its_kind_and_comes_at_once() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, Config { max_message_size: 300, ..plain("S", "s.>") }).await;
    let full = Config { max_messages: 1, discard: DiscardPolicy::New, ..plain("F", "f.>") };
    stream(&nats, full).await;
    let publisher = publisher(&nats).await;
    let refused = async |draft| soon(publisher.publish(draft)).await.unwrap_err();

    publisher.publish(Draft::new("s.a", "1")).await.unwrap();
    let wrong = refused(Draft::new("s.a", "2").expect_last(0)).await;
    assert_eq!(wrong, PublishError::WrongLastSequence { actual: Some(1), maybe_own: false });
    let large = refused(Draft::new("s.a", vec![b'x'; 400])).await;
    assert!(matches!(large, PublishError::TooLarge(_)), "{large}");
    let huge = refused(Draft::new("s.a", vec![b'x'; 2 << 20])).await;
    assert!(matches!(huge, PublishError::TooLarge(_)), "{huge}");
    publisher.publish(Draft::new("f.a", "1")).await.unwrap();
    let full = refused(Draft::new("f.a", "2")).await;
    assert!(matches!(full, PublishError::Full(_)), "{full}");
    let ttl = refused(Draft::new("s.a", "1").ttl(Duration::from_secs(5))).await;
    assert!(matches!(ttl, PublishError::Refused { .. }), "{ttl}");
    for error in [wrong, large, huge, full, ttl] {
        assert!(error.is_definite(), "{error}");
    }
}

#[tokio::test]
async fn without_a_stream_nothing_is_confirmed_and_a_stream_that_comes_late_is_found() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    let publisher = publisher(&nats).await;
    let draft = Draft::new("s.a", "1");
    let error = publisher.publish_within(draft.clone(), Duration::from_millis(400)).await;
    assert_eq!(error, Err(PublishError::NoStream));
    // Nor does it wait, where somebody wants to know.
    let once = soon(publisher.publish_once(draft.clone(), Duration::from_secs(600))).await;
    assert_eq!(once, Err(PublishError::NoStream));
    let (stored, ()) =
        tokio::join!(soon(publisher.publish(draft)), stream(&nats, plain("S", "s.>")));
    assert_eq!(stored.unwrap().seq, 1);
}

#[tokio::test]
async fn a_lost_answer_is_made_up_for_and_the_message_is_there_once() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    stream(&direct, plain("S", "s.>")).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let nats = connected(&proxy.url()).await;
    let publisher = publisher(&nats).await;

    proxy.hold(Direction::ToClient);
    let publishing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish(Draft::new("s.a", "1")).await }
    });
    until("the message", async || messages(&direct, "S").await == 1).await;
    proxy.cut();
    proxy.heal();
    let stored = soon(publishing).await.unwrap().unwrap();
    assert_eq!((stored.seq, stored.duplicate), (1, true));
    assert_eq!(messages(&direct, "S").await, 1);
}

#[tokio::test]
async fn an_own_write_whose_answer_was_lost_is_told_from_another_s() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    // A duplicate window that forgets at once: only the expected sequence refuses the repetition.
    let short = Config { duplicate_window: Duration::from_millis(100), ..plain("S", "s.>") };
    stream(&direct, short).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let nats = connected(&proxy.url()).await;
    let publisher = publisher(&nats).await;
    proxy.hold(Direction::ToClient);
    let publishing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish(Draft::new("s.a", "1").id("x").expect_last(0)).await }
    });
    until("the message", async || messages(&direct, "S").await == 1).await;
    let window = tokio::time::Instant::now() + Duration::from_millis(300);
    tokio::time::sleep_until(window).await;
    proxy.cut();
    proxy.heal();
    match soon(publishing).await.unwrap() {
        Err(PublishError::WrongLastSequence { maybe_own, .. }) => assert!(maybe_own),
        // An attempt that was queued while the server still knew the id.
        Ok(stored) => assert!(stored.duplicate),
        Err(other) => panic!("{other}"),
    }
}

#[tokio::test]
async fn a_frozen_server_delays_and_doubles_nothing() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, plain("S", "s.>")).await;
    let publisher = publisher(&nats).await;
    server.pause().unwrap();
    let error = publisher.publish_within(Draft::new("s.b", "1"), Duration::from_millis(500)).await;
    assert!(matches!(&error, Err(error) if !error.is_definite()), "{error:?}");
    let publishing = tokio::spawn({
        let publisher = publisher.clone();
        async move { publisher.publish(Draft::new("s.a", "1")).await }
    });
    tokio::task::yield_now().await;
    server.resume().unwrap();
    soon(publishing).await.unwrap().unwrap();
    assert_eq!(messages(&nats, "S").await, 2, "the unconfirmed one is there, too, and once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_wait_at_once_and_a_restart_loses_and_doubles_nothing() {
    let mut server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, plain("S", "s.>")).await;
    let publisher = publisher(&nats).await;
    let mut publishes = JoinSet::new();
    for n in 0..2_000 {
        let publisher = publisher.clone();
        publishes.spawn(async move {
            publisher.publish(Draft::new("s.a", format!("{n}")).id(format!("id{n}"))).await
        });
    }
    until("half of them", async || messages(&nats, "S").await >= 500).await;
    server.restart().await.unwrap();
    let mut seqs = HashSet::new();
    while let Some(stored) = soon(publishes.join_next()).await {
        seqs.insert(stored.unwrap().unwrap().seq);
    }
    assert_eq!(seqs.len(), 2_000);
    assert_eq!(messages(&nats, "S").await, 2_000);
}
