use std::time::Duration;

use async_nats::jetstream::stream::Config;
use taskparty_nats::history::message;
use taskparty_nats::join::{JoinConfig, Joiner};
use taskparty_nats::proxy::{Direction, Proxy};
use taskparty_nats::publish::PublishError;
use tokio::task::JoinSet;

use crate::support::{
    PATIENCE, connected, messages, plain, publisher, server, soon, stream, until,
};

#[tokio::test]
async fn at_rest_each_line_is_a_message_of_its_own() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, plain("S", "s.>")).await;
    let joiner = Joiner::new(publisher(&nats).await, JoinConfig::default());
    for n in 0..3 {
        let line = format!("{{\"n\":{n}}}\n").into_bytes();
        assert_eq!(soon(joiner.send("s.a", line)).await.unwrap().seq, n + 1);
    }
    let first = message(nats.js(), "S", 1).await.unwrap().unwrap();
    assert_eq!(first.payload, "{\"n\":0}");
}

#[tokio::test]
async fn when_busy_lines_leave_together_and_each_sender_hears_of_its_own() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    stream(&direct, plain("S", "s.>")).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let nats = connected(&proxy.url()).await;
    let config = JoinConfig { message_bytes: 4096, ..JoinConfig::default() };
    let joiner = Joiner::new(publisher(&nats).await, config);

    proxy.hold(Direction::ToClient);
    let mut senders = JoinSet::new();
    for n in 0..1_000 {
        let joiner = joiner.clone();
        senders.spawn(async move { joiner.send("s.a", format!("{{\"n\":{n:03}}}")).await });
    }
    until("two messages in flight", async || messages(&direct, "S").await == 2).await;
    proxy.release(Direction::ToClient);
    while let Some(sent) = soon(senders.join_next()).await {
        sent.unwrap().unwrap();
    }
    let stored = messages(&direct, "S").await;
    assert!((4..=12).contains(&stored), "1000 lines of 10 bytes in {stored} messages");
    let mut lines = Vec::new();
    for seq in 1..=stored {
        let record = message(direct.js(), "S", seq).await.unwrap().unwrap();
        assert!(record.payload.len() <= 4096);
        lines
            .extend(String::from_utf8(record.payload.to_vec()).unwrap().lines().map(str::to_owned));
    }
    lines.sort();
    let all: Vec<_> = (0..1_000).map(|n| format!("{{\"n\":{n:03}}}")).collect();
    assert_eq!(lines, all);
}

#[tokio::test]
async fn a_line_that_is_too_large_is_refused_alone() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    stream(&direct, Config { max_message_size: 300, ..plain("S", "s.>") }).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let nats = connected(&proxy.url()).await;
    let joiner = Joiner::new(publisher(&nats).await, JoinConfig::default());
    let huge = joiner.send("s.a", vec![b'x'; 2 << 20]).await;
    assert!(matches!(huge, Err(PublishError::TooLarge(_))));

    // Too large for the stream only, which the joiner cannot know: joined with its neighbours.
    proxy.hold(Direction::ToClient);
    let mut senders = JoinSet::new();
    for size in [10, 11, 20, 5_000, 30] {
        let joiner = joiner.clone();
        senders.spawn(async move { (size, joiner.send("s.a", vec![b'1'; size]).await) });
        tokio::task::yield_now().await;
    }
    until("two messages in flight", async || messages(&direct, "S").await == 2).await;
    proxy.release(Direction::ToClient);
    while let Some(sent) = soon(senders.join_next()).await {
        let (size, result) = sent.unwrap();
        assert_eq!(result.is_ok(), size < 300, "{size}: {result:?}");
    }
}

#[tokio::test]
async fn it_ends_when_all_is_stored_or_the_time_is_up() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, plain("S", "s.>")).await;
    let joiner = Joiner::new(publisher(&nats).await, JoinConfig::default());
    let sending = tokio::spawn({
        let joiner = joiner.clone();
        async move { tokio::join!(joiner.send("s.a", "1"), joiner.send("s.b", "2")) }
    });
    until("both", async || messages(&nats, "S").await == 2).await;
    soon(joiner.finish(PATIENCE)).await;
    let (a, b) = soon(sending).await.unwrap();
    assert!(a.is_ok() && b.is_ok());
    let late = joiner.send("s.a", "3").await;
    assert!(matches!(late, Err(PublishError::Unconfirmed(_))));

    let joiner = Joiner::new(publisher(&nats).await, JoinConfig::default());
    server.pause().unwrap();
    let (sent, ()) = tokio::join!(joiner.send("s.a", "4"), async {
        tokio::task::yield_now().await;
        joiner.finish(Duration::from_millis(200)).await;
    });
    server.resume().unwrap();
    assert!(matches!(sent, Err(PublishError::Unconfirmed(_))));
}

#[tokio::test]
async fn a_full_queue_makes_senders_wait() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    stream(&direct, plain("S", "s.>")).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let nats = connected(&proxy.url()).await;
    let config = JoinConfig { queue_bytes: 64, ..JoinConfig::default() };
    let joiner = Joiner::new(publisher(&nats).await, config);
    proxy.hold(Direction::ToClient);
    let mut senders = JoinSet::new();
    for _ in 0..10 {
        let joiner = joiner.clone();
        senders.spawn(async move { joiner.send("s.a", vec![b'1'; 31]).await });
    }
    until("what fits", async || messages(&direct, "S").await == 2).await;
    proxy.release(Direction::ToClient);
    while let Some(sent) = soon(senders.join_next()).await {
        sent.unwrap().unwrap();
    }
}
