//! R11 and R15: whatever a handler does, its run ends, and one can see why.

use serde_json::{Value, json};
use taskparty_common::dispatch::{MAX_MESSAGE, MAX_OUTPUT};
use taskparty_common::job::MAX_PARAMS;

use crate::shop::{Shop, started_once, starts};
use crate::site::{Site, job};

#[tokio::test(flavor = "multi_thread")]
async fn whatever_a_handler_does_its_run_ends_and_says_why() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    site.apply(&[job("bad", "misbehave", json!({ "params": "panic" }))]).await;
    let run = async |how: &str| {
        let run = site.trigger("bad", &["--params", &json!(how).to_string()]).await;
        let ended = site.ended(&run).await;
        (ended["state"].as_str().unwrap().to_owned(), ended["tries"][0].clone(), run)
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();

    let (state, attempt, id) = run("panic").await;
    assert_eq!((state.as_str(), &attempt["code"]), ("failed", &json!("handler_panic")));
    assert!(text(&attempt["message"]).contains("the till is open"), "{attempt:#}");
    let shown = site.run(&["run", "get", &id]).await.exits(0).stdout;
    assert!(shown.contains("handler_panic") && shown.contains("the till is open"), "{shown}");

    let (state, attempt, _) = run("spawn and panic").await;
    assert_eq!(state, "failed");
    assert!(text(&attempt["message"]).contains("in a task"), "{attempt:#}");

    let (state, attempt, id) = run("5 MB").await;
    assert_eq!((state.as_str(), &attempt["truncated"]), ("succeeded", &json!(true)));
    let output = text(&attempt["output"]);
    assert!(output.starts_with(r#"{"bill":"😀"#) && output.len() <= MAX_OUTPUT);
    site.run(&["run", "get", &id]).await.exits(0);

    let (state, attempt, id) = run("nul").await;
    assert_eq!((state.as_str(), &attempt["output"]), ("succeeded", &json!("\0")));
    site.run(&["run", "get", &id]).await.exits(0);

    let (state, attempt, _) = run("long error").await;
    assert_eq!((state.as_str(), &attempt["truncated"]), ("failed", &json!(true)));
    let message = text(&attempt["message"]);
    assert!(message.starts_with("😀😀") && message.ends_with('…') && message.len() <= MAX_MESSAGE);

    let (state, ..) = run("something unheard of").await;
    assert_eq!(state, "failed");
    assert_eq!(started_once(&starts(&site)).len(), 6);
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn params_up_to_the_limit_reach_the_handler_and_longer_ones_are_refused_when_saved() {
    let site = Site::start().await;
    let node = site.serve("scheduler,log-writer,api").await;
    let shop = Shop::open(&site);
    let params = |size: usize| json!("x".repeat(size - 2));
    for size in [MAX_PARAMS - 1, MAX_PARAMS] {
        site.apply(&[job("large", "settle", json!({ "params": params(size) }))]).await;
        let run = site.trigger("large", &[]).await;
        let ended = site.ended(&run).await;
        assert_eq!(
            (&ended["state"], &ended["tries"][0]["output"]),
            (&json!("succeeded"), &json!(size))
        );
    }
    let saved = site.run(&["job", "get", "large", "-o", "json"]).await.exits(0).json();
    for size in [MAX_PARAMS + 1, 1 << 20] {
        let file = json!({ "jobs": [job("large", "settle", json!({ "params": params(size) }))] });
        site.desk.file("refused.json", &file.to_string());
        let refused = site.run(&["job", "apply", "-f", "refused.json"]).await.exits(2);
        refused.says(&size.to_string()).says(&MAX_PARAMS.to_string());
        let value = format!("@{}", site.desk.file("params.json", &params(size).to_string()));
        let refused = site.run(&["job", "trigger", "large", "--params", &value]).await;
        refused.exits(2).says(&size.to_string()).says(&MAX_PARAMS.to_string());
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let value = format!("@{}", site.desk.file("deep.json", &deep));
    site.run(&["job", "trigger", "large", "--params", &value]).await.exits(2);
    assert_eq!(site.run(&["job", "get", "large", "-o", "json"]).await.json(), saved);
    assert_eq!(site.runs().await.len(), 2);
    shop.close().await;
    node.stop().await;
}
