//! Retries, alerts, and runs that somebody asks for.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use taskparty_nats::clock::Clock;

use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job, until};

fn time(value: &Value) -> DateTime<Utc> {
    serde_json::from_value(value.clone()).unwrap_or_else(|error| panic!("{value}: {error}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_always_fails_is_tried_four_times_ever_later_and_then_raises_one_alert() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let retry = json!({ "max": 3, "initial": "300ms", "factor": 2, "jitter": 0.1 });
    site.apply(&[
        job("hopeless", "flaky", json!({ "params": 99, "retry": retry })),
        job("fence", "settle", json!({})),
    ])
    .await;
    let run = site.trigger("hopeless", &[]).await;
    let ended = site.ended(&run).await;
    assert_eq!((&ended["state"], &ended["code"]), (&json!("failed"), &json!("handler_error")));
    let tries = ended["tries"].as_array().unwrap();
    assert_eq!(tries.len(), 4, "{ended:#}");
    let mut shortest = TimeDelta::zero();
    for (n, pair) in tries.windows(2).enumerate() {
        let delay = time(&pair[1]["due_at"]) - time(&pair[0]["ended_at"]);
        let promised = TimeDelta::milliseconds(300 << n);
        assert!(delay >= promised && delay > shortest, "retry {n} after {delay}");
        assert!(time(&pair[1]["started_at"]) >= time(&pair[1]["due_at"]), "{pair:#?}");
        assert_eq!(pair[1]["message"], format!("attempt {} fails", n + 2));
        shortest = delay;
    }
    let alert = until("the alert", async || site.alerts().await.pop()).await;
    assert_eq!((alert.run.unwrap().to_string(), alert.attempts), (run.clone(), 4));
    assert!(alert.at >= time(&tries[3]["ended_at"]));
    let fence = site.trigger("fence", &[]).await;
    site.ended(&fence).await;
    let ended = site.ended(&run).await;
    assert_eq!((site.alerts().await.len(), ended["alerts"].as_array().unwrap().len()), (1, 1));
    assert_eq!(ended["pending"], json!([]));
    assert_eq!(started_once(&starts(&site)).len(), 5);
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_that_succeeds_makes_the_run_a_success_without_an_alert() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let retry = json!({ "max": 5, "initial": "100ms" });
    site.apply(&[job("unsteady", "flaky", json!({ "params": 2, "retry": retry, "shards": 3 }))])
        .await;
    let run = site.trigger("unsteady", &[]).await;
    let ended = site.ended(&run).await;
    assert_eq!(ended["state"], "succeeded", "{ended:#}");
    let tries = ended["tries"].as_array().unwrap();
    let states: Vec<_> = tries.iter().map(|t| (&t["shard"], &t["attempt"], &t["state"])).collect();
    for (n, (shard, attempt, state)) in states.iter().enumerate() {
        let wanted = if n % 3 == 2 { "succeeded" } else { "failed" };
        assert_eq!((*shard, *attempt, *state), (&json!(n / 3), &json!(n % 3 + 1), &json!(wanted)));
    }
    assert_eq!(started_once(&starts(&site)).len(), 9);
    assert_eq!((site.alerts().await.len(), &ended["alerts"]), (0, &json!([])));
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_trigger_runs_now_or_later_with_its_own_params_and_a_key_runs_once() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    site.apply(&[job("order", "settle", json!({ "params": "own" }))]).await;

    let asked = Clock::system().now();
    let later = site.trigger("order", &["--in", "2s", "--key", "later"]).await;
    let now = site.trigger("order", &["--params", r#""of this run""#]).await;
    let (one, again) = (
        site.trigger("order", &["--key", "order-1"]).await,
        site.trigger("order", &["--key", "order-1"]).await,
    );
    assert_eq!(one, again);
    let manual = site.ended(&now).await;
    assert_eq!((&manual["state"], &manual["trigger"]), (&json!("succeeded"), &json!("manual")));
    assert_eq!(manual["tries"][0]["output"], r#""of this run""#.len());
    let delayed = site.ended(&later).await;
    assert_eq!((&delayed["state"], &delayed["trigger"]), (&json!("succeeded"), &json!("delayed")));
    assert_eq!(delayed["tries"][0]["output"], r#""own""#.len());
    let two_seconds = asked + TimeDelta::seconds(2);
    assert!(
        time(&delayed["fire_time"]) >= two_seconds && time(&delayed["fired_at"]) >= two_seconds
    );
    // Long after it ran, a key is still known.
    assert_eq!(site.trigger("order", &["--key", "later"]).await, later);
    assert_eq!(site.trigger("order", &["--key", "order-1", "--in", "1s"]).await, one);
    let last = site.trigger("order", &[]).await;
    site.ended(&last).await;
    assert_eq!(started_once(&starts(&site)).len(), 4);
    assert_eq!((site.locks().await.len(), site.runs().await.len()), (4, 4));
    shop.close().await;
    node.stop().await;
}
