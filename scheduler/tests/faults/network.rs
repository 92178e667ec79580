//! A scheduler, an executor or the log writer loses its connection, silently or not.

use std::time::Duration;

use futures::StreamExt;
use serde_json::json;
use taskparty_nats::history::ASK_DEADLINE;
use taskparty_nats::proxy::{Direction, Proxy};
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::Role;

use crate::rig::{Site, within};
use crate::shop::Shop;

/// At once: each waits for most of its time.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_loses_the_connection_in_whatever_way_nothing_is_lost_or_doubled() {
    tokio::join!(
        a_scheduler_that_loses_its_connection(),
        the_only_scheduler_that_is_not_told_that_it_has_the_locks(),
        an_executor_that_loses_its_connection(),
        a_log_writer_that_loses_its_connection(),
    );
}

/// Breaks the connection in each way in turn, while others go on.
async fn break_it(site: &Site, proxy: &Proxy, starts: usize) {
    proxy.cut();
    site.more_starts(starts).await;
    proxy.refuse();
    site.more_starts(starts).await;
    proxy.heal();
    site.more_starts(starts).await;
    // The connection stays, and nothing comes of it.
    proxy.hold(Direction::ToClient);
    site.more_starts(starts).await;
    proxy.heal();
    site.more_starts(starts).await;
    proxy.hold(Direction::ToServer);
    site.more_starts(starts).await;
    proxy.heal();
}

async fn a_scheduler_that_loses_its_connection() {
    let site = Site::single().await;
    let proxy = Proxy::start(site.address()).await.unwrap();
    let unsteady = site.node_at(&proxy.url(), &[Role::Scheduler]).await;
    let steady = site.node_at(&site.url(), &[Role::Scheduler, Role::LogWriter]).await;
    let shop = Shop::open(&site);
    let jobs = site.each_second(40, "settle", json!({})).await;
    site.more_starts(80).await;
    break_it(&site, &proxy, 160).await;
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("unsteady scheduler");
    assert_eq!(judged.again, 0);
    shop.close().await;
    unsteady.stop().await;
    steady.stop().await;
}

/// Who has asked for a lock in vain looks for so long who has it, and then gives the fire up.
const QUIET: Duration = ASK_DEADLINE.saturating_add(Duration::from_secs(2));

async fn the_only_scheduler_that_is_not_told_that_it_has_the_locks() {
    let site = Site::single().await;
    let proxy = Proxy::start(site.address()).await.unwrap();
    let alone = site.node_at(&proxy.url(), &[Role::Scheduler]).await;
    let writer = site.node_at(&site.url(), &[Role::LogWriter]).await;
    let shop = Shop::open(&site);
    // A fire is given up soon after its time, and long before anything is confirmed again.
    let soon = json!({ "misfire": { "policy": "all", "grace": "1s" } });
    let jobs = site.each_second(5, "settle", soon).await;
    site.more_starts(20).await;
    let locks = site.nats.names().key(Bucket::Fires, ">");
    let mut asked = site.nats.client().subscribe(locks).await.unwrap();
    proxy.hold(Direction::ToClient);
    within("the scheduler to give up what is not confirmed", async {
        while tokio::time::timeout(QUIET, asked.next()).await.is_ok() {}
    })
    .await;
    proxy.heal();
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("a scheduler that is not told");
    shop.close().await;
    alone.stop().await;
    writer.stop().await;
}

async fn an_executor_that_loses_its_connection() {
    let site = Site::single().await;
    let proxy = Proxy::start(site.address()).await.unwrap();
    let node = site.node().await;
    let shops = [Shop::open_at(&site, &proxy.url()), Shop::open(&site)];
    let mut jobs = site.each_second(30, "settle", json!({})).await;
    jobs.extend(site.each_second(10, "work", json!({ "params": 400 })).await);
    site.more_starts(80).await;
    break_it(&site, &proxy, 120).await;
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("unsteady executor");
    for shop in shops {
        shop.close().await;
    }
    node.stop().await;
}

async fn a_log_writer_that_loses_its_connection() {
    let site = Site::single().await;
    let proxy = Proxy::start(site.address()).await.unwrap();
    let writer = site.node_at(&proxy.url(), &[Role::LogWriter]).await;
    let node = site.node_at(&site.url(), &[Role::Scheduler]).await;
    let shop = Shop::open(&site);
    let retry = json!({ "params": 1, "retry": { "max": 1, "initial": "100ms" } });
    let mut jobs = site.each_second(30, "settle", json!({})).await;
    jobs.extend(site.each_second(10, "fail", retry).await);
    site.more_starts(80).await;
    break_it(&site, &proxy, 120).await;
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("unsteady log writer");
    shop.close().await;
    writer.stop().await;
    node.stop().await;
}
