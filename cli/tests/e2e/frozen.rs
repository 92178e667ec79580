//! The owner of a job stands still between its decision and its publish, for longer than it is
//! taken for alive: another one takes over, and what the first one does late changes nothing (F2).

use chrono::TimeDelta;
use rustix::process::Signal;
use serde_json::json;
use taskparty_nats::clock::Clock;
use taskparty_nats::subject::Bucket;

use crate::facts::{accounted, by_job, recorded_once};
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, each_second, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_owner_that_stands_still_over_a_fire_doubles_nothing_when_it_goes_on() {
    const JOBS: usize = 10;
    let site = Site::start().await;
    let living = site.serve("scheduler,log-writer,api").await;
    let frozen = site.serve_until("scheduler", "fire.before_lock=pause@20").await;
    let shop = Shop::open(&site);
    site.apply(&each_second(JOBS, "settle", json!({}))).await;
    let members = async || site.buckets.entries(Bucket::Schedulers, "*").await.unwrap().len();
    until("both schedulers", async || (members().await == 2).then_some(())).await;
    until("the owner to be taken for dead", async || (members().await == 1).then_some(())).await;
    let since = Clock::system().now();
    let taken_over = async || {
        let fired = site.fired().await;
        let jobs = by_job(&fired);
        let later = since + TimeDelta::seconds(1);
        let all = jobs.values().filter(|fired| fired.iter().any(|f| f.fire_time > later)).count();
        (all == JOBS).then_some(())
    };
    until("all its jobs to fire elsewhere", taken_over).await;
    frozen.signal(Signal::CONT);
    until("it to be a member again", async || (members().await == 2).then_some(())).await;
    let back = site.fired().await.len();
    until("fires of both", async || (site.fired().await.len() > back + 5 * JOBS).then_some(()))
        .await;
    for n in 0..JOBS {
        site.pause(&format!("settle-{n}")).await;
    }
    let runs = site.all_ended().await;
    // What it had half done another one has recorded; it may say the same again, late.
    let mut fired = site.fired().await;
    fired.sort_by_key(|fired| (fired.lock.clone(), fired.run));
    fired.dedup_by_key(|fired| (fired.lock.clone(), fired.run));
    recorded_once(&fired);
    for fired in by_job(&fired).values() {
        accounted(fired, TimeDelta::seconds(1));
    }
    assert_eq!((runs.len(), started_once(&starts(&site)).len()), (fired.len(), fired.len()));
    shop.close().await;
    frozen.stop().await;
    living.stop().await;
}
