//! Several consumers, the first first: what one slot or many take, through everything that happens to
//! a connection.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use taskparty_nats::connect::Nats;
use taskparty_nats::consume::{Lines, PullConfig, Received};
use taskparty_nats::history::consumer_info;
use taskparty_nats::lease;
use taskparty_nats::proxy::Proxy;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::support::{
    PATIENCE, connected, messages, publish, publisher, server, soon, until, work,
};

const LINES: [&str; 3] = ["first", "second", "third"];

async fn consumer(nats: &Nats, line: &str, ack_wait: Duration) {
    let config = pull::Config {
        durable_name: Some(line.into()),
        filter_subject: format!("work.{line}"),
        ack_policy: AckPolicy::Explicit,
        ack_wait,
        ..pull::Config::default()
    };
    nats.js().create_consumer_on_stream(config, "WORK").await.unwrap();
}

/// What was delivered and is not acked, of all lines.
async fn in_hand(nats: &Nats) -> u64 {
    let mut in_hand = 0;
    for line in LINES {
        in_hand += consumer_info(nats.js(), "WORK", line).await.unwrap().unwrap().ack_pending;
    }
    in_hand
}

/// A pull of all lines with so many slots.
struct Taker {
    lines: Lines,
    slots: Arc<Semaphore>,
    reserved: Vec<OwnedSemaphorePermit>,
}

impl Taker {
    fn new(nats: &Nats, slots: usize) -> Self {
        Self::with_heartbeat(nats, slots, Duration::from_millis(300))
    }

    fn with_heartbeat(nats: &Nats, slots: usize, heartbeat: Duration) -> Self {
        let expires = Duration::from_secs(2);
        let config = PullConfig { heartbeat, expires, ..PullConfig::default() };
        let lines = Lines::new(nats.js(), "WORK", &LINES.map(String::from), &config);
        Self { lines, slots: Arc::new(Semaphore::new(slots)), reserved: Vec::new() }
    }

    async fn next(&mut self) -> (Received, OwnedSemaphorePermit) {
        soon(self.lines.next_slot(&self.slots, &mut self.reserved)).await.unwrap()
    }

    /// Waits a moment in which nothing comes.
    async fn idle(&mut self, moment: Duration) {
        let next = self.lines.next_slot(&self.slots, &mut self.reserved);
        assert!(tokio::time::timeout(moment, next).await.is_err());
    }
}

#[tokio::test]
async fn all_lines_are_served_in_order_and_no_more_is_taken_than_there_are_slots() {
    const SLOTS: usize = 4;
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    for line in LINES {
        consumer(&nats, line, PATIENCE).await;
    }
    let publisher = publisher(&nats).await;
    let mut taker = Taker::new(&nats, SLOTS);
    taker.idle(Duration::from_millis(100)).await;
    let mut running = VecDeque::new();
    for round in 0..60_usize {
        // Bursts into one line, or into all; never more than can be taken.
        let burst = if round % 3 == 0 { 3 } else { 1 };
        for n in 0..burst {
            let line = LINES[if round % 3 == 0 { n } else { round % 2 + 1 }];
            publish(&publisher, &format!("work.{line}"), [round.to_string()]).await;
        }
        for _ in 0..burst {
            let (received, slot) = taker.next().await;
            assert_eq!(received.delivery.delivered, 1, "a message went into the void");
            running.push_back((received, slot));
            // What is kept is between none and all of the slots.
            while running.len() >= SLOTS - round % SLOTS {
                let (done, slot) = running.pop_front().unwrap();
                lease::ack(&publisher, &done.delivery, PATIENCE).await.unwrap();
                drop(slot);
            }
            assert!(taker.lines.asked() + running.len() <= SLOTS);
        }
    }
    // All slots are taken: what comes now waits, and goes in order.
    for line in ["third", "second", "first"] {
        publish(&publisher, &format!("work.{line}"), (0..SLOTS).map(|n| n.to_string())).await;
    }
    while running.len() < SLOTS {
        running.push_back(taker.next().await);
    }
    taker.idle(Duration::from_millis(200)).await;
    assert_eq!(in_hand(&nats).await, SLOTS as u64);
    let mut order = Vec::new();
    while messages(&nats, "WORK").await > 0 {
        let (done, slot) = running.pop_front().unwrap();
        lease::ack(&publisher, &done.delivery, PATIENCE).await.unwrap();
        drop(slot);
        if order.len() < 2 * SLOTS {
            let next = taker.next().await;
            order.push(next.0.message.subject.to_string());
            running.push_back(next);
        }
    }
    let at = |line: &str| LINES.iter().position(|one| line.ends_with(one)).unwrap();
    assert!(order.is_sorted_by_key(|line| at(line)), "{order:?}");
}

#[tokio::test]
async fn a_cut_connection_a_restart_and_a_lost_consumer_stall_no_line() {
    let mut server = server().await;
    let direct = connected(&server.url()).await;
    work(&direct).await;
    for line in LINES {
        consumer(&direct, line, Duration::from_secs(2)).await;
    }
    let publisher = publisher(&direct).await;
    let proxy = Proxy::start(server.address()).await.unwrap();
    let nats = connected(&proxy.url()).await;
    for slots in [1, 5] {
        let mut taker = Taker::new(&nats, slots);
        for fault in 0..4 {
            taker.idle(Duration::from_millis(100)).await;
            match fault {
                0 => proxy.cut(),
                1 => server.restart().await.unwrap(),
                2 => {
                    direct.js().delete_consumer_from_stream("second", "WORK").await.unwrap();
                    consumer(&direct, "second", Duration::from_secs(2)).await;
                }
                _ => {}
            }
            let mut open = BTreeSet::new();
            for line in LINES {
                publish(&publisher, &format!("work.{line}"), ["x".into()]).await;
                open.insert(format!("work.{line}"));
            }
            while !open.is_empty() {
                let (received, slot) = taker.next().await;
                lease::ack(&publisher, &received.delivery, PATIENCE).await.unwrap();
                open.remove(received.message.subject.as_str());
                drop(slot);
            }
        }
        assert!(soon(taker.lines.stop()).await.is_empty());
    }
}

/// As after a SIGSTOP: what was asked for has come meanwhile, and its request is long over.
#[tokio::test]
async fn who_stood_still_for_long_takes_no_more_than_it_has_slots_for() {
    let server = server().await;
    let nats = connected(&server.url()).await;
    work(&nats).await;
    for line in LINES {
        consumer(&nats, line, PATIENCE).await;
    }
    let publisher = publisher(&nats).await;
    // A request waits for 2 s then, and 5 s later its end is no longer waited for.
    let mut taker = Taker::with_heartbeat(&nats, 1, Duration::from_secs(8));
    taker.idle(Duration::from_millis(200)).await;
    for line in LINES {
        publish(&publisher, &format!("work.{line}"), ["1".into()]).await;
    }
    until("one of them to come", async || in_hand(&nats).await == 1).await;
    tokio::time::sleep(Duration::from_millis(7_500)).await;
    let mut running = taker.next().await;
    for left in [2, 1, 0] {
        taker.idle(Duration::from_millis(500)).await;
        assert_eq!((in_hand(&nats).await, running.0.delivery.delivered), (1, 1));
        lease::ack(&publisher, &running.0.delivery, PATIENCE).await.unwrap();
        assert_eq!(messages(&nats, "WORK").await, left);
        drop(running.1);
        if left == 0 {
            return;
        }
        running = taker.next().await;
    }
}
