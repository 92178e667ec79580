use std::ops::ControlFlow;

use taskparty_nats::connect::Nats;
use taskparty_nats::history::{
    ReadError, Start, consumer_info, delete_message, last_by_subject, next_by_subject,
    purge_subject, read, stream_info,
};

use crate::support::{PATIENCE, connected, plain, publish, publisher, server, soon, stream};

async fn seqs(nats: &Nats, subjects: &[&str], start: Start) -> Vec<u64> {
    let subjects: Vec<String> = subjects.iter().map(|subject| (*subject).to_owned()).collect();
    let mut seqs = Vec::new();
    let visit = |record: taskparty_nats::history::Record| {
        seqs.push(record.seq);
        ControlFlow::Continue(())
    };
    soon(read(nats.js(), "S", &subjects, start, PATIENCE, visit)).await.unwrap();
    seqs
}

#[tokio::test]
async fn a_stretch_is_read_to_its_end_and_leaves_nothing_behind() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, plain("S", "s.>")).await;
    let publisher = publisher(&nats).await;
    assert!(seqs(&nats, &["s.>"], Start::First).await.is_empty());
    publish(&publisher, "s.a", (0..1_200).map(|n| n.to_string())).await;
    publish(&publisher, "s.b", ["x".into(), "y".into()]).await;
    publish(&publisher, "s.c", ["z".into()]).await;

    assert_eq!(seqs(&nats, &["s.>"], Start::First).await, (1..=1_203).collect::<Vec<_>>());
    assert_eq!(seqs(&nats, &["s.b"], Start::First).await, [1_201, 1_202]);
    assert_eq!(seqs(&nats, &["s.b", "s.c"], Start::Seq(1_202)).await, [1_202, 1_203]);
    assert!(seqs(&nats, &["s.a"], Start::Seq(1_201)).await.is_empty());
    let third = last_by_subject(nats.js(), "S", "s.c").await.unwrap().unwrap();
    assert_eq!(seqs(&nats, &["s.>"], Start::Time(third.stored_at)).await, [1_203]);
    let later = third.stored_at + chrono::TimeDelta::seconds(1);
    assert!(seqs(&nats, &["s.>"], Start::Time(later)).await.is_empty());

    let consumers = nats.js().get_stream("S").await.unwrap();
    assert_eq!(consumers.cached_info().state.consumer_count, 0);
}

#[tokio::test]
async fn what_is_asked_of_the_leader_is_answered_in_kind() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    stream(&nats, plain("S", "s.>")).await;
    let publisher = publisher(&nats).await;
    publish(&publisher, "s.a", ["1".into(), "2".into(), "3".into()]).await;
    let js = nats.js();
    assert!(delete_message(js, "S", 3).await.unwrap());
    assert!(!delete_message(js, "S", 3).await.unwrap(), "it is gone already");
    let last = last_by_subject(js, "S", "s.*").await.unwrap().unwrap();
    assert_eq!((last.seq, last.payload.as_ref()), (2, b"2".as_slice()));
    assert!(last_by_subject(js, "S", "s.z").await.unwrap().is_none());
    let next = next_by_subject(js, "S", "s.a", 2).await.unwrap().unwrap();
    assert_eq!((next.seq, next.payload.as_ref()), (2, b"2".as_slice()));
    assert!(next_by_subject(js, "S", "s.a", 3).await.unwrap().is_none());
    let info = stream_info(js, "S").await.unwrap();
    assert_eq!((info.messages, info.last_seq, info.max_bytes), (2, 3, None));
    assert_eq!(purge_subject(js, "S", "s.a").await.unwrap(), 2);
    assert_eq!(consumer_info(js, "S", "none").await.unwrap(), None);
    assert_eq!(stream_info(js, "NONE").await, Err(ReadError::NoStream("NONE".into())));
    let none = last_by_subject(js, "NONE", "x").await;
    assert!(matches!(none, Err(ReadError::NoStream(_))), "{none:?}");
}
