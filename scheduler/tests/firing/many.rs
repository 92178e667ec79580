//! Many schedulers at once: the lock alone decides.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use serde_json::json;

use crate::rig::{Rig, assert_complete, job, ran};

#[tokio::test]
async fn three_schedulers_and_two_hundred_jobs_a_second_fire_everything_once() {
    let rig = Rig::start().await;
    let schedulers = futures::future::join_all((0..3).map(|_| rig.scheduler())).await;
    let from = rig.clock.now();
    for n in 0..200 {
        rig.save(job(&format!("job-{n}"), json!({ "fixed_rate": "1s" }))).await;
    }
    let until = rig.clock.now() + TimeDelta::seconds(20);
    rig.fired_until(|fired| fired.iter().any(|fired| fired.fire_time > until)).await;
    futures::future::join_all(schedulers.into_iter().map(crate::rig::Scheduler::stop)).await;
    let fired = rig.fired().await;
    let locks: BTreeSet<String> = fired.iter().map(|fired| fired.lock.clone()).collect();
    let runs: BTreeSet<_> = fired.iter().map(|fired| fired.run).collect();
    assert_eq!(locks.len(), fired.len(), "no fire is recorded twice");
    assert_eq!(runs.len(), fired.len());
    assert_eq!(ran(&fired).len(), fired.len(), "every fire ran");
    assert_eq!(locks, rig.locks().await);
    assert_eq!(rig.messages("TASKPARTY_DISPATCH_shop").await as usize, fired.len());
    for n in 0..200 {
        let id = format!("job-{n}");
        let of_job: Vec<_> =
            fired.iter().filter(|fired| fired.job.as_str() == id).cloned().collect();
        assert_complete(&of_job, TimeDelta::seconds(1));
        assert!(of_job.len() >= 20, "{id} from {from}");
    }
}
