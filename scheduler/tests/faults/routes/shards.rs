//! What each shard of a run is given, and who takes the shard of an executor that dies over it.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::{Value, json};
use taskparty_common::outcome::{Code, RunState};
use taskparty_executor::{Context, HandlerError, slots};
use taskparty_scheduler::store::RunDetail;
use tokio::sync::Semaphore;

use super::{Process, by, instance, sees, told};
use crate::rig::{Site, job};
use crate::shop::{Shop, executor};

#[tokio::test(flavor = "multi_thread")]
async fn each_shard_gets_its_own_item_of_the_shard_params_and_again_when_it_is_tried_again() {
    let site = Site::single().await;
    let node = site.node().await;
    let item = |ctx: Context, all: String| async move {
        match (ctx.shard_index(), ctx.attempt()) {
            (1, 1) => Err(HandlerError::retry("the first time it fails")),
            _ => Ok((all, ctx.shard_param::<Value>()?)),
        }
    };
    let shop = Shop::run(executor(&site.url()).handler("item", item));
    let items = json!(["eu", { "region": "us" }, 7]);
    let more = json!({
        "params": "all", "shards": 3, "shard_params": items, "schedule": null,
        "retry": { "max": 1, "initial": "100ms" },
    });
    site.save(job("items", "item", more)).await;
    let run = site.ended(site.triggered(json!({ "id": "items" })).await).await;
    assert_eq!(run.run.state, RunState::Succeeded, "{run:#?}");
    let output = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    let got: Vec<(u32, u32, Option<Value>)> = run
        .attempt_rows
        .iter()
        .map(|row| (row.shard, row.attempt, row.output.as_ref().map(|raw| output(raw.get()))))
        .collect();
    let own = |shard: usize| Some(json!(["all", items[shard]]));
    assert_eq!(got, [(0, 1, own(0)), (1, 1, None), (1, 2, own(1)), (2, 1, own(2))]);
    shop.close().await;
    node.stop().await;
}

/// With XXL-JOB such a shard has nobody.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_whose_executor_is_killed_over_it_goes_to_another_and_the_run_succeeds() {
    let site = Site::single().await;
    let node = site.node().await;
    let gate = Arc::new(Semaphore::new(0));
    let opened = gate.clone();
    let stuck = move |ctx: Context, _: String| {
        let gate = opened.clone();
        async move {
            gate.acquire().await?.forget();
            Ok((ctx.shard_index(), ctx.shard_total()))
        }
    };
    let b = executor(&site.url()).instance(instance("b"));
    let b = Shop::run(b.handler_with("stuck", slots(1), stuck));
    for (id, more) in [
        ("chosen", json!({ "shards": 2, "route": "round_robin" })),
        ("shared", json!({ "shards": "executors" })),
    ] {
        let mut a = Process::start(&site, "a");
        sees(&node, &["a", "b"]).await;
        let mut more = more;
        more["params"] = json!("a");
        more["schedule"] = Value::Null;
        site.save(job(id, "stuck", more)).await;
        let run = site.triggered(json!({ "id": id })).await;
        let both_run = |run: &RunDetail| {
            run.attempt_rows.iter().filter(|row| row.state == RunState::Running).count() == 2
        };
        let run = site.run(run, both_run).await;
        let who: BTreeSet<String> = run.attempt_rows.iter().map(by).collect();
        assert_eq!(who, BTreeSet::from(["a".into(), "b".into()]), "one each: {run:#?}");
        let of_a = run.attempt_rows.iter().find(|row| by(row) == "a").unwrap().shard;
        a.kill();
        gate.add_permits(2);
        let run = site.ended(run.run.run).await;
        assert_eq!((run.run.state, run.run.shards), (RunState::Succeeded, Some(2)), "{run:#?}");
        let by_b = || (RunState::Succeeded, None, "b".to_owned());
        let lost = (RunState::Lost, Some(Code::ExecutorLost), "a".to_owned());
        let told = told(&run);
        assert_eq!(told[&(1 - of_a)], [by_b()], "it ran on");
        // What was for `a` alone is another attempt; what anyone may take is delivered again.
        let moved = if id == "chosen" { vec![lost, by_b()] } else { vec![by_b()] };
        assert_eq!(told[&of_a], moved, "{run:#?}");
        for row in run.attempt_rows.iter().filter(|row| row.state == RunState::Succeeded) {
            assert_eq!(row.output.as_ref().unwrap().get(), format!("[{},2]", row.shard));
            let again = id == "shared" && row.shard == of_a;
            assert_eq!(row.delivery, Some(if again { 2 } else { 1 }), "{run:#?}");
        }
    }
    assert_eq!(site.work_left().await, 0);
    b.close().await;
    node.stop().await;
}
