//! The order in which events of one attempt are shown: its fired record before its result.
//!
//! A busy scheduler sends what falls into a few milliseconds as one message, so the result of a
//! quick handler may come first. *Invariant: nothing is held back for longer than [`PATIENCE`]*: the
//! fired record may have come before anyone listened.

use std::collections::{HashSet, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::Event;

/// How long a result waits for its fired record.
const PATIENCE: Duration = Duration::from_millis(300);

/// How many attempts are remembered as fired.
const REMEMBERED: usize = 10_000;

/// A run and the number of an attempt.
type Key = (Uuid, u32);

/// Events that wait for their turn.
#[derive(Debug, Default)]
pub(super) struct Order {
    fired: HashSet<Key>,
    /// The same, the oldest first.
    ages: VecDeque<Key>,
    held: VecDeque<(Instant, Key, Event)>,
    ready: VecDeque<Event>,
}

impl Order {
    /// Takes in what came at `now`.
    pub(super) fn take_in(&mut self, event: Event, now: Instant) {
        match &event {
            Event::Fired(fired) => {
                let key = (fired.run, fired.plan.attempt);
                self.remember(key);
                self.ready.push_back(event);
                self.release(|_, waits_for| *waits_for == key);
            }
            Event::Result(result) if !self.fired.contains(&(result.run, result.attempt)) => {
                let key = (result.run, result.attempt);
                self.held.push_back((now + PATIENCE, key, event));
            }
            // An alert is about what has ended: after its result.
            Event::Alert(alert) => {
                let run = alert.run;
                self.release(|_, (held, _)| Some(*held) == run);
                self.ready.push_back(event);
            }
            Event::Result(_) => self.ready.push_back(event),
        }
    }

    /// The next event whose turn it is.
    pub(super) fn next(&mut self, now: Instant) -> Option<Event> {
        if self.ready.is_empty() {
            self.release(|until, _| *until <= now);
        }
        self.ready.pop_front()
    }

    /// When an event that waits gets its turn in any case.
    pub(super) fn due(&self) -> Option<Instant> {
        self.held.front().map(|(until, _, _)| *until)
    }

    fn remember(&mut self, key: Key) {
        if self.fired.insert(key) {
            self.ages.push_back(key);
        }
        if self.ages.len() > REMEMBERED
            && let Some(oldest) = self.ages.pop_front()
        {
            self.fired.remove(&oldest);
        }
    }

    fn release(&mut self, whose_turn: impl Fn(&Instant, &Key) -> bool) {
        for (until, key, event) in std::mem::take(&mut self.held) {
            if whose_turn(&until, &key) {
                self.ready.push_back(event);
            } else {
                self.held.push_back((until, key, event));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn fired(run: u128, attempt: u32) -> Event {
        let fired = json!({
            "v": 1, "lock": "a.t.1", "run": Uuid::from_u128(run), "job": "a", "app": "b",
            "handler": "c", "revision": 1, "since": "2026-01-01T00:00:00Z", "owner": "s",
            "trigger": "schedule", "result": "dispatched", "fire_time": "2026-01-01T00:00:00Z",
            "fired_at": "2026-01-01T00:00:00Z", "plan": {"total": 1, "attempt": attempt},
            "definition": {},
        });
        Event::Fired(Box::new(serde_json::from_value(fired).unwrap()))
    }

    fn result(run: u128, attempt: u32) -> Event {
        let result = json!({
            "v": 1, "run": Uuid::from_u128(run), "job": "a", "shard": {"index": 0, "total": 1},
            "attempt": attempt, "delivery": 1, "instance": "e", "outcome": "succeeded",
            "fire_time": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:00Z",
        });
        Event::Result(Box::new(serde_json::from_value(result).unwrap()))
    }

    fn drain(order: &mut Order, now: Instant) -> Vec<String> {
        std::iter::from_fn(|| order.next(now))
            .map(|event| match event {
                Event::Fired(fired) => format!("fired {}", fired.run.as_u128()),
                Event::Result(result) => format!("result {}", result.run.as_u128()),
                Event::Alert(_) => "alert".into(),
            })
            .collect()
    }

    #[test]
    fn a_result_waits_for_its_fired_record_and_not_for_ever() {
        let (mut order, now) = (Order::default(), Instant::now());
        for event in [result(1, 1), result(2, 1), fired(2, 1), fired(3, 1), result(3, 1)] {
            order.take_in(event, now);
        }
        assert_eq!(drain(&mut order, now), ["fired 2", "result 2", "fired 3", "result 3"]);
        assert_eq!(order.due(), Some(now + PATIENCE));
        assert_eq!(drain(&mut order, now + PATIENCE), ["result 1"]);
        // A retry is another attempt.
        order.take_in(result(2, 2), now);
        assert!(drain(&mut order, now).is_empty());
        order.take_in(fired(2, 2), now);
        assert_eq!(drain(&mut order, now), ["fired 2", "result 2"]);
    }
}
