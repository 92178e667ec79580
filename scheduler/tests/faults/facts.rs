//! What there is to be seen of an installation, and the judgement over all of it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::TryStreamExt;
use taskparty_common::dispatch::{Alert, ResultRecord};
use taskparty_common::fire::{Fired, Intent};
use taskparty_common::job::Job;
use taskparty_common::outcome::{RunState, Trigger};
use taskparty_nats::history::{Start, read, stream_info};
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::store::{RunFilter, RunRow};
use tokio::time::Instant;
use uuid::Uuid;

use crate::rig::{PATIENCE, Site, until};

/// A nats-server that is killed forgets the deliveries of its last moments (it writes them down
/// each 100 ms or so), and counts anew what it delivers again. Nothing can be done about that.
const MEMORY: TimeDelta = TimeDelta::milliseconds(1_000);

/// How long one look at a stream may take.
const LOOK: Duration = Duration::from_secs(30);

/// What a test ended with.
#[derive(Debug)]
pub(crate) struct Judged {
    pub(crate) runs: BTreeMap<Uuid, RunRow>,
    /// Attempts of which more than one delivery was started.
    pub(crate) again: usize,
}

impl Site {
    async fn lines<T: serde::de::DeserializeOwned>(
        &self,
        stream: &str,
        subject: String,
    ) -> Option<Vec<T>> {
        let mut all = Vec::new();
        let visit = |record: taskparty_nats::history::Record| {
            let lines = record.payload.split(|byte| *byte == b'\n');
            all.extend(lines.map(|line| serde_json::from_slice::<T>(line).unwrap()));
            ControlFlow::Continue(())
        };
        read(self.nats.js(), stream, &[subject], Start::First, LOOK, visit).await.ok()?;
        Some(all)
    }

    /// All fired records, each fire once; none when they cannot be read now.
    pub(crate) async fn fired_now(&self) -> Option<Vec<Fired>> {
        let names = self.nats.names();
        let all: Vec<Fired> = self.lines(&names.results_stream(), names.fired_all()).await?;
        let mut by_lock = BTreeMap::new();
        for fired in all {
            by_lock.entry(fired.lock.clone()).or_insert(fired);
        }
        Some(by_lock.into_values().collect())
    }

    /// All results.
    pub(crate) async fn results(&self) -> Vec<ResultRecord> {
        let names = self.nats.names();
        let (stream, subject) = (names.results_stream(), names.result_all());
        until("a look at the results", async || self.lines(&stream, subject.clone()).await).await
    }

    /// All alerts.
    pub(crate) async fn alerts(&self) -> Vec<Alert> {
        let names = self.nats.names();
        let (stream, subject) = (names.alerts_stream(), names.alert_all());
        until("a look at the alerts", async || self.lines(&stream, subject.clone()).await).await
    }

    /// The runs whose locks are there; none when they cannot be read now.
    async fn locked(&self) -> Option<BTreeSet<Uuid>> {
        let locks = self.buckets.entries(Bucket::Fires, ">").await.ok()?;
        let run = |value: &[u8]| serde_json::from_slice::<Intent>(value).unwrap().run;
        Some(locks.iter().filter_map(|entry| entry.value.as_deref().map(run)).collect())
    }

    /// What is not done, in the stream of the shop's work.
    pub(crate) async fn work_left(&self) -> u64 {
        until("a look at the work", async || {
            Some(stream_info(self.nats.js(), "TASKPARTY_DISPATCH_shop").await.ok()?.messages)
        })
        .await
    }

    /// What of that anybody will still get: a server whose disk was full may keep a message that its
    /// consumer holds for acked.
    pub(crate) async fn work_to_come(&self) -> u64 {
        until("a look at the consumers", async || {
            let stream = self.nats.js().get_stream("TASKPARTY_DISPATCH_shop").await.ok()?;
            let consumers: Vec<_> = stream.consumers().try_collect().await.ok()?;
            let to_come = consumers.iter().map(|one| one.num_pending + one.num_ack_pending as u64);
            Some(to_come.sum())
        })
        .await
    }

    /// All runs in SQL; none when they cannot be read now.
    pub(crate) async fn runs_now(&self) -> Option<BTreeMap<Uuid, RunRow>> {
        let mut all = BTreeMap::new();
        let mut filter = RunFilter { limit: Some(1000), ..RunFilter::default() };
        loop {
            let page = self.store().await.runs(&filter).await.ok()?;
            for run in page.items {
                all.insert(run.run, run);
            }
            match page.next {
                Some(next) => filter.after = Some(next.parse().unwrap()),
                None => return Some(all),
            }
        }
    }

    pub(crate) async fn runs(&self) -> BTreeMap<Uuid, RunRow> {
        until("a look at the history", async || self.runs_now().await).await
    }

    /// Waits for so many more starts of handlers.
    pub(crate) async fn more_starts(&self, count: usize) {
        let before = self.ledger.len();
        until("more starts of handlers", async || {
            (self.ledger.len() >= before + count).then_some(())
        })
        .await;
    }

