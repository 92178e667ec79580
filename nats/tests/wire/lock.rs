use std::time::Duration;

use taskparty_nats::bucket::Swap;
use taskparty_nats::lock::{Locks, SHORTEST, Take};
use taskparty_nats::proxy::{Direction, Proxy};
use taskparty_nats::subject::Bucket;
use tokio::task::JoinSet;

use crate::support::{bucket, buckets, connected, messages, server, soon, until};

const FIRES: Bucket = Bucket::Fires;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_many_takers_exactly_one_wins_and_the_others_see_its_intent() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    bucket(&nats, FIRES, None).await;
    let mut takers = JoinSet::new();
    for taker in 0..3 {
        let locks = Locks::new(buckets(&connected(&server.url()).await).await);
        for key in 0..40 {
            let locks = locks.clone();
            takers.spawn(async move {
                let intent = format!("{taker}");
                (key, intent.clone(), locks.take(&format!("job.t.{key}"), intent, SHORTEST).await)
            });
        }
    }
    let (mut winners, mut seen) = (vec![Vec::new(); 40], vec![Vec::new(); 40]);
    while let Some(taken) = soon(takers.join_next()).await {
        let (key, intent, take) = taken.unwrap();
        match take.unwrap() {
            Take::Taken { .. } => winners[key].push(intent),
            Take::Held(held) => seen[key].push(String::from_utf8(held.value.to_vec()).unwrap()),
        }
    }
    for key in 0..40 {
        assert_eq!(winners[key].len(), 1, "winners of {key}");
        assert_eq!(seen[key], [winners[key][0].as_str(); 2], "what the losers of {key} saw");
    }
}

#[tokio::test]
async fn a_taker_whose_answer_was_lost_recognises_its_own_lock() {
    let server = server().await;
    let direct = connected(&server.url()).await;
    bucket(&direct, FIRES, None).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let locks = Locks::new(buckets(&connected(&proxy.url()).await).await);
    proxy.hold(Direction::ToClient);
    let taking = tokio::spawn({
        let locks = locks.clone();
        async move { locks.take("job.t.1", "mine", SHORTEST).await }
    });
    until("the lock", async || messages(&direct, "KV_taskparty_fires").await == 1).await;
    proxy.cut();
    proxy.heal();
    assert_eq!(soon(taking).await.unwrap().unwrap(), Take::Taken { seq: 1 });
    let Take::Held(held) = soon(locks.take("job.t.1", "mine", SHORTEST)).await.unwrap() else {
        panic!("a second call, even with the same intent, does not take it again");
    };
    assert_eq!(held.value, "mine");
}

#[tokio::test]
async fn an_expired_lock_is_free_with_and_without_the_server_s_mark() {
    for markers in [None, Some(Duration::from_secs(60))] {
        let server = server().await;
        let nats = connected(&server.url()).await;
        bucket(&nats, FIRES, markers).await;
        let locks = Locks::new(buckets(&nats).await);
        locks.take("job.x.key", "first", Duration::from_secs(1)).await.unwrap();
        let second = locks.take("job.x.key", "second", SHORTEST).await.unwrap();
        assert!(matches!(second, Take::Held(held) if held.value == "first"));
        until("the end of the lock", async || locks.read("job.x.key").await.unwrap().is_none())
            .await;
        let third = locks.take("job.x.key", "third", SHORTEST).await.unwrap();
        assert!(matches!(third, Take::Taken { .. }), "markers {markers:?}");
        let held = locks.read("job.x.key").await.unwrap().unwrap();
        assert_eq!(held.value, "third");
    }
}

#[tokio::test]
async fn compare_and_set_tells_what_is_there_instead() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    bucket(&nats, Bucket::Jobs, None).await;
    let buckets = buckets(&nats).await;
    let jobs = Bucket::Jobs;
    let first = buckets.create(jobs, "a", "1", None).await.unwrap();
    assert_eq!(first, Swap::Done { revision: 1 });
    assert_eq!(buckets.put_if(jobs, "a", 1, "2", None).await.unwrap(), Swap::Done { revision: 2 });
    let Swap::Lost { current: Some(current) } =
        buckets.put_if(jobs, "a", 1, "3", None).await.unwrap()
    else {
        panic!("the revision was wrong");
    };
    assert_eq!((current.revision, current.value.as_deref()), (2, Some(b"2".as_slice())));
    let lost = buckets.put_if(jobs, "b", 7, "1", None).await.unwrap();
    assert_eq!(lost, Swap::Lost { current: None });
    buckets.delete(jobs, "a").await.unwrap();
    let deleted = buckets.get_leader(jobs, "a").await.unwrap().unwrap();
    assert_eq!((deleted.revision, deleted.value), (3, None));
    assert_eq!(buckets.create(jobs, "a", "4", None).await.unwrap(), Swap::Done { revision: 4 });
}
