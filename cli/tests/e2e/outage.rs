//! R7: the log writer or its database is away, and firing goes on.

use rustix::process::Signal;
use serde_json::json;
use sqlx::Connection;
use taskparty_common::outcome::RunState;

use crate::facts::recorded_once;
use crate::process::Process;
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, each_second, until};

/// Far more than any of the processes needs.
const BOUND: u64 = 256 << 20;

/// A hundred runs a second, a scheduler and a log writer.
struct Busy {
    site: Site,
    scheduler: Process,
    writer: Process,
    shop: Shop,
}

impl Busy {
    async fn start() -> Self {
        let site = Site::start().await;
        let writer = site.serve("log-writer").await;
        let scheduler = site.serve("scheduler,api").await;
        let shop = Shop::open(&site);
        site.apply(&each_second(100, "settle", json!({}))).await;
        let busy = Self { site, scheduler, writer, shop };
        busy.wait_for(200).await;
        until("the first rows", async || (busy.site.runs().await.len() > 100).then_some(())).await;
        busy
    }

    /// Waits for so many more runs.
    async fn wait_for(&self, runs: usize) {
        let before = starts(&self.site).len();
        until("more runs", async || (starts(&self.site).len() >= before + runs).then_some(()))
            .await;
    }

    fn memory_is_bounded(&self) {
        let memory = (self.scheduler.memory(), self.writer.memory());
        assert!(memory.0 < BOUND && memory.1 < BOUND, "{memory:?} bytes");
    }

    /// Every run is in SQL, once, and has succeeded.
    async fn ends_with_all_recorded(self) {
        let Self { site, scheduler, writer, shop } = self;
        scheduler.stop().await;
        let runs = site.all_ended().await;
        let fired = site.fired().await;
        recorded_once(&fired);
        assert!(runs.values().all(|run| run.state == RunState::Succeeded));
        let started = started_once(&starts(&site)).len();
        assert_eq!((runs.len(), started), (fired.len(), fired.len()));
        shop.close().await;
        writer.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_log_writer_is_frozen_firing_goes_on_and_all_is_recorded_afterwards() {
    let busy = Busy::start().await;
    busy.writer.signal(Signal::STOP);
    busy.wait_for(1_500).await;
    busy.memory_is_bounded();
    busy.writer.signal(Signal::CONT);
    busy.wait_for(100).await;
    busy.memory_is_bounded();
    busy.ends_with_all_recorded().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_database_is_locked_firing_goes_on_and_all_is_recorded_afterwards() {
    let busy = Busy::start().await;
    let url = format!("sqlite:{}", busy.site.history().display());
    let mut other = sqlx::SqliteConnection::connect(&url).await.unwrap();
    sqlx::query("PRAGMA busy_timeout = 30000").execute(&mut other).await.unwrap();
    sqlx::query("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
    let before = busy.site.runs().await.len();
    busy.wait_for(1_500).await;
    assert_eq!(busy.site.runs().await.len(), before, "it is locked");
    busy.memory_is_bounded();
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    busy.wait_for(100).await;
    busy.memory_is_bounded();
    busy.ends_with_all_recorded().await;
}
