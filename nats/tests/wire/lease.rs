use std::time::Duration;

use taskparty_nats::connect::Nats;
use taskparty_nats::consume::{Pull, PullConfig};
use taskparty_nats::lease::{self, AckError, Renewer};
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::Server;
use tokio_util::sync::CancellationToken;

use crate::support::{
    PATIENCE, connected, consumer, messages, publish, publisher, server, soon, until, work,
};

fn pull(nats: &Nats) -> Pull {
    Pull::new(nats.js(), "WORK", "con", PullConfig::default())
}

/// A work queue with so many messages, and a consumer that leases them for `length`.
async fn site(length: Duration, count: usize) -> (Server, Nats, Publisher) {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    consumer(&nats, length).await;
    let publisher = publisher(&nats).await;
    publish(&publisher, "work.a", (1..=count).map(|n| n.to_string())).await;
    (server, nats, publisher)
}

#[tokio::test]
async fn an_ack_is_confirmed_and_a_nak_brings_it_again_at_once() {
    let (_server, nats, publisher) = site(PATIENCE, 2).await;
    let mut pull = pull(&nats);

    let first = soon(pull.next(1)).await.unwrap().delivery;
    assert_eq!((first.stream.as_str(), first.consumer.as_str()), ("WORK", "con"));
    assert_eq!((first.stream_seq, first.delivered, first.pending), (1, 1, 1));
    lease::nak(&publisher, &first, PATIENCE).await.unwrap();
    let again = soon(pull.next(1)).await.unwrap().delivery;
    assert_eq!((again.stream_seq, again.delivered), (1, 2));
    lease::ack(&publisher, &again, PATIENCE).await.unwrap();
    lease::ack(&publisher, &again, PATIENCE).await.expect("a second ack is confirmed, too");
    let second = soon(pull.next(1)).await.unwrap().delivery;
    lease::term(&publisher, &second, PATIENCE).await.unwrap();
    until("an empty queue", async || messages(&nats, "WORK").await == 0).await;
}

#[tokio::test]
async fn an_ack_that_nobody_hears_is_an_error() {
    let (_server, nats, publisher) = site(PATIENCE, 1).await;
    let delivery = soon(pull(&nats).next(1)).await.unwrap().delivery;
    nats.js().delete_consumer_from_stream("con", "WORK").await.unwrap();
    let error = lease::ack(&publisher, &delivery, Duration::from_millis(300)).await;
    assert!(matches!(error, Err(AckError::Unconfirmed(_))), "{error:?}");
}

#[tokio::test]
async fn a_lease_is_kept_while_work_goes_on() {
    let length = Duration::from_secs(1);
    let (_server, nats, publisher) = site(length, 1).await;
    let mut pull = pull(&nats);
    let delivery = soon(pull.next(1)).await.unwrap().delivery;
    let renewer = Renewer::start(publisher.clone(), &CancellationToken::new());
    let lease = renewer.keep(delivery.clone(), length);
    let again = tokio::time::timeout(length * 3, async {
        tokio::select! {
            again = pull.next(1) => format!("delivered again: {:?}", again.unwrap().delivery),
            () = lease.lost() => "lost".to_owned(),
        }
    });
    assert_eq!(again.await.ok(), None);
    assert!(!lease.is_lost());
    drop(lease);
    let again = soon(pull.next(1)).await.unwrap().delivery;
    assert_eq!(again.delivered, 2, "once the lease is given up it goes to the next");
}

#[tokio::test]
async fn a_lease_that_cannot_be_renewed_is_lost_and_stays_lost() {
    let length = Duration::from_secs(1);
    let (server, nats, publisher) = site(length, 1).await;
    let delivery = soon(pull(&nats).next(1)).await.unwrap().delivery;
    let renewer = Renewer::start(publisher, &CancellationToken::new());
    let lease = renewer.keep(delivery, length);
    let first_end = lease.ends();
    until("a renewal", async || lease.ends() > first_end).await;
    server.pause().unwrap();
    soon(lease.lost()).await;
    server.resume().unwrap();
    until("the server's answers", async || nats.client().flush().await.is_ok()).await;
    assert!(lease.is_lost());
}

#[tokio::test]
async fn a_short_lease_is_renewed_in_time_beside_a_long_one() {
    let length = Duration::from_secs(1);
    let (_server, nats, publisher) = site(length, 2).await;
    let mut pull = pull(&nats);
    let renewer = Renewer::start(publisher, &CancellationToken::new());
    let long = renewer.keep(soon(pull.next(1)).await.unwrap().delivery, length * 600);
    let short = renewer.keep(soon(pull.next(1)).await.unwrap().delivery, length);
    let first_end = short.ends();
    until("a renewal", async || short.ends() > first_end).await;
    assert!(!short.is_lost());
    drop((long, short));
}
