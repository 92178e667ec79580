//! What of the demo has been seen, and what that says.

use std::collections::BTreeSet;

use taskparty_common::outcome::Outcome;
use uuid::Uuid;

use super::bills::{BILLS, Checked};
use super::jobs::{FAILS, FLAKY, HEARTBEAT, RECONCILE, SHARDS};
use crate::events::Event;

/// How many heartbeats show that they go on.
const HEARTBEATS: usize = 2;

/// How often the flaky import fails before it succeeds.
const FAILURES: usize = 2;

/// What has been seen so far.
#[derive(Debug, Default)]
pub(super) struct Watch {
    heartbeats: BTreeSet<Uuid>,
    /// The run that was triggered, and its failed attempts.
    flaky: Option<Uuid>,
    flaky_failed: BTreeSet<u32>,
    flaky_succeeded: bool,
    alerted: bool,
    shards: BTreeSet<u32>,
    instances: BTreeSet<String>,
    over: bool,
}

/// What the demo came to.
#[derive(Debug)]
pub(crate) struct Summary {
    missing: Vec<String>,
    bills: String,
}

impl Watch {
    pub(super) fn seen(&mut self, event: &Event) {
        match event {
            Event::Fired(_) => {}
            Event::Alert(alert) => {
                self.alerted |= alert.job.as_ref().is_some_and(|job| job.as_str() == FAILS);
            }
            Event::Result(result) => {
                let succeeded = result.outcome == Outcome::Succeeded;
                match result.job.as_str() {
                    HEARTBEAT if succeeded => {
                        self.heartbeats.insert(result.run);
                    }
                    FLAKY if *self.flaky.get_or_insert(result.run) == result.run => {
                        if succeeded {
                            self.flaky_succeeded = true;
                        } else {
                            self.flaky_failed.insert(result.attempt);
                        }
                    }
                    RECONCILE if succeeded => {
                        self.shards.insert(result.shard.index);
                        self.instances.insert(result.instance.to_string());
                    }
                    _ => {}
                }
            }
        }
    }

    /// Everything has been seen.
    pub(super) fn is_complete(&self) -> bool {
        self.missing().is_empty()
    }

    /// The summary has been given.
    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        let mut expect = |seen: bool, what: String| {
            if !seen {
                missing.push(what);
            }
        };
        let beats = self.heartbeats.len();
        expect(beats >= HEARTBEATS, format!("{HEARTBEAT} ran {beats} times, not {HEARTBEATS}"));
        let failed = self.flaky_failed.len();
        expect(failed == FAILURES, format!("{FLAKY} failed {failed} times, not {FAILURES}"));
        expect(self.flaky_succeeded, format!("{FLAKY} has not succeeded"));
        expect(self.alerted, format!("{FAILS} has not ended in an alert"));
        let shards = self.shards.len();
        expect(
            shards == SHARDS as usize,
            format!("{RECONCILE} has finished {shards} of {SHARDS} shards"),
        );
        missing
    }

    pub(super) fn sum_up(&mut self, checked: Result<Checked, sqlx::Error>) -> Summary {
        self.over = true;
        let mut missing = self.missing();
        let bills = match checked {
            Ok(checked) => {
                let text = format!(
                    "bills: {} of {BILLS} settled, {} more than once; due {} cents, booked {} cents; by {}",
                    checked.settled,
                    checked.twice,
                    checked.due,
                    checked.booked,
                    self.instances.iter().cloned().collect::<Vec<_>>().join(" and "),
                );
                if !checked.is_right() {
                    missing.push("the bills are not settled exactly once each".into());
                }
                text
            }
            Err(error) => {
                missing.push("the bills cannot be read".into());
                format!("bills: {error}")
            }
        };
        Summary { missing, bills }
    }
}

impl Summary {
    /// Everything was as it should be.
    pub(crate) fn is_well(&self) -> bool {
        self.missing.is_empty()
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let verdict = if self.is_well() {
            "demo: all is well".to_owned()
        } else {
            format!("demo: not all is well: {}", self.missing.join("; "))
        };
        format!("{}\n{verdict}", self.bills)
    }
}
