//! SQL is locked, gone or slow: firing goes on, results wait in NATS, and all is recorded
//! afterwards, once.

use std::time::Duration;

use serde_json::json;
use sqlx::Connection;
use taskparty_common::job::Job;
use taskparty_nats::history::consumer_info;
use taskparty_nats::subject::LOG_WRITER;
use tokio_util::sync::CancellationToken;

use crate::rig::{Running, Site, until};
use crate::shop::Shop;

/// A busy installation: fifty runs a second, some of which are tried again.
struct Busy {
    site: Site,
    node: Running,
    shop: Shop,
    jobs: Vec<Job>,
}

impl Busy {
    async fn start() -> Self {
        let site = Site::single().await;
        let node = site.node().await;
        let shop = Shop::open(&site);
        let retry = json!({ "params": 1, "retry": { "max": 1, "initial": "100ms" } });
        let mut jobs = site.each_second(45, "settle", json!({})).await;
        jobs.extend(site.each_second(5, "fail", retry).await);
        site.more_starts(150).await;
        Self { site, node, shop, jobs }
    }

    /// What is not in the history yet.
    async fn waiting(&self) -> u64 {
        until("the log writer's consumer", async || {
            let (js, names) = (self.site.nats.js(), self.site.nats.names());
            let info = consumer_info(js, &names.results_stream(), LOG_WRITER).await.ok()??;
            Some(info.pending + info.ack_pending)
        })
        .await
    }

    /// Firing goes on while nothing is written.
    async fn goes_on_without(&self, name: &str) {
        self.site.more_starts(400).await;
        let waiting = self.waiting().await;
        println!("# {name}: {waiting} messages wait in NATS after 400 more starts");
        assert!(waiting > 100, "{waiting}");
    }

    async fn all_is_recorded(self, name: &str) {
        self.site.all_fire_again(&self.jobs).await;
        let judged = self.site.judge(&self.jobs).await;
        judged.all_succeeded();
        judged.say(name);
        assert_eq!((judged.again, self.waiting().await), (0, 0));
        self.shop.close().await;
        self.node.stop().await;
    }
}

/// At once: each waits for most of its time.
#[tokio::test(flavor = "multi_thread")]
async fn while_the_history_is_locked_gone_or_slow_firing_goes_on_and_all_is_recorded_once() {
    tokio::join!(locked(), gone(), slow());
}

async fn locked() {
    let busy = Busy::start().await;
    let mut other = sqlx::SqliteConnection::connect(&busy.site.store_url()).await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 30000").execute(&mut other).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    busy.goes_on_without("locked").await;
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    busy.all_is_recorded("locked").await;
}

/// The file is moved away, and comes back.
async fn gone() {
    let busy = Busy::start().await;
    let (here, away) = (busy.site.history(), busy.site.dir.path().join("away.db"));
    std::fs::rename(&here, &away).unwrap();
    busy.goes_on_without("gone").await;
    // What somebody else puts there is not ours.
    std::fs::write(&here, "").unwrap();
    busy.site.more_starts(100).await;
    assert_eq!(std::fs::metadata(&here).unwrap().len(), 0);
    std::fs::rename(&away, &here).unwrap();
    busy.all_is_recorded("gone").await;
}

/// Somebody else has the write lock for most of the time.
async fn slow() {
    let busy = Busy::start().await;
    let end = CancellationToken::new();
    let url = busy.site.store_url();
    let slow = tokio::spawn({
        let end = end.clone();
        async move {
            let mut other = sqlx::SqliteConnection::connect(&url).await.unwrap();
            sqlx::query("PRAGMA busy_timeout = 30000").execute(&mut other).await.unwrap();
            while !end.is_cancelled() {
                sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                sqlx::query("COMMIT").execute(&mut other).await.unwrap();
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            other.close().await.unwrap();
        }
    });
    busy.site.more_starts(500).await;
    println!("# slow: {} messages wait in NATS after 500 more starts", busy.waiting().await);
    end.cancel();
    slow.await.unwrap();
    busy.all_is_recorded("slow").await;
}
