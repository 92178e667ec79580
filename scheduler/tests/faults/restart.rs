//! The only nats-server is restarted, killed, or hangs, in the middle of fifty runs a second.

use std::time::Duration;

use serde_json::json;
use taskparty_nats::proxy::{Direction, Proxy};
use taskparty_scheduler::Role;
use tokio::time::Instant;

use crate::rig::{Site, until};
use crate::shop::Shop;

/// Fifty jobs, due each second; one in ten takes a while.
async fn fifty(site: &Site) -> Vec<taskparty_common::job::Job> {
    let mut jobs = site.each_second(45, "settle", json!({})).await;
    jobs.extend(site.each_second(5, "work", json!({ "params": 300 })).await);
    jobs
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_of_the_server_loses_nothing_and_doubles_nothing() {
    let mut site = Site::single().await;
    let node = site.node().await;
    let shops = [Shop::open(&site), Shop::open(&site)];
    let jobs = fifty(&site).await;
    for _ in 0..2 {
        site.more_starts(150).await;
        site.server().restart().await.unwrap();
        site.all_fire_again(&jobs).await;
    }
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("restart");
    for shop in shops {
        shop.close().await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_killed_loses_nothing_and_doubles_nothing() {
    let mut site = Site::single().await;
    let node = site.node().await;
    let shops = [Shop::open(&site), Shop::open(&site)];
    let jobs = fifty(&site).await;
    for _ in 0..3 {
        site.more_starts(120).await;
        site.server().kill();
        site.ledger.nats_forgets();
        site.server().restart().await.unwrap();
        site.all_fire_again(&jobs).await;
    }
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("kill");
    for shop in shops {
        shop.close().await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_hangs_for_ten_seconds_delays_everything_and_loses_nothing() {
    let mut site = Site::single().await;
    let node = site.node().await;
    let shops = [Shop::open(&site), Shop::open(&site)];
    let jobs = fifty(&site).await;
    site.more_starts(150).await;
    site.server().pause().unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    site.server().resume().unwrap();
    let resumed = Instant::now();
    site.all_fire_again(&jobs).await;
    println!("# hang: all fire again after {:?}", resumed.elapsed());
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("hang");
    for shop in shops {
        shop.close().await;
    }
    node.stop().await;
}

/// The PubAcks of dispatches are lost, the work is done meanwhile, and the server forgets all
/// about it: what is sent again now would be done again.
#[tokio::test(flavor = "multi_thread")]
async fn a_dispatch_whose_confirmation_was_lost_is_not_sent_again_to_a_server_that_forgot_it() {
    let mut site = Site::single().await;
    let proxy = Proxy::start(site.address()).await.unwrap();
    let writer = site.node_at(&site.url(), &[Role::LogWriter]).await;
    let node = site.node_at(&proxy.url(), &[Role::Scheduler]).await;
    let shop = Shop::open(&site);
    let jobs = site.each_second(40, "settle", json!({})).await;
    site.more_starts(60).await;
    // On a slow line there is always a dispatch under way.
    proxy.delay(Duration::from_millis(30));
    site.more_starts(40).await;
    proxy.hold(Direction::ToClient);
    until("the end of all work", async || (site.work_left().await == 0).then_some(())).await;
    // What is held back is lost.
    proxy.refuse();
    site.server().restart().await.unwrap();
    proxy.heal();
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("lost confirmations");
    shop.close().await;
    node.stop().await;
    writer.stop().await;
}
