//! Jobs with a rate, while the schedulers that count die.

use std::collections::BTreeSet;

use serde_json::json;
use taskparty_common::outcome::RunState;

use crate::facts::recorded_once;
use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job, until};

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_its_rate_begins_when_those_who_counted_are_dead() {
    let site = Site::start().await;
    let rest = site.serve("log-writer,api").await;
    // One dies when it has let runs begin, and has told nobody.
    let first = site.serve_until("scheduler", "fire.after_promoted=kill@2").await;
    let shop = Shop::open(&site);
    site.apply(&[job("paced", "settle", json!({ "rate": "2/2s" }))]).await;
    let mut runs = Vec::new();
    for _ in 0..12 {
        runs.push(site.trigger("paced", &[]).await);
    }
    first.dies().await;
    let second = site.serve("scheduler").await;
    let ended = async |least: usize| {
        let runs = site.runs().await;
        let ended = runs.values().filter(|run| run.state == RunState::Succeeded).count();
        (ended >= least).then_some(())
    };
    until("what the first one left, and one more", async || ended(6).await).await;
    second.kill().await;
    let third = site.serve("scheduler").await;
    for run in &runs {
        assert_eq!(site.ended(run).await["state"], "succeeded");
    }
    let fired: Vec<_> = site.fired().await;
    recorded_once(&fired.iter().filter(|fired| !fired.awaits_place()).cloned().collect::<Vec<_>>());
    assert_eq!(started_once(&starts(&site)).len(), 12, "each once");
    // Nobody who came counted anew: twelve runs are six periods, the last of which need not be over.
    let at: BTreeSet<_> = fired.iter().filter(|f| !f.awaits_place()).map(|f| f.fired_at).collect();
    let took = *at.last().unwrap() - *at.first().unwrap();
    assert!(took.num_milliseconds() >= 9_500, "{took} {at:?}");
    assert_eq!(site.work_left().await, 0);
    site.run(&["doctor", "--audit", "--settle", "1s"]).await.exits(0);
    shop.close().await;
    third.stop().await;
    rest.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_goes_by_the_rate_beside_runs_that_go_on_and_drops_nothing() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let schedule = json!({ "cron": "0 0 * * * ?", "timezone": "UTC" });
    // Each goes on for longer than it takes until the next may begin.
    let spec = json!({ "rate": "1/s", "schedule": schedule, "params": 3_000, "queue_limit": 1 });
    site.apply(&[job("paced", "work", spec)]).await;
    site.pause("paced").await;
    let period = ["--from", "2026-01-01T00:00:00Z", "--to", "2026-01-01T08:00:00Z"];
    site.run(&[&["job", "backfill", "paced"][..], &period].concat()).await.exits(0);
    until("all of it", async || (site.runs().await.len() == 8).then_some(())).await;
    let runs = site.all_ended().await;
    assert!(runs.values().all(|run| run.state == RunState::Succeeded), "{runs:#?}");
    let fired = site.fired().await;
    let begun: Vec<_> =
        fired.iter().filter(|f| !f.awaits_place()).map(|f| (f.fire_time, f.fired_at)).collect();
    assert!(begun.len() == 8 && begun.is_sorted(), "in order: {begun:?}");
    let took = (begun[7].1 - begun[0].1).num_milliseconds();
    assert!(took >= 6_500, "by the rate: {took} ms");
    let mut times: Vec<_> = runs.values().map(|run| (run.started_at, run.ended_at)).collect();
    times.sort_unstable();
    assert!(times.windows(2).any(|pair| pair[1].0 < pair[0].1), "not one by one: {times:?}");
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_says_when_its_rate_allows_it_and_one_that_is_cancelled_or_tried_again_waits_too() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let spec = |rate: &str| job("paced", "settle", json!({ "rate": rate, "overlap": "queue" }));
    site.apply(&[spec("1/60m")]).await;
    let shown = site.run(&["job", "get", "paced"]).await.exits(0);
    assert!(shown.stdout.contains("1/h"), "{}", shown.stdout);
    let first = site.trigger("paced", &[]).await;
    assert_eq!(site.ended(&first).await["state"], "succeeded");
    let waits = [site.trigger("paced", &[]).await, site.trigger("paced", &[]).await];
    let mut said = Vec::new();
    for run in &waits {
        let run = site.seen(run, |state| state == RunState::Waiting).await;
        said.push(run["waits"].as_str().unwrap().to_owned());
    }
    assert!(said[0].starts_with("its rate, 1/h, allows it at 20"), "{said:?}");
    assert!(said[1].ends_with("Z, and one waits before it"), "{said:?}");
    let shown = site.run(&["run", "get", &waits[0]]).await.exits(0);
    assert!(shown.stdout.contains(&said[0]), "{}", shown.stdout);
    site.run(&["run", "retry", &first, "--all-shards"]).await.exits(0);
    site.run(&["run", "cancel", &waits[0]]).await.exits(0);
    assert_eq!(site.ended(&waits[0]).await["state"], "cancelled");
    // Three may begin in this hour: it counts as one more when it is tried again.
    site.apply(&[spec("3/h")]).await;
    assert_eq!(site.ended(&waits[1]).await["state"], "succeeded");
    until("the second round of the first", async || {
        let run = site.ended(&first).await;
        (run["round"] == json!(1) && run["attempts"] == json!(2)).then_some(())
    })
    .await;
    let last = site.trigger("paced", &[]).await;
    let last = site.seen(&last, |state| state == RunState::Waiting).await;
    assert!(last["waits"].as_str().unwrap().starts_with("its rate, 3/h, allows it at "), "{last}");
    shop.close().await;
    node.stop().await;
}
