use std::collections::BTreeSet;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, RetentionPolicy};
use taskparty_nats::connect::Nats;
use taskparty_nats::consume::{Pull, PullConfig};
use taskparty_nats::lease;
use taskparty_nats::lock::{Locks, SHORTEST, Take};
use taskparty_nats::publish::{Draft, Publisher};
use taskparty_nats::server::{Cluster, ClusterConfig};
use taskparty_nats::subject::Bucket;
use tokio::task::JoinSet;

use crate::support::{
    PATIENCE, binary, bucket_config, buckets, connected, plain, publisher, soon, stream, until,
};

async fn leader(nats: &Nats, stream: &str) -> Option<String> {
    let stream = nats.js().get_stream(stream).await.ok()?;
    stream.cached_info().cluster.as_ref()?.leader.clone()
}

async fn publish_all(publisher: &Publisher, numbers: std::ops::Range<u32>) {
    let mut publishes = JoinSet::new();
    for n in numbers {
        let publisher = publisher.clone();
        let draft = Draft::new("work.a", n.to_string()).id(format!("id{n}"));
        publishes.spawn(async move { publisher.publish(draft).await });
    }
    while let Some(stored) = soon(publishes.join_next()).await {
        stored.unwrap().unwrap();
    }
}

/// Everything that must hold while a leader goes, in one test: a cluster is slow to start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_dies_doubles_no_lock_and_loses_no_message() {
    let mut cluster = Cluster::start(ClusterConfig::new(binary())).await.unwrap();
    let nats = connected(&cluster.url()).await;
    let three = |config| Config { num_replicas: 3, ..config };
    stream(&nats, three(bucket_config(&nats, Bucket::Fires, None))).await;
    let queue = Config { retention: RetentionPolicy::WorkQueue, ..plain("WORK", "work.>") };
    stream(&nats, three(queue)).await;
    let config = pull::Config {
        durable_name: Some("con".into()),
        ack_policy: AckPolicy::Explicit,
        ack_wait: Duration::from_secs(3),
        ..pull::Config::default()
    };
    nats.js().create_consumer_on_stream(config, "WORK").await.unwrap();
    let publisher = publisher(&nats).await;

    let pulling = tokio::spawn({
        let (nats, publisher) = (nats.clone(), publisher.clone());
        async move {
            let config =
                PullConfig { heartbeat: Duration::from_millis(500), ..PullConfig::default() };
            let mut pull = Pull::new(nats.js(), "WORK", "con", config);
            let mut seen = BTreeSet::new();
            while seen.len() < 400 {
                let received = pull.next(8).await.unwrap();
                seen.insert(received.message.payload.clone());
                // Its answer may be lost with the leader: then it comes again.
                let _ = lease::ack(&publisher, &received.delivery, Duration::from_secs(5)).await;
            }
            seen
        }
    });
    publish_all(&publisher, 0..200).await;

    let mut takers = JoinSet::new();
    for taker in 0..3 {
        let locks = Locks::new(buckets(&connected(&cluster.url()).await).await);
        takers.spawn(async move {
            let mut taken = Vec::new();
            for key in 0..300 {
                let name = format!("job.t.{key}");
                let mut take = locks.take(&name, format!("{taker}"), SHORTEST).await;
                while take.is_err() {
                    // Unclear: the lock may be ours. Read it, as a scheduler does.
                    let held = locks.read(&name).await;
                    match held {
                        Ok(Some(held)) if held.value == format!("{taker}") => {
                            take = Ok(Take::Taken { seq: held.seq });
                        }
                        _ => take = locks.take(&name, format!("{taker}"), SHORTEST).await,
                    }
                }
                if let Ok(Take::Taken { .. }) = take {
                    taken.push(key);
                }
            }
            taken
        });
    }
    let fires = nats.names().bucket_stream(Bucket::Fires);
    let name = leader(&nats, &fires).await.expect("a leader");
    let mut index = 0;
    while connected(&cluster.nodes()[index].url()).await.server().name != name {
        index += 1;
    }
    cluster.node(index).kill();
    until("a new leader", async || leader(&nats, &fires).await.is_some_and(|now| now != name))
        .await;
    let publishing = publish_all(&publisher, 200..400);
    let mut taken = Vec::new();
    let takers_done = async {
        while let Some(one) = tokio::time::timeout(PATIENCE * 3, takers.join_next()).await.unwrap()
        {
            taken.extend(one.unwrap());
        }
    };
    tokio::join!(publishing, takers_done);
    taken.sort_unstable();
    assert_eq!(taken, (0..300).collect::<Vec<_>>(), "each lock has exactly one winner");
    let seen = tokio::time::timeout(PATIENCE * 2, pulling).await.expect("all messages").unwrap();
    assert_eq!(seen.len(), 400);
}
