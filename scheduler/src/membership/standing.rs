//! Whether this scheduler may fire.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use taskparty_nats::lease::Uptime;

use super::TTL;

/// Whether this scheduler's own heartbeat holds and its clock is right. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Standing(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    born: Uptime,
    /// Milliseconds from `born` to the sending of the last confirmed heartbeat; 0: none yet.
    renewed: AtomicU64,
    /// How often a heartbeat came too late: others may have taken over meanwhile.
    lapses: AtomicU64,
    clocks_agree: AtomicBool,
}

impl Standing {
    /// A scheduler that has sent no heartbeat yet.
    pub(crate) fn new() -> Self {
        let inner = Inner {
            born: Uptime::now(),
            renewed: AtomicU64::new(0),
            lapses: AtomicU64::new(0),
            clocks_agree: AtomicBool::new(true),
        };
        Self(Arc::new(inner))
    }

    /// A heartbeat that was sent at `sent` is stored.
    pub(super) fn renewed(&self, sent: Uptime) {
        if !self.holds() {
            self.0.lapses.fetch_add(1, Ordering::Relaxed);
        }
        let since = self.0.born.ago().saturating_sub(sent.ago());
        let ms = u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1);
        self.0.renewed.fetch_max(ms, Ordering::Relaxed);
    }

    /// Whether the clocks agree, from now on; returns what was true before.
    pub(super) fn clocks_agree(&self, agree: bool) -> bool {
        self.0.clocks_agree.swap(agree, Ordering::Relaxed)
    }

    /// Whether the own heartbeat holds: it was renewed less than its TTL ago.
    pub(crate) fn holds(&self) -> bool {
        match self.0.renewed.load(Ordering::Relaxed) {
            0 => false,
            ms => self.0.born.plus(Duration::from_millis(ms) + TTL).left() > Duration::ZERO,
        }
    }

    /// How often the heartbeat had lapsed, and was then renewed; the first one counts, too.
    pub(crate) fn lapses(&self) -> u64 {
        self.0.lapses.load(Ordering::Relaxed)
    }

    /// Whether this scheduler may fire and advance.
    pub(crate) fn may_fire(&self) -> bool {
        self.holds() && self.0.clocks_agree.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_fires_before_the_first_heartbeat_or_with_a_wrong_clock() {
        let standing = Standing::new();
        assert!(!standing.holds());
        standing.renewed(Uptime::now());
        standing.renewed(Uptime::now());
        assert!(standing.holds() && standing.may_fire());
        assert_eq!(standing.lapses(), 1);
        assert!(standing.clocks_agree(false));
        assert!(standing.holds() && !standing.may_fire());
    }
}
