//! Three nats-servers: leaders die, all of them are restarted one after the other, one hangs.

use serde_json::json;
use taskparty_common::job::Job;
use tokio::time::Instant;

use crate::rig::{Site, until};
use crate::shop::Shop;

async fn fifty(site: &Site) -> Vec<Job> {
    let mut jobs = site.each_second(45, "settle", json!({})).await;
    jobs.extend(site.each_second(5, "work", json!({ "params": 300 })).await);
    jobs
}

impl Site {
    /// The node that leads `stream`; that leads the cluster, for none.
    async fn leader(&mut self, stream: Option<&str>) -> usize {
        let Some(stream) = stream else {
            return self.cluster_nodes().leader().await.expect("a leader");
        };
        let name = until("the stream's leader", async || {
            let found = self.nats.js().get_stream(stream).await.ok()?;
            found.cached_info().cluster.as_ref()?.leader.clone()
        })
        .await;
        // A node's name ends in its number, from 1.
        name.rsplit_once('-').unwrap().1.parse::<usize>().unwrap() - 1
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn whichever_leader_is_killed_nothing_is_lost_and_nothing_is_doubled() {
    let mut site = Site::cluster().await;
    let nodes = [site.node().await, site.node().await];
    let shops = [Shop::open(&site), Shop::open(&site)];
    let jobs = fifty(&site).await;
    site.more_starts(50).await;
    for stream in [
        None,
        Some("KV_taskparty_fires"),
        Some("TASKPARTY_RESULTS"),
        Some("TASKPARTY_DISPATCH_shop"),
    ] {
        let leader = site.leader(stream).await;
        site.cluster_nodes().node(leader).kill();
        site.ledger.nats_forgets();
        let killed = Instant::now();
        site.more_starts(50).await;
        println!(
            "# killed leader of {}: 50 starts after {:?}",
            stream.unwrap_or("meta"),
            killed.elapsed()
        );
        site.cluster_nodes().restart(leader).await.unwrap();
        site.all_fire_again(&jobs).await;
    }
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("killed leaders");
    for shop in shops {
        shop.close().await;
    }
    for node in nodes {
        node.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_and_a_node_that_hangs_lose_nothing_and_double_nothing() {
    let mut site = Site::cluster().await;
    let nodes = [site.node().await, site.node().await];
    let shops = [Shop::open(&site), Shop::open(&site)];
    let jobs = fifty(&site).await;
    site.more_starts(50).await;
    for index in 0..3 {
        let began = Instant::now();
        site.cluster_nodes().node(index).stop().await;
        site.ledger.nats_forgets();
        site.more_starts(50).await;
        println!("# rolling: 50 starts with node {index} stopped, {:?} after", began.elapsed());
        site.cluster_nodes().restart(index).await.unwrap();
        site.all_fire_again(&jobs).await;
    }
    let hung = site.leader(Some("TASKPARTY_DISPATCH_shop")).await;
    site.cluster_nodes().node(hung).pause().unwrap();
    site.ledger.nats_forgets();
    let began = Instant::now();
    site.more_starts(300).await;
    println!("# hung leader: 300 starts after {:?}", began.elapsed());
    site.cluster_nodes().node(hung).resume().unwrap();
    site.all_fire_again(&jobs).await;
    let judged = site.judge(&jobs).await;
    judged.all_succeeded();
    judged.say("rolling restart and a hung node");
    for shop in shops {
        shop.close().await;
    }
    for node in nodes {
        node.stop().await;
    }
}
