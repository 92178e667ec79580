//! Instants of the past that somebody wants to run, and who dies over them.

use std::collections::BTreeSet;

use chrono::{DateTime, SecondsFormat, TimeDelta, Timelike, Utc};
use serde_json::{Value, json};
use taskparty_common::outcome::RunState;
use taskparty_nats::clock::Clock;

use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job, until};

fn text(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Secs, true)
}

/// An hour that begins `hours` ago, at its full hour.
fn hour(hours: i64) -> (DateTime<Utc>, DateTime<Utc>) {
    let now = Clock::system().now();
    let full =
        now.with_minute(0).and_then(|at| at.with_second(0)).and_then(|at| at.with_nanosecond(0));
    let from = full.unwrap() - TimeDelta::hours(hours);
    (from, from + TimeDelta::hours(1))
}

async fn backfill(site: &Site, job: &str, more: &[&str]) -> Value {
    site.run(&[&["job", "backfill", job, "-o", "json"], more].concat()).await.exits(0).json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_runs_each_instant_once_in_turn_whatever_process_dies_over_it() {
    let site = Site::start().await;
    let shop = Shop::open(&site);
    let writer = site.serve("log-writer").await;
    let first = site.serve("api").await;
    // Each ten minutes; nothing of it is due while the test runs but by chance.
    let schedule = json!({ "cron": "0 */10 * * * ?", "timezone": "UTC" });
    site.apply(&[
        job("bills", "work", json!({ "params": 200, "schedule": schedule, "overlap": "skip" })),
        job(
            "seconds",
            "settle",
            json!({ "schedule": { "cron": "* * * * * ?", "timezone": "UTC" } }),
        ),
    ])
    .await;
    site.pause("bills").await;
    site.pause("seconds").await;
    first.stop().await;
    let (from, to) = hour(3);
    let (begin, end) = (text(from), text(to));
    let period = ["--from", begin.as_str(), "--to", end.as_str()];
    // Stored, and then the API's node is gone before it answers.
    let doomed = site.serve_until("api", "api.after_backfill=kill@1").await;
    site.run(&[&["job", "backfill", "bills"][..], &period].concat()).await;
    doomed.dies().await;
    // A scheduler dies between an instant's run and what is left.
    let doomed = site.serve_until("scheduler", "backfill.after_step=kill@2").await;
    doomed.dies().await;
    let rest = site.serve("scheduler,api").await;
    let runs = until("all six", async || {
        let runs = site.runs().await;
        (runs.len() == 6 && runs.values().all(|run| run.state.is_terminal())).then_some(runs)
    })
    .await;
    assert!(runs.values().all(|run| run.state == RunState::Succeeded), "{runs:#?}");
    let instants: BTreeSet<_> = runs.values().filter_map(|run| run.fire_time).collect();
    let wanted: BTreeSet<_> = (0..6).map(|n| from + TimeDelta::minutes(10) * n).collect();
    assert_eq!(instants, wanted, "from inclusive, to exclusive");
    assert_eq!(started_once(&starts(&site)).len(), 6);
    // In turn, and in order.
    let mut order: Vec<_> = runs.values().collect();
    order.sort_unstable_by_key(|run| run.fire_time);
    assert!(order.windows(2).all(|pair| pair[0].ended_at <= pair[1].started_at), "{order:#?}");

    // What ran is left out, until it is asked for again.
    let made = backfill(&site, "bills", &period).await;
    assert_eq!(
        (&made["instants"], &made["to_run"], &made["left_out"]),
        (&json!(6), &json!(0), &json!(6))
    );
    let made =
        backfill(&site, "bills", &[&period[..], &["--again", "--overlap", "allow"]].concat()).await;
    assert_eq!((&made["to_run"], &made["known"]), (&json!(6), &json!(6)));
    until("all six again", async || {
        let runs = site.runs().await;
        let good = runs.values().filter(|run| run.state == RunState::Succeeded).count();
        (good == 12).then_some(())
    })
    .await;

    site.apply(&[job("pulse", "settle", json!({ "schedule": { "fixed_delay": "1h" } }))]).await;
    let ahead = text(Clock::system().now() + TimeDelta::hours(1));
    for (job, to, words) in [
        ("bills", begin.as_str(), "not after"),
        ("bills", ahead.as_str(), "ahead"),
        ("seconds", end.as_str(), "2000"),
    ] {
        let refused = site.run(&["job", "backfill", job, "--from", &begin, "--to", to]).await;
        refused.exits(2).says(words);
    }
    let pulse = site.run(&[&["job", "backfill", "pulse"][..], &period].concat()).await;
    pulse.exits(1).says("fixed delay");
    site.all_ended().await;
    assert_eq!(site.alerts().await.len(), 0);
    site.run(&["doctor", "--audit", "--since", "5h", "--settle", "1s"]).await.exits(0);
    shop.close().await;
    rest.stop().await;
    writer.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backfill_leaves_to_the_schedule_what_is_still_to_come_by_it() {
    let site = Site::start().await;
    let shop = Shop::open(&site);
    let node = site.serve("log-writer,api").await;
    let scheduler = site.serve("scheduler").await;
    let every = json!({ "cron": "* * * * * ?", "timezone": "UTC" });
    let mut late = every.clone();
    late["spread"] = json!("1h");
    let all = json!({ "schedule": every, "misfire": { "policy": "all", "grace": "1s" } });
    site.apply(&[
        job("spread", "settle", json!({ "schedule": late })),
        job("missed", "settle", all),
    ])
    .await;
    let from = Clock::system().now().with_nanosecond(0).unwrap() + TimeDelta::seconds(1);
    until("some have run", async || (site.runs().await.len() > 2).then_some(())).await;
    scheduler.stop().await;
    // What is due and has not fired, as nobody is there to: three seconds of it. Then what is due later.
    let (mut to, begin) = (from, text(from));
    for job in ["missed", "spread"] {
        let made = until("instants that are to come", async || {
            to = Clock::system().now();
            let made = backfill(&site, job, &["--from", &begin, "--to", &text(to)]).await;
            (made["to_come"].as_u64() >= Some(3)).then_some(made)
        })
        .await;
        assert_eq!(made["to_run"], 0, "{job}: {made}");
        let ran = made["instants"].as_u64().unwrap() - made["to_come"].as_u64().unwrap();
        assert_eq!(made["left_out"].as_u64(), Some(ran), "{job}: {made}");
        assert_eq!(ran > 0, job == "missed", "{job}: {made}");
    }
    let ran = site.run(&["job", "backfill", "spread", "--from", &begin, "--to", &text(to)]).await;
    assert!(ran.exits(0).stdout.contains("still the schedule's own"));
    let scheduler = site.serve("scheduler").await;
    let runs = until("the schedule has caught up", async || {
        let runs = site.runs().await;
        let last = runs.values().filter_map(|run| run.fire_time).max();
        last.is_some_and(|last| last >= to).then_some(runs)
    })
    .await;
    let instants: Vec<_> = runs.values().filter_map(|run| run.fire_time).collect();
    let distinct: BTreeSet<_> = instants.iter().collect();
    assert_eq!(distinct.len(), instants.len(), "none runs twice");
    // What was before the job is nobody's but the backfill's.
    let before = text(from - TimeDelta::seconds(65));
    let end = text(from - TimeDelta::seconds(60));
    let made = backfill(&site, "spread", &["--from", &before, "--to", &end]).await;
    assert_eq!((&made["to_run"], &made["to_come"]), (&json!(5), &json!(0)));
    shop.close().await;
    scheduler.stop().await;
    node.stop().await;
}
