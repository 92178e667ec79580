//! What was for an executor that dies, is dead already, or is cut off: R8.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use taskparty_common::outcome::{Code, RunState};
use taskparty_executor::Context;
use taskparty_nats::proxy::Proxy;

use super::{Process, by, instance, sees, told};
use crate::rig::{Site, job};
use crate::shop::{Shop, executor};

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_killed_executor_and_what_ran_there_goes_to_another_and_a_broadcast_does_not()
 {
    let site = Site::single().await;
    let node = site.node().await;
    let mut killed = Process::start(&site, "a");
    let other = site.named("b");
    sees(&node, &["a", "b"]).await;
    let more = |more: Value| {
        let mut all = json!({ "params": "a", "redeliveries": 1, "schedule": null });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all
    };
    site.save(job("first", "stuck", more(json!({ "route": "first" })))).await;
    let retried = json!({ "route": "broadcast", "retry": { "max": 5, "initial": "100ms" } });
    site.save(job("all", "stuck", more(retried))).await;
    let running = site.triggered(json!({ "id": "first" })).await;
    site.run(running, |run| run.run.state == RunState::Running).await;
    // One waits in its hands, the others in the stream.
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(site.triggered(json!({ "id": "first" })).await);
    }
    let everywhere = site.triggered(json!({ "id": "all" })).await;
    let pinned = site.triggered(json!({ "id": "first", "instance": "a" })).await;
    site.run(everywhere, |run| run.attempt_rows.iter().any(|row| row.outcome.is_some())).await;
    site.run(pinned, |run| !run.attempt_rows.is_empty()).await;
    killed.kill();

    let run = site.ended(running).await;
    let gone = Some(Code::ExecutorLost);
    assert_eq!(
        told(&run)[&0],
        [(RunState::Lost, gone, "a".into()), (RunState::Succeeded, None, "b".into())],
        "{run:#?}"
    );
    assert!(run.attempt_rows[0].moved && run.attempt_rows[0].target == Some(instance("a")));
    let mut untouched = 0;
    for run in waiting {
        let run = site.ended(run).await;
        assert_eq!(run.run.state, RunState::Succeeded, "{run:#?}");
        assert_eq!((run.attempt_rows.len(), by(&run.attempt_rows[1])), (2, "b".into()));
        untouched += usize::from(run.attempt_rows[0].state == RunState::NotStarted);
    }
    assert!(untouched >= 2, "what nobody had begun is not lost");
    let run = site.ended(everywhere).await;
    let told = told(&run);
    assert_eq!(told[&1], [(RunState::Succeeded, None, "b".into())]);
    assert_eq!((told[&0].len(), told[&0][0].1), (1, gone), "no retry brings it back: {run:#?}");
    assert!(matches!(run.run.state, RunState::Lost | RunState::NotStarted), "{run:#?}");
    let run = site.ended(pinned).await;
    assert_eq!((run.attempt_rows.len(), run.run.code), (1, gone), "{run:#?}");
    assert_eq!(site.work_left().await, 0);
    site.consumer_is_removed("a").await;
    let live = json!({ "id": "first", "instance": "a" });
    let subject = site.nats.names().api("job", "trigger");
    let refused = site.nats.client().request(subject, live.to_string().into()).await.unwrap();
    let refused = String::from_utf8(refused.payload.to_vec()).unwrap();
    assert!(
        refused.contains("no live executor of shop/stuck") && refused.contains('b'),
        "{refused}"
    );
    other.close().await;
    node.stop().await;
}

