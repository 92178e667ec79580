//! Priorities from a job to its handler: what waits for a slot, and what becomes of work whose
//! executors leave.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;
use serde_json::{Value, json};
use taskparty_common::outcome::RunState;
use taskparty_common::priority::Priority;
use taskparty_executor::{Context, slots};
use taskparty_nats::consume::{Pull, PullConfig};
use taskparty_nats::history::stream_info;
use taskparty_nats::subject::Bucket;
use tokio::sync::Semaphore;
use tokio_util::task::AbortOnDropHandle;

use crate::rig::{Running, Site, job, until, within};
use crate::shop::{Shop, executor};

const STREAM: &str = "TASKPARTY_DISPATCH_shop";

/// The jobs that have begun, in order; each is held until it is let go.
#[derive(Clone)]
struct Gate {
    begun: Arc<Mutex<Vec<String>>>,
    open: Arc<Semaphore>,
}

impl Gate {
    fn shut() -> Self {
        Self { begun: Arc::default(), open: Arc::new(Semaphore::new(0)) }
    }

    fn begun(&self) -> Vec<String> {
        self.begun.lock().unwrap().clone()
    }

    /// An executor with one slot behind this gate.
    fn shop(&self, site: &Site) -> Shop {
        let gate = self.clone();
        Shop::run(executor(&site.url()).handler_with(
            "one",
            slots(1),
            move |ctx: Context, _: Value| {
                let gate = gate.clone();
                async move {
                    gate.begun.lock().unwrap().push(ctx.job().to_string());
                    gate.open.acquire().await?.forget();
                    Ok(())
                }
            },
        ))
    }
}

impl Site {
    /// Fires a job of this priority now, and waits until `count` dispatches are not done.
    async fn fire(&self, id: &str, priority: u32, count: u64) {
        let due = self.clock.now() + TimeDelta::milliseconds(200);
        let at = due.to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        let more = json!({ "priority": priority, "schedule": { "at": at },
            "no_executor_wait": "1s", "redeliveries": 2 });
        self.save(job(id, "one", more)).await;
        until("the dispatch", async || {
            let info = stream_info(self.nats.js(), STREAM).await.ok()?;
            (info.messages == count).then_some(())
        })
        .await;
    }
}

/// Waits until `node` sees an executor.
async fn see(node: &Running) {
    until("the executor", async || (!node.node.registry().entries().is_empty()).then_some(()))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_waits_for_a_slot_begins_in_the_order_of_priorities() {
    let site = Site::single().await;
    let (node, gate) = (site.node().await, Gate::shut());
    let shop = gate.shop(&site);
    see(&node).await;
    site.fire("busy", 5, 1).await;
    until("the first start", async || (gate.begun().len() == 1).then_some(())).await;
    for (at, (id, priority)) in [("last", 9), ("middle", 5), ("first", 0)].into_iter().enumerate() {
        site.fire(id, priority, at as u64 + 2).await;
    }
    // It says that it looks for them before it has a slot for any.
    until("the lines", async || {
        let entries = node.node.registry().priorities();
        (entries.values().next()?.len() == 2).then_some(())
    })
    .await;
    gate.open.add_permits(4);
    until("the last start", async || (gate.begun().len() == 4).then_some(())).await;
    assert_eq!(gate.begun(), ["busy", "first", "middle", "last"]);
    until("all to be done", async || {
        let runs = site.runs_now().await?;
        let done = runs.values().filter(|run| run.state == RunState::Succeeded).count();
        (done == 4).then_some(())
    })
    .await;
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_mixed_fleet_everything_runs_whoever_leaves() {
    let site = Site::single().await;
    let (node, gate) = (site.node().await, Gate::shut());
    let newer = gate.shop(&site);
    see(&node).await;
    site.fire("busy", 5, 1).await;
    until("the first start", async || (gate.begun().len() == 1).then_some(())).await;
    // This one stands where only the newer one looks, which has no slot for it and then leaves.
    site.fire("left", 0, 2).await;
    let _older = older(&site);
    until("the older one", async || (node.node.registry().entries().len() == 2).then_some(()))
        .await;
    site.fire("mixed", 0, 3).await;
    let first = Priority::new(0).unwrap();
    let (app, handler) = ("shop".parse().unwrap(), "one".parse().unwrap());
    let standing = async || {
        let filter = site.nats.names().dispatch_of_priority(&app, &handler, first);
        let stream = site.nats.js().get_stream(STREAM).await.unwrap();
        let info = stream.info_builder().subjects(filter).fetch().await.unwrap();
        futures::StreamExt::count(info).await
    };
    assert_eq!(standing().await, 1, "only what was sent before the older one came");
    let closing = tokio::spawn(newer.close());
    // Its slot must not become free before it has stopped to take work.
    until("the drain", async || {
        node.node.registry().entries().iter().any(|entry| entry.draining).then_some(())
    })
    .await;
    gate.open.add_permits(1);
    within("the newer one's end", closing).await.unwrap();
    assert_eq!(gate.begun(), ["busy"]);

    let mut pull = Pull::new(site.nats.js(), STREAM, "one", PullConfig::default());
    let mut taken = Vec::new();
    for _ in 0..2 {
        let received = within("the work of those that have left", pull.next(1)).await.unwrap();
        let work: Value = serde_json::from_slice(&received.message.payload).unwrap();
        taken.push((work["job"].as_str().unwrap().to_owned(), work["attempt"].as_u64().unwrap()));
        let term = taskparty_nats::lease::term(
            site.buckets.publisher(),
            &received.delivery,
            Duration::from_secs(5),
        );
        term.await.unwrap();
    }
    taken.sort_unstable();
    assert_eq!(taken, [("left".to_owned(), 2), ("mixed".to_owned(), 1)]);
    assert_eq!(standing().await, 0);
    node.stop().await;
}

/// An executor that knows no priorities, live until this is dropped.
fn older(site: &Site) -> AbortOnDropHandle<()> {
    let buckets = site.buckets.clone();
    let entry = json!({ "v": 1, "app": "shop", "instance": "older",
        "started_at": "2026-01-01T00:00:00Z", "handlers": { "one": { "slots": 1 } } });
    AbortOnDropHandle::new(tokio::spawn(async move {
        loop {
            buckets.put(Bucket::Executors, "shop.older", entry.to_string(), None).await.unwrap();
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
    }))
}
