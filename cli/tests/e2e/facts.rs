//! What there is to be seen of an installation: in NATS, and in SQL.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::dispatch::{Alert, ResultRecord};
use taskparty_common::fire::Fired;
use taskparty_nats::history::{Start, read, stream_info};
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::store::{RunFilter, RunRow};
use uuid::Uuid;

use crate::site::{Site, until};

/// How long one look at a stream may take.
const LOOK: Duration = Duration::from_secs(30);

impl Site {
    /// Each line of `stream` under `subject`, in the order in which they were stored.
    async fn lines<T: serde::de::DeserializeOwned>(&self, stream: &str, subject: String) -> Vec<T> {
        let mut all = Vec::new();
        let visit = |record: taskparty_nats::history::Record| {
            let lines = record.payload.split(|byte| *byte == b'\n');
            all.extend(lines.map(|line| serde_json::from_slice::<T>(line).unwrap()));
            ControlFlow::Continue(())
        };
        read(self.nats.js(), stream, &[subject], Start::First, LOOK, visit).await.unwrap();
        all
    }

    /// All fired records.
    pub(crate) async fn fired(&self) -> Vec<Fired> {
        let names = self.nats.names();
        self.lines(&names.results_stream(), names.fired_all()).await
    }

    /// All results.
    pub(crate) async fn results(&self) -> Vec<ResultRecord> {
        let names = self.nats.names();
        self.lines(&names.results_stream(), names.result_all()).await
    }

    /// All alerts on the stream.
    pub(crate) async fn alerts(&self) -> Vec<Alert> {
        let names = self.nats.names();
        self.lines(&names.alerts_stream(), names.alert_all()).await
    }

    /// The locks that were taken, by key.
    pub(crate) async fn locks(&self) -> BTreeSet<String> {
        let locks = self.buckets.entries(Bucket::Fires, ">").await.unwrap();
        locks.into_iter().map(|entry| entry.key.to_string()).collect()
    }

    /// The messages in the stream of the shop's work: what is not done.
    pub(crate) async fn work_left(&self) -> u64 {
        stream_info(self.nats.js(), "TASKPARTY_DISPATCH_shop").await.unwrap().messages
    }

    /// All runs in SQL.
    pub(crate) async fn runs(&self) -> BTreeMap<Uuid, RunRow> {
        let mut all = BTreeMap::new();
        let mut filter = RunFilter { limit: Some(1000), ..RunFilter::default() };
        loop {
            let page = self.store().await.runs(&filter).await.unwrap();
            for run in page.items {
                assert!(all.insert(run.run, run).is_none(), "a run is listed twice");
            }
            match page.next {
                Some(next) => filter.after = Some(next.parse().unwrap()),
                None => return all,
            }
        }
    }

    /// All runs in SQL, once each lock has its record, each record its run, and each run has ended.
    pub(crate) async fn all_ended(&self) -> BTreeMap<Uuid, RunRow> {
        let end = std::time::Instant::now() + Duration::from_secs(95);
        until("the end of all runs", async || {
            let (locks, fired, runs) = (self.locks().await, self.fired().await, self.runs().await);
            let recorded: BTreeSet<&String> = fired.iter().map(|fired| &fired.lock).collect();
            let half_done: Vec<&String> = locks.iter().filter(|l| !recorded.contains(l)).collect();
            let unknown = fired.iter().filter(|fired| !runs.contains_key(&fired.run)).count();
            let open: Vec<&RunRow> = runs.values().filter(|run| !run.state.is_terminal()).collect();
            if half_done.is_empty() && unknown == 0 && open.is_empty() {
                return Some(runs);
            }
            assert!(
                std::time::Instant::now() < end,
                "half done: {half_done:?}; {unknown} not in SQL; {} open, such as {:#?}",
                open.len(),
                open.first()
            );
            None
        })
        .await
    }
}

/// Fired records by job.
pub(crate) fn by_job(fired: &[Fired]) -> BTreeMap<String, Vec<&Fired>> {
    let mut all: BTreeMap<String, Vec<&Fired>> = BTreeMap::new();
    for fired in fired {
        all.entry(fired.job.to_string()).or_default().push(fired);
    }
    all
}

/// Asserts that of a job that is due each `period` every instant is accounted for, once, and returns
/// the first and the last.
pub(crate) fn accounted(fired: &[&Fired], period: TimeDelta) -> (DateTime<Utc>, DateTime<Utc>) {
    let mut stretches: Vec<(DateTime<Utc>, DateTime<Utc>)> = fired
        .iter()
        .map(|fired| match &fired.skipped {
            Some(skipped) => {
                let more = i32::try_from(skipped.count).unwrap() - 1;
                (skipped.first, skipped.first + period * more)
            }
            None => (fired.fire_time, fired.fire_time),
        })
        .collect();
    stretches.sort_unstable();
    for pair in stretches.windows(2) {
        assert_eq!(pair[1].0, pair[0].1 + period, "{}: after {}", fired[0].job, pair[0].1);
    }
    (stretches[0].0, stretches.last().unwrap().1)
}

/// Asserts that no fire is recorded twice.
pub(crate) fn recorded_once(fired: &[Fired]) {
    let locks: BTreeSet<&str> = fired.iter().map(|fired| fired.lock.as_str()).collect();
    assert_eq!(locks.len(), fired.len(), "a fire is recorded twice");
}