/// R8: one of three is dead, and still registered.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_executor_that_is_still_registered_costs_a_broadcast_its_shard_and_other_shards_nothing()
 {
    let site = Site::single().await;
    let node = site.node().await;
    let mut dead = Process::start(&site, "a");
    let (b, c) = (site.named("b"), site.named("c"));
    sees(&node, &["a", "b", "c"]).await;
    for (id, more) in [
        ("all", json!({ "route": "broadcast", "retry": { "max": 2, "initial": "100ms" } })),
        ("shared", json!({ "shards": "executors" })),
        ("alive", json!({ "route": "failover" })),
        ("hashed", json!({ "shards": 8, "route": "consistent_hash" })),
    ] {
        let mut more = more;
        more["params"] = json!(1);
        more["schedule"] = Value::Null;
        site.save(job(id, "who", more)).await;
    }
    dead.kill();
    let trigger = async |id: &str| site.triggered(json!({ "id": id })).await;
    let (all, shared, alive, hashed) =
        tokio::join!(trigger("all"), trigger("shared"), trigger("alive"), trigger("hashed"));
    assert_eq!(node.node.registry().entries().len(), 3, "it is registered still");
    let alive = site.ended(alive).await;
    assert_eq!(told(&alive)[&0], [(RunState::Succeeded, None, "b".into())], "asked, not guessed");
    let shared = site.ended(shared).await;
    assert_eq!((shared.run.state, shared.run.shards), (RunState::Succeeded, Some(3)));
    assert!(shared.attempt_rows.iter().all(|row| row.attempt == 1), "nobody waited for the dead");
    let all = site.ended(all).await;
    let ends: Vec<_> = told(&all).into_values().collect();
    let ended = |who: &str| vec![(RunState::Succeeded, None, who.to_owned())];
    let gone = vec![(RunState::NotStarted, Some(Code::ExecutorLost), "-".to_owned())];
    assert_eq!(ends, [gone, ended("b"), ended("c")], "{all:#?}");
    assert_eq!((all.run.state, all.run.code), (RunState::NotStarted, Some(Code::ExecutorLost)));
    let hashed = site.ended(hashed).await;
    assert_eq!((hashed.run.state, hashed.run.shards), (RunState::Succeeded, Some(8)));
    let moved: Vec<_> = hashed.attempt_rows.iter().filter(|row| row.moved).collect();
    assert!(!moved.is_empty() && moved.iter().all(|row| row.target == Some(instance("a"))));
    b.close().await;
    c.close().await;
    node.stop().await;
}

/// Counts who is at work, while it lives.
struct AtWork(Arc<AtomicUsize>);

impl AtWork {
    fn begin(now: &Arc<AtomicUsize>, most: &AtomicUsize) -> Self {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Self(now.clone())
    }
}

impl Drop for AtWork {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_was_cut_off_shares_its_work_with_nobody_and_gets_some_again_when_it_is_back()
 {
    let site = Site::single().await;
    let node = site.node().await;
    let proxy = Proxy::start(site.address()).await.unwrap();
    let (now, most) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let start = |url: &str, name: &str| {
        let (now, most) = (now.clone(), most.clone());
        let work = move |ctx: Context, stuck: bool| {
            let at_work = AtWork::begin(&now, &most);
            async move {
                if stuck && ctx.instance().as_str() == "a" {
                    std::future::pending::<()>().await;
                }
                drop(at_work);
                Ok(ctx.instance().clone())
            }
        };
        Shop::run(executor(url).instance(instance(name)).handler("work", work))
    };
    let (a, b) = (start(&proxy.url(), "a"), start(&site.url(), "b"));
    sees(&node, &["a", "b"]).await;
    let first = json!({ "route": "first", "params": true, "schedule": null });
    site.save(job("first", "work", first)).await;
    let run = site.triggered(json!({ "id": "first" })).await;
    site.run(run, |run| run.run.state == RunState::Running).await;
    proxy.refuse();
    let run = site.ended(run).await;
    let gone = Some(Code::ExecutorLost);
    assert_eq!(
        told(&run)[&0],
        [(RunState::Lost, gone, "a".into()), (RunState::Succeeded, None, "b".into())]
    );
    assert!(run.attempt_rows[0].notes.is_empty(), "no late report");
    proxy.heal();
    sees(&node, &["a", "b"]).await;
    let again = site.triggered(json!({ "id": "first", "params": false })).await;
    let again = site.ended(again).await;
    assert_eq!(told(&again)[&0], [(RunState::Succeeded, None, "a".into())], "{again:#?}");
    assert_eq!(most.load(Ordering::SeqCst), 1, "two held one lease");
    let alerts = site.nats.names().alerts_stream();
    let alerts = taskparty_nats::history::stream_info(site.nats.js(), &alerts).await.unwrap();
    assert_eq!(alerts.messages, 0, "what was removed and made again is nobody's mischief");
    a.close().await;
    b.close().await;
    node.stop().await;
}
