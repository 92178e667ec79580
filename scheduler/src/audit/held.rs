//! What the ledger holds, as small as judging needs it: names as numbers, instants in
//! milliseconds.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::fire::Skipped;
use taskparty_common::outcome::{Outcome, RunState, SkipReason, TriggerResult};
use uuid::Uuid;

use super::facts::{FiredFact, Limits};

/// Names as small numbers.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    by_name: HashMap<Arc<str>, u32>,
    names: Vec<Arc<str>>,
}

impl Numbers {
    pub(super) fn of(&mut self, name: &str) -> u32 {
        if let Some(number) = self.by_name.get(name) {
            return *number;
        }
        let number = u32::try_from(self.names.len()).unwrap_or(u32::MAX);
        let name: Arc<str> = name.into();
        self.names.push(name.clone());
        self.by_name.insert(name, number);
        number
    }

    pub(super) fn name(&self, number: u32) -> &str {
        self.names.get(number as usize).map_or("?", |name| name)
    }

    /// All numbers, in the order of their names.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut numbers: Vec<u32> = self.by_name.values().copied().collect();
        numbers.sort_unstable_by_key(|number| self.name(*number));
        numbers
    }
}

/// What is known of a lock's fire.
#[derive(Debug, Default)]
pub(super) struct LockEntry {
    pub(super) lock: Option<LockSeen>,
    pub(super) fired: Option<Said>,
}

/// A lock that is there.
#[derive(Debug, Clone)]
pub(super) struct LockSeen {
    pub(super) run: Uuid,
    pub(super) stored: i64,
    pub(super) skipped: Option<Box<Skipped>>,
}

/// What a fired record says of its fire.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Said {
    pub(super) run: Uuid,
    pub(super) result: TriggerResult,
    pub(super) total: u32,
    pub(super) only: Option<u32>,
    pub(super) attempt: u32,
    pub(super) skipped: Option<Box<(SkipReason, u64, i64)>>,
    pub(super) fire_time: i64,
    /// There is to be another record.
    pub(super) awaits_place: bool,
}

impl Said {
    pub(super) fn of(fact: &FiredFact) -> Self {
        let skipped = |skipped: &Skipped| {
            Box::new((skipped.reason, skipped.count, skipped.first.timestamp_millis()))
        };
        Self {
            run: fact.run,
            result: fact.result,
            total: fact.plan.total,
            only: fact.plan.only,
            attempt: fact.plan.attempt,
            skipped: fact.skipped.as_ref().map(skipped),
            fire_time: fact.fire_time.timestamp_millis(),
            awaits_place: fact.awaits_place,
        }
    }

    /// Whether `other` says the same. Dispatched and queued are the same: the work is there.
    pub(super) fn agrees(&self, other: &Self) -> bool {
        let sent = |result| match result {
            TriggerResult::Queued => TriggerResult::Dispatched,
            result => result,
        };
        // A run that waits has its executors, and with them its shards, chosen when its turn comes.
        let waits = [self.result, other.result].contains(&TriggerResult::Queued);
        let total = if waits { self.total } else { other.total };
        let awaits_place = self.awaits_place;
        *self == Self { result: self.result, total, awaits_place, ..other.clone() }
            && sent(self.result) == sent(other.result)
    }

    /// Whether `other` is what became of a run that waited.
    pub(super) fn becomes(&self, other: &Self) -> bool {
        self.result == TriggerResult::Queued
            && other.result != TriggerResult::Queued
            && self.agrees(other)
    }

    /// It took no lock: its job was gone.
    pub(super) fn is_of_a_deleted_job(&self) -> bool {
        self.skipped.as_ref().is_some_and(|skipped| skipped.0 == SkipReason::Deleted)
    }
}

/// What is known of a run.
#[derive(Debug)]
pub(super) struct RunFacts {
    pub(super) job: u32,
    pub(super) head: Option<Head>,
    pub(super) row: Option<Row>,
    /// In order of shard and attempt once sorted.
    pub(super) tries: Vec<Try>,
}

/// The fired record of a run itself.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) lock: Arc<str>,
    pub(super) result: TriggerResult,
    pub(super) total: u32,
    pub(super) limits: Option<Limits>,
    /// It was cancelled before it was dispatched.
    pub(super) cancelled: bool,
    pub(super) stored: i64,
}

/// A run as history has it.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) job: u32,
    pub(super) state: RunState,
    pub(super) lock: Option<Arc<str>>,
    pub(super) result: Option<TriggerResult>,
    pub(super) shards: Option<u32>,
    pub(super) fired: Option<i64>,
}

/// What is known of an attempt.
#[derive(Debug)]
pub(super) struct Try {
    pub(super) shard: u32,
    pub(super) attempt: u32,
    /// When its fired record was stored.
    pub(super) fired: Option<i64>,
    /// In the order in which they were stored.
    pub(super) results: Vec<Res>,
    pub(super) starts: Vec<Began>,
    pub(super) row: Option<Box<TryRow>>,
    pub(super) waiting: bool,
}

/// A result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Res {
    pub(super) says: Says,
    pub(super) finished: i64,
    pub(super) stored: i64,
}

/// Who said what of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Says {
    pub(super) outcome: Outcome,
    pub(super) delivery: u64,
    pub(super) instance: u32,
}

/// A handler start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Began {
    pub(super) delivery: u64,
    pub(super) instance: u32,
    pub(super) at: i64,
}

/// An attempt as history has it.
#[derive(Debug)]
pub(super) struct TryRow {
    pub(super) state: RunState,
    pub(super) outcome: Option<Outcome>,
    pub(super) delivery: Option<u64>,
    pub(super) instance: Option<u32>,
    pub(super) due: Option<i64>,
    pub(super) dispatched: Option<i64>,
    pub(super) start_by: Option<i64>,
    pub(super) started: Option<i64>,
    pub(super) ended: Option<i64>,
    /// Its executor had gone: the next attempt is no retry.
    pub(super) moved: bool,
    pub(super) late: Vec<Says>,
    pub(super) round: u32,
}

impl RunFacts {
    pub(super) fn attempt(&mut self, shard: u32, attempt: u32) -> &mut Try {
        let found = self.tries.iter().position(|one| (one.shard, one.attempt) == (shard, attempt));
        let index = found.unwrap_or_else(|| {
            one_more(
                &mut self.tries,
                Try {
                    shard,
                    attempt,
                    fired: None,
                    results: Vec::new(),
                    starts: Vec::new(),
                    row: None,
                    waiting: false,
                },
            );
            self.tries.len() - 1
        });
        &mut self.tries[index]
    }
}

/// Pushes, without room for more: nearly always there is one.
pub(super) fn one_more<T>(all: &mut Vec<T>, one: T) {
    if all.is_empty() {
        all.reserve_exact(1);
    }
    all.push(one);
}

/// A length of time in milliseconds.
pub(super) fn ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

/// An instant for people.
pub(super) fn shown(at: i64) -> String {
    let at = DateTime::from_timestamp_millis(at).unwrap_or_default();
    at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)
}

/// An instant for the report.
pub(super) fn instant(at: i64) -> Option<DateTime<Utc>> {
    DateTime::from_timestamp_millis(at)
}

/// A length for people.
pub(super) fn length(ms: i64) -> String {
    let time = TimeDelta::milliseconds(ms).to_std().unwrap_or_default();
    taskparty_common::duration::format(time)
}
