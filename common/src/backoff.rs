//! How long to wait before the next attempt.

use std::time::Duration;

/// The retry policy of a job (contract, section 1): `retry`.
#[derive(Debug, Clone, PartialEq)]
pub struct Retry {
    /// Retries after the first attempt; 0 is none.
    pub max: u32,
    /// The wait before the first retry.
    pub initial: Duration,
    /// What the wait is multiplied with from one retry to the next; at least 1.
    pub factor: f64,
    /// The longest wait, before jitter.
    pub cap: Duration,
    /// A share of the wait that is added at random, 0 to 1. Only ever added: a retry comes later
    /// than promised, never earlier.
    pub jitter: f64,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            max: 0,
            initial: Duration::from_secs(1),
            factor: 2.0,
            cap: Duration::from_secs(600),
            jitter: 0.1,
        }
    }
}

impl Retry {
    /// The wait before retry number `retry` (from 1); `chance` in 0..1 decides the jitter.
    pub fn delay(&self, retry: u32, chance: f64) -> Duration {
        let steps = f64::from(retry.saturating_sub(1));
        let grown = self.initial.as_secs_f64() * self.factor.max(1.0).powf(steps);
        let capped = grown.min(self.cap.as_secs_f64());
        let jittered = capped * (1.0 + self.jitter.clamp(0.0, 1.0) * chance.clamp(0.0, 1.0));
        Duration::try_from_secs_f64(jittered).unwrap_or(self.cap)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn delays_grow_to_the_cap() {
        let retry = Retry { cap: Duration::from_secs(5), ..Retry::default() };
        let delays: Vec<u64> = (1..=5).map(|n| retry.delay(n, 0.0).as_secs()).collect();
        assert_eq!(delays, [1, 2, 4, 5, 5]);
    }

    proptest! {
        #[test]
        fn never_earlier_than_promised(n in 1_u32..2_000_000_000, chance in 0.0..1.0_f64) {
            let retry = Retry::default();
            let delay = retry.delay(n, chance);
            prop_assert!(delay >= retry.delay(n, 0.0));
            prop_assert!(delay <= retry.cap.mul_f64(1.1));
        }
    }
}