    /// Waits until every one of the jobs has fired for an instant after now.
    pub(crate) async fn all_fire_again(&self, jobs: &[Job]) {
        let now = self.clock.now();
        until("a fire of each job after the fault", async || {
            let fired = self.fired_now().await?;
            let after: BTreeSet<&str> =
                fired.iter().filter(|f| f.fire_time > now).map(|f| f.job.as_str()).collect();
            jobs.iter().all(|job| after.contains(job.spec.id.as_str())).then_some(())
        })
        .await;
    }

    /// Pauses the jobs, waits until all is over, and judges: nothing is lost, nothing is doubled,
    /// everything has ended.
    pub(crate) async fn judge(&self, jobs: &[Job]) -> Judged {
        self.judge_with(jobs, Self::work_left).await
    }

    /// As [`Site::judge`], with another look at the work that is left.
    pub(crate) async fn judge_with(
        &self,
        jobs: &[Job],
        left: impl AsyncFn(&Self) -> u64,
    ) -> Judged {
        self.pause(jobs).await;
        let judged = self.settled_with(left).await;
        for (job, of_job) in judged.by_job() {
            accounted(job, &of_job, TimeDelta::seconds(1));
        }
        judged
    }

    /// Waits until every run whose lock was taken has its fired record and its end in SQL, and no
    /// work is left.
    pub(crate) async fn settled(&self) -> Judged {
        self.settled_with(Self::work_left).await
    }

    async fn settled_with(&self, left: impl AsyncFn(&Self) -> u64) -> Judged {
        let end = Instant::now() + PATIENCE;
        let runs = loop {
            // In this order: a record comes after its lock.
            let locked = until("a look at the locks", async || self.locked().await).await;
            let (runs, left) = (self.runs().await, left(self).await);
            let open: Vec<&RunRow> = runs.values().filter(|run| !run.state.is_terminal()).collect();
            let is_unknown =
                |run: &&Uuid| runs.get(run).is_none_or(|run| run.trigger_result.is_none());
            let unknown: Vec<&Uuid> = locked.iter().filter(is_unknown).collect();
            if left == 0 && open.is_empty() && unknown.is_empty() && !runs.is_empty() {
                break runs;
            }
            assert!(
                Instant::now() < end,
                "{left} dispatches; {} open, such as {:#?}; {} not recorded, such as {:?}",
                open.len(),
                open.first(),
                unknown.len(),
                unknown.first().map(|run| (run, runs.get(run))),
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        };
        let again = self.never_twice(&runs);
        Judged { runs, again }
    }

    /// Asserts that no delivery of an attempt was started twice, and that what succeeded was
    /// started; returns the attempts of which more than one delivery was.
    fn never_twice(&self, runs: &BTreeMap<Uuid, RunRow>) -> usize {
        let mut again = 0;
        let mut started = BTreeSet::new();
        let forgotten = self.ledger.forgotten();
        for ((run, attempt), starts) in self.ledger.by_attempt() {
            started.insert(run);
            let mut deliveries = BTreeSet::new();
            for start in &starts {
                let known = |at: &DateTime<Utc>| !(*at - MEMORY..=*at).contains(&start.at);
                let counts = forgotten.iter().all(known);
                let first = deliveries.insert(start.delivery) || !counts;
                assert!(first, "attempt {attempt} twice: {starts:#?}, forgotten at {forgotten:?}");
                if !counts {
                    deliveries.remove(&start.delivery);
                }
            }
            again += usize::from(starts.len() > 1);
        }
        for run in runs.values().filter(|run| run.state == RunState::Succeeded) {
            assert!(started.contains(&run.run), "never started: {run:#?}");
        }
        again
    }
}

impl Judged {
    /// Asserts that every run has succeeded.
    pub(crate) fn all_succeeded(&self) {
        let wrong = self.runs.values().find(|run| run.state != RunState::Succeeded);
        assert!(wrong.is_none(), "{wrong:#?}");
    }

    /// One line for people.
    pub(crate) fn say(&self, test: &str) {
        println!("# {test}: {} runs, {} attempts started again", self.runs.len(), self.again);
    }

    /// The runs of schedules.
    fn by_job(&self) -> BTreeMap<&str, Vec<&RunRow>> {
        let mut all: BTreeMap<&str, Vec<&RunRow>> = BTreeMap::new();
        let scheduled =
            |run: &&RunRow| matches!(run.trigger, Some(Trigger::Schedule | Trigger::Misfire));
        for run in self.runs.values().filter(scheduled) {
            all.entry(run.job.as_str()).or_default().push(run);
        }
        all
    }
}

/// Asserts that of a job that is due each `period` every instant is accounted for, once.
fn accounted(job: &str, runs: &[&RunRow], period: TimeDelta) {
    let mut stretches: Vec<(DateTime<Utc>, DateTime<Utc>)> = runs
        .iter()
        .map(|run| match (run.skip_first, run.skip_count) {
            (Some(first), Some(count)) => {
                (first, first + period * (i32::try_from(count).unwrap() - 1))
            }
            _ => (run.fire_time.unwrap(), run.fire_time.unwrap()),
        })
        .collect();
    stretches.sort_unstable();
    for pair in stretches.windows(2) {
        assert_eq!(pair[1].0, pair[0].1 + period, "{job}: after {}", pair[0].1);
    }
}
