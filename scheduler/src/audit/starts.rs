//! Check 5: what executors wrote of their own calls against what was dispatched and reported.

use std::collections::BTreeMap;

use taskparty_common::outcome::Outcome;
use uuid::Uuid;

use super::attempts::succeeded;
use super::bounds::Starts;
use super::held::{Began, RunFacts, Try, shown};
use super::ledger::Ledger;
use super::report::{Kind, NoteKind};

/// How long what was delivered may be on its way to its handler.
const ON_ITS_WAY_MS: i64 = 2_000;

impl Ledger {
    pub(super) fn judge_starts(&mut self, id: Uuid, run: &RunFacts) {
        if self.bounds.starts == Starts::NotGiven {
            return;
        }
        for one in &run.tries {
            self.judge_deliveries(id, run, one);
            if let Some((other, at)) = success_of_another(run, one)
                && let Some(began) = self.began_after(id, run, one, at)
            {
                let expected = format!("no start after attempt {other} succeeded at {}", shown(at));
                let found = self.began(began);
                let place = self.of_try(id, run, one);
                self.findings.wrong(Kind::StartAfterSuccess, place, expected, found);
            }
        }
    }

    /// A start after `at`; one of which NATS forgot that it was acked is only noted.
    fn began_after<'a>(
        &mut self,
        id: Uuid,
        run: &RunFacts,
        one: &'a Try,
        at: i64,
    ) -> Option<&'a Began> {
        for began in one.starts.iter().filter(|began| began.at > at) {
            let reported = one.results.iter().map(|result| result.stored).min();
            if reported.is_none_or(|reported| !self.forgot_between(reported, began.at)) {
                return Some(began);
            }
            let (place, found) = (self.of_try(id, run, one), self.began(began));
            self.findings.note(NoteKind::DeliveryForgotten, place, found);
        }
        None
    }

    fn began(&self, began: &Began) -> String {
        let instance = self.instances.name(began.instance);
        format!("delivery {} by {instance} at {}", began.delivery, shown(began.at))
    }

    /// Whether between any two of these starts NATS forgot what it had delivered.
    fn is_forgotten(&self, starts: &[&Began]) -> bool {
        let mut at: Vec<i64> = starts.iter().map(|began| began.at).collect();
        at.sort_unstable();
        at.windows(2).all(|pair| self.forgot_between(pair[0], pair[1]))
    }

    fn forgot_between(&self, from: i64, to: i64) -> bool {
        let between = from - ON_ITS_WAY_MS..=to;
        self.bounds.forgot.iter().any(|at| between.contains(&at.timestamp_millis()))
    }

    fn judge_deliveries(&mut self, id: Uuid, run: &RunFacts, one: &Try) {
        let mut by_delivery: BTreeMap<u64, Vec<&Began>> = BTreeMap::new();
        for began in &one.starts {
            by_delivery.entry(began.delivery).or_default().push(began);
        }
        for (delivery, starts) in &by_delivery {
            if starts.len() > 1 {
                let all: Vec<String> = starts.iter().map(|began| self.began(began)).collect();
                let expected = format!("one start of delivery {delivery}");
                let place = self.of_try(id, run, one);
                if self.is_forgotten(starts) {
                    self.findings.note(NoteKind::DeliveryForgotten, place, all.join("; "));
                } else {
                    self.findings.wrong(Kind::StartTwice, place, expected, all.join("; "));
                }
            }
        }
        let dispatched =
            one.fired.is_some() || one.row.as_ref().is_some_and(|row| row.dispatched.is_some());
        if let Some(first) = one.starts.iter().min_by_key(|began| began.at)
            && !dispatched
            && first.at < self.bounds.settled_ms()
        {
            let found = self.began(first);
            let place = self.of_try(id, run, one);
            let expected = "no start: nothing says that it was dispatched";
            self.findings.wrong(Kind::StartUndispatched, place, expected, found);
        }
        if !succeeded(one) {
            return;
        }
        match by_delivery.len() {
            0 => {
                let place = self.of_try(id, run, one);
                let expected = "a start of what succeeded";
                self.findings.wrong(Kind::SuccessWithoutStart, place, expected, "none");
            }
            1 => {}
            _ => {
                let all: Vec<String> = one.starts.iter().map(|began| self.began(began)).collect();
                let place = self.of_try(id, run, one);
                self.findings.note(NoteKind::Redelivered, place, all.join("; "));
            }
        }
    }
}

/// Another attempt of the same shard that succeeded, and when.
fn success_of_another(run: &RunFacts, one: &Try) -> Option<(u32, i64)> {
    let others = run.tries.iter().filter(|other| {
        other.shard == one.shard && other.attempt != one.attempt && succeeded(other)
    });
    let ends = others.filter_map(|other| {
        let of_results = other.results.iter().filter(|r| r.says.outcome == Outcome::Succeeded);
        Some((other.attempt, of_results.map(|result| result.finished).min()?))
    });
    ends.min_by_key(|(_, at)| *at)
}
