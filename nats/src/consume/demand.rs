//! What a consumer was asked for and has not sent.

use std::collections::VecDeque;

use tokio::time::Instant;

/// The pull requests that may be open at the server.
///
/// A delivered message does not say which request it fills (and the server fills them in turn),
/// so the sum is what counts; a request is only remembered for what its end says about it.
#[derive(Debug, Default)]
pub(super) struct Demand {
    outstanding: usize,
    last_number: u64,
    /// With those that were filled, which nobody says: thousands, on a busy consumer.
    open: VecDeque<Request>,
    /// None of them lapses before this.
    first_lapse: Option<Instant>,
}

#[derive(Debug)]
struct Request {
    number: u64,
    batch: usize,
    /// The server has surely ended it by then.
    lapses: Instant,
}

impl Demand {
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding
    }

    /// The number of the next request.
    pub(super) fn next_number(&self) -> u64 {
        self.last_number + 1
    }

    /// How many to ask for so that `free` are asked for in all.
    ///
    /// While enough is asked for, small rests wait until a quarter of the room is missing: a
    /// request a message would double the messages of a busy consumer.
    pub(super) fn missing(&self, free: usize) -> usize {
        let more = free.saturating_sub(self.outstanding);
        if self.outstanding == 0 || more >= (free / 4).max(1) { more } else { 0 }
    }

    pub(super) fn asked(&mut self, batch: usize, lapses: Instant) {
        self.last_number += 1;
        self.outstanding += batch;
        self.first_lapse = Some(self.first_lapse.map_or(lapses, |first| first.min(lapses)));
        self.open.push_back(Request { number: self.last_number, batch, lapses });
    }

    pub(super) fn delivered(&mut self) {
        self.outstanding = self.outstanding.saturating_sub(1);
        if self.outstanding == 0 {
            self.open.clear();
        }
    }

    /// The server ended a request of which `unfilled` messages were missing; none: all of them.
    pub(super) fn ended(&mut self, number: Option<u64>, unfilled: Option<usize>) {
        let at = self.open.iter().position(|request| Some(request.number) == number);
        let Some(request) = at.and_then(|at| self.open.remove(at)) else { return };
        let rest = unfilled.unwrap_or(request.batch).min(request.batch);
        self.outstanding = self.outstanding.saturating_sub(rest);
        if self.open.is_empty() {
            self.outstanding = 0;
        }
    }

    /// Forgets requests of whose end nothing was heard: they were filled, or their end was lost. True
    /// when none is left and yet something is missing: it was lost, or has arrived and was not read,
    /// as in a process that stood still. So it counts as asked for until that is known.
    pub(super) fn forget_lapsed(&mut self, now: Instant) -> bool {
        // Asked for each message: it must not look at all of them.
        if self.first_lapse.is_none_or(|first| now < first) {
            return false;
        }
        self.open.retain(|request| request.lapses > now);
        self.first_lapse = self.open.iter().map(|request| request.lapses).min();
        self.open.is_empty() && self.outstanding > 0
    }

    /// Nothing is asked for any more.
    pub(super) fn clear(&mut self) {
        self.outstanding = 0;
        self.open.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn asked(batches: &[usize]) -> Demand {
        let mut demand = Demand::default();
        for batch in batches {
            demand.asked(*batch, Instant::now() + Duration::from_secs(1));
        }
        demand
    }

    #[test]
    fn unfilled_rests_are_asked_for_again() {
        let mut demand = asked(&[4, 2]);
        demand.delivered();
        demand.ended(Some(1), Some(3));
        assert_eq!((demand.outstanding(), demand.missing(6)), (2, 4));
        demand.ended(Some(2), None);
        assert_eq!((demand.outstanding(), demand.missing(6)), (0, 6));
    }

    #[test]
    fn small_rests_wait_while_enough_is_asked_for() {
        let demand = asked(&[60]);
        assert_eq!(demand.missing(64), 0);
        assert_eq!(demand.missing(80), 20);
        assert_eq!(asked(&[1]).missing(2), 1, "a single free slot never waits");
    }

    #[test]
    fn what_a_request_has_not_brought_when_its_end_was_lost_is_missing() {
        let mut demand = asked(&[4]);
        demand.asked(4, Instant::now() + Duration::from_secs(5));
        let lapse = |demand: &mut Demand, after| {
            demand.forget_lapsed(Instant::now() + Duration::from_secs(after))
        };
        assert!(!lapse(&mut demand, 0));
        assert_eq!(demand.open.len(), 2);
        assert!(!lapse(&mut demand, 2));
        assert_eq!(demand.open.len(), 1);
        assert!(lapse(&mut demand, 6));
        assert_eq!(demand.missing(8), 0, "it may have been sent, and be read in a moment");
        demand.clear();
        assert_eq!(demand.missing(4), 4);
        demand.asked(1, Instant::now());
        demand.delivered();
        assert!(!lapse(&mut demand, 1), "it was filled");
    }
}
