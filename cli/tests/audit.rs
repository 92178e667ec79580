//! `doctor --audit`: clean where all is well, exit 3 and the violation where not, words for what
//! was asked wrongly.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::Rig;

#[tokio::test]
async fn a_start_that_nobody_dispatched_is_found_and_ends_with_3() {
    let rig = Rig::start().await;
    let job = "{id: tick, app: shop, handler: settle, overlap: allow, no_executor_wait: 0s}";
    rig.desk.run_with(&["job", "apply", "-f", "-"], job).await.exits(0);
    // Nobody is there to run it: it ends at once, and that is history too.
    let run = rig.run(&["job", "trigger", "tick", "-o", "json"]).await.exits(0).json();
    let run = run["run"].as_str().unwrap().to_owned();
    ended(&rig, &run).await;

    let audit = ["doctor", "--audit", "--since", "1m", "--settle", "0s"];
    let clean = rig.run(&audit).await.exits(0);
    assert!(clean.stdout.contains("nothing is wrong"), "{clean:#?}");
    let report = rig.run(&[&audit[..], &["-o", "json"]].concat()).await.exits(0).json();
    assert_eq!((&report["judged"]["runs"], &report["violations_total"]), (&json!(1), &json!(0)));

    let start = json!({ "run": run, "shard": 0, "attempt": 2, "delivery": 1, "instance": "one",
        "at": report["from"] });
    rig.desk.file("starts.ndjson", &format!("{start}\n"));
    let with = [&audit[..], &["--starts", "starts.ndjson"]].concat();
    let found = rig.run(&[&with[..], &["-o", "json"]].concat()).await.exits(3).json();
    assert_eq!(found["violations"][0]["kind"], "start_undispatched");
    assert_eq!(found["violations"][0]["run"], json!(run));
    let shown = rig.run(&with).await.exits(3);
    assert!(shown.stdout.contains("1 violations: 1 start_undispatched"), "{shown:#?}");

    rig.desk.file("garbage.ndjson", "{}\n");
    let garbage = [&audit[..], &["--starts", "garbage.ndjson"]].concat();
    rig.run(&garbage).await.exits(2).says("garbage.ndjson, line 1");
    rig.run(&["doctor", "--audit", "--from", "2027-01-01T00:00:00"]).await.exits(2).says("offset");
    rig.run(&["doctor", "--audit", "--since", "soon"]).await.exits(2).says("--since");
    rig.run(&["doctor", "--since", "1h"]).await.exits(2).says("--audit");
    rig.stop().await;
}

/// Waits until history has the run at its end.
async fn ended(rig: &Rig, run: &str) {
    let look = async {
        loop {
            let ran = rig.run(&["run", "get", run, "-o", "json"]).await;
            let state = serde_json::from_str::<Value>(&ran.stdout).unwrap_or_default();
            if state["state"] == "not_started" {
                return;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), look).await.unwrap();
}
