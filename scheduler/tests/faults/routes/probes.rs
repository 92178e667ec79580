//! Who is asked before a run is sent, and is at work, or does not answer.

use std::sync::Arc;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use serde_json::json;
use taskparty_common::outcome::RunState;
use taskparty_executor::{Context, slots};
use tokio::sync::Semaphore;

use super::{DEADLINE, Process, answered_in_time, by, instance, sees, waited};
use crate::rig::{Site, job, until};
use crate::shop::{Shop, executor};

impl Process {
    fn pid(&self) -> Pid {
        Pid::from_child(&self.0)
    }

    /// It keeps its connections, and does nothing any more.
    async fn freeze(&self) {
        kill_process(self.pid(), Signal::STOP).unwrap();
        until("a process that stands still", async || {
            let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            waitid(WaitId::Pid(self.pid()), options).unwrap()
        })
        .await;
    }

    fn thaw(&self) {
        kill_process(self.pid(), Signal::CONT).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn busyover_passes_over_whoever_still_runs_the_job_and_takes_the_first_other_one() {
    let site = Site::single().await;
    let node = site.node().await;
    let gate = Arc::new(Semaphore::new(0));
    let start = |name: &str| {
        let gate = gate.clone();
        let held = move |_: Context, (): ()| {
            let gate = gate.clone();
            async move {
                gate.acquire().await?.forget();
                Ok(())
            }
        };
        let executor = executor(&site.url()).instance(instance(name));
        Shop::run(executor.handler_with("held", slots(8), held))
    };
    let shops = ["a", "b", "c"].map(start);
    sees(&node, &["a", "b", "c"]).await;
    let mut jobs = 0;
    let chosen = until("answers that come in time", async || {
        jobs += 1;
        let id = format!("busy-{jobs}");
        site.save(job(&id, "held", json!({ "route": "busyover", "schedule": null }))).await;
        let (mut chosen, mut at_work, mut all_answered) = (Vec::new(), Vec::new(), true);
        for _ in 0..4 {
            let run = site.triggered(json!({ "id": id })).await;
            let run = site.run(run, |run| run.run.state == RunState::Running).await;
            let row = &run.attempt_rows[0];
            let target = row.target.as_ref().map_or("-".into(), ToString::to_string);
            assert!(!at_work.contains(&target), "it runs there already: {run:#?}");
            at_work.push(by(row));
            chosen.push(target);
            all_answered &= answered_in_time(&run);
        }
        gate.add_permits(4);
        all_answered.then_some(chosen)
    })
    .await;
    assert_eq!(chosen, ["a", "b", "c", "-"], "where all run it, it is for whoever is free");
    for shop in shops {
        shop.close().await;
    }
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_frozen_executors_cost_a_failover_one_deadline_and_it_goes_to_the_one_that_answers() {
    let site = Site::single().await;
    let node = site.node().await;
    let frozen = [Process::start(&site, "a"), Process::start(&site, "b")];
    let c = site.named("c");
    let failover = json!({ "route": "failover", "params": 1, "schedule": null });
    site.save(job("failover", "who", failover)).await;
    // Again while the machine is too busy. One deadline after the other would be two each time.
    let run = until("a run that is sent after one deadline", async || {
        frozen.iter().for_each(Process::thaw);
        sees(&node, &["a", "b", "c"]).await;
        for one in &frozen {
            one.freeze().await;
        }
        let run = site.ended(site.triggered(json!({ "id": "failover" })).await).await;
        assert_eq!((run.run.state, by(&run.attempt_rows[0])), (RunState::Succeeded, "c".into()));
        assert!(waited(&run) >= DEADLINE, "the frozen ones were not waited for: {run:#?}");
        (waited(&run) < DEADLINE * 2).then_some(run)
    })
    .await;
    assert_eq!(run.attempt_rows[0].target, Some(instance("c")), "{run:#?}");
    c.close().await;
    node.stop().await;
}
