//! Since when what arrives can have been on its way.
//!
//! The server counts a lease from when it sent the message. A process that was frozen finds, when
//! it goes on, messages whose leases ended long ago, and nothing in them says so. But whatever was
//! not there at the last look came later than that look.

use std::time::Duration;

use crate::lease::Uptime;

/// Looks that are further apart than this were not made while all was well: the process stood
/// still, and what the socket holds may be as old as the look before.
const STALL: Duration = Duration::from_secs(2);

/// How long after a stall an empty inbox proves nothing: the connection reads in a task of its own.
const CATCH_UP: Duration = Duration::from_secs(1);

/// Since when what arrives can have been on its way.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrivals {
    since: Uptime,
    looked: Uptime,
    trusted_from: Uptime,
}

impl Arrivals {
    /// Nothing was asked for before `now`.
    pub(super) fn from(now: Uptime) -> Self {
        Self { since: now, looked: now, trusted_from: now }
    }

    /// At `now` it was looked for messages; and `found` so.
    pub(super) fn looked(&mut self, now: Uptime, found: Found) {
        if now > self.looked.plus(STALL) {
            self.trusted_from = now.plus(CATCH_UP);
        }
        self.looked = now;
        if found == Found::Empty && now >= self.trusted_from {
            self.since = now;
        }
    }

    /// What arrives now was not sent before this.
    pub(super) fn since(&self) -> Uptime {
        self.since
    }
}

/// What a look found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// Nothing.
    Empty,
    /// A message.
    Message,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_after_a_stall_may_be_as_old_as_the_look_before_it() {
        let start = Uptime::now();
        let at = |ms| start.plus(Duration::from_millis(ms));
        let mut arrivals = Arrivals::from(at(0));
        for look in [500, 1_000] {
            arrivals.looked(at(look), Found::Empty);
            assert_eq!(arrivals.since(), at(look));
        }
        arrivals.looked(at(1_200), Found::Message);
        assert_eq!(arrivals.since(), at(1_000), "it came after the last empty look");
        // Frozen for nine seconds; the first looks may come before the socket is read.
        for look in [10_200, 10_300, 10_900] {
            arrivals.looked(at(look), Found::Empty);
            assert_eq!(arrivals.since(), at(1_000));
        }
        arrivals.looked(at(11_300), Found::Empty);
        assert_eq!(arrivals.since(), at(11_300));
    }
}
