//! What schedulers and executors send for one run that does nothing, written by hand: to measure
//! one part without the others.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Value, json};
use taskparty_common::fire::FireId;
use taskparty_common::name::{JobId, Prefix};
use uuid::Uuid;

use crate::jobs::{APP, HANDLER};

/// Of so many runs of a job one fails.
const FAILS: u64 = 50;

/// A run of a job, by number.
pub(crate) struct Run {
    /// Its handler fails: every fiftieth run of each job, the first one of `bench-0`.
    pub(crate) fails: bool,
    job: JobId,
    pub(crate) id: Uuid,
    lock: String,
    at: DateTime<Utc>,
}

impl Run {
    /// Run `number` of as many jobs as `jobs` says, a millisecond after the one before it.
    pub(crate) fn new(number: u64, jobs: u64, from: DateTime<Utc>) -> anyhow::Result<Self> {
        let job = JobId::new(&format!("bench-{}", number % jobs))?;
        let at = from + TimeDelta::milliseconds(i64::try_from(number)?);
        let fire = FireId::at(job.clone(), at);
        let id = fire.run(&Prefix::new("taskparty")?, from.timestamp_millis(), at);
        let fails = (number / jobs + number % jobs).is_multiple_of(FAILS);
        Ok(Self { fails, lock: fire.lock_key(), job, id, at })
    }

    fn time(&self) -> String {
        self.at.to_rfc3339_opts(SecondsFormat::Millis, true)
    }

    /// The work, as an executor gets it; it may begin for an hour.
    pub(crate) fn dispatch(&self) -> Value {
        let start_by = (self.at + TimeDelta::hours(1)).to_rfc3339_opts(SecondsFormat::Millis, true);
        json!({
            "v": 1, "run": self.id, "job": self.job, "app": APP, "handler": HANDLER,
            "params": null, "shard": { "index": 0, "total": 1 }, "attempt": 1,
            "trigger": "schedule", "fire_time": self.time(), "timezone": "UTC",
            "dispatched_at": self.time(), "start_by": start_by, "timeout_ms": null,
            "lease_ms": 30_000, "max_deliveries": 3, "idempotency_key": format!("{}/0", self.id),
        })
    }

    /// The record that it was dispatched.
    pub(crate) fn fired(&self) -> Value {
        let start_by = (self.at + TimeDelta::hours(1)).to_rfc3339_opts(SecondsFormat::Millis, true);
        json!({
            "v": 1, "lock": self.lock, "run": self.id, "job": self.job, "app": APP,
            "handler": HANDLER, "revision": 1, "since": self.time(), "owner": "bench",
            "trigger": "schedule", "result": "dispatched", "fire_time": self.time(),
            "fired_at": self.time(), "start_by": start_by, "plan": { "total": 1, "attempt": 1 },
            "definition": {
                "id": self.job, "app": APP, "handler": HANDLER, "overlap": "allow",
                "schedule": { "fixed_rate": "1s" },
                // Else the sweep would look for what seems to have waited for minutes.
                "no_executor_wait": "1h",
            },
        })
    }

    /// The record how it ended.
    pub(crate) fn result(&self) -> Value {
        let mut result = json!({
            "v": 1, "run": self.id, "job": self.job, "shard": { "index": 0, "total": 1 },
            "attempt": 1, "delivery": 1, "instance": "bench", "outcome": "succeeded",
            "retryable": true, "fire_time": self.time(), "started_at": self.time(),
            "finished_at": self.time(),
        });
        if self.fails {
            result["outcome"] = "failed".into();
            result["code"] = "handler_error".into();
            result["message"] = "nothing did not work".into();
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use taskparty_common::dispatch::{Dispatch, ResultRecord};
    use taskparty_common::fire::Fired;
    use taskparty_common::outcome::{Code, Outcome};

    use super::*;

    #[test]
    fn what_is_written_by_hand_is_what_the_parts_read() {
        let from = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let run = Run::new(7, 3, from).unwrap();
        let dispatch: Dispatch = serde_json::from_value(run.dispatch()).unwrap();
        let fired: Fired = serde_json::from_value(run.fired()).unwrap();
        let result: ResultRecord = serde_json::from_value(run.result()).unwrap();
        assert_eq!((dispatch.run, fired.run, result.run), (run.id, run.id, run.id));
        assert_eq!(fired.job.as_str(), "bench-1");
        assert_eq!(result.outcome, Outcome::Succeeded);
        let failed: ResultRecord =
            serde_json::from_value(Run::new(0, 3, from).unwrap().result()).unwrap();
        assert_eq!((failed.outcome, failed.code), (Outcome::Failed, Some(Code::HandlerError)));
    }

    #[test]
    fn every_fiftieth_run_of_each_job_fails() {
        let from = DateTime::from_timestamp(1_800_000_000, 0).unwrap();
        let runs = (0..10_000).map(|number| Run::new(number, 100, from).unwrap());
        let mut failed = std::collections::BTreeMap::new();
        for run in runs.filter(|run| run.fails) {
            *failed.entry(run.job).or_insert(0) += 1;
        }
        assert_eq!((failed.len(), failed.values().max()), (100, Some(&2)));
    }
}
