//! A fixed rate: anchor + n × period.
//!
//! *Invariant: closed form.* No stepping from the anchor: it may be ten years and billions of
//! periods ago, and a period may be ten years.

/// A fixed rate, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    pub(super) anchor: i64,
    /// At least 1.
    pub(super) period: i64,
    /// The first n: 0 when the anchor itself is an instant.
    pub(super) first: i64,
}

impl Rate {
    /// The first instant at or after `from`; none when it is beyond what an `i64` holds.
    pub(super) fn at_or_after(&self, from: i64) -> Option<i64> {
        let (anchor, period) = (i128::from(self.anchor), i128::from(self.period));
        let since = i128::from(from) - anchor;
        // Rounded up: `since` is negative only where `first` decides anyway.
        let n = (since + period - 1).div_euclid(period).max(i128::from(self.first));
        i64::try_from(anchor + n * period).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_next_instant_is_on_the_grid_and_the_nearest(
            anchor in any::<i64>(), period in 1..i64::MAX, first in 0_i64..2, from in any::<i64>(),
        ) {
            let rate = Rate { anchor, period, first };
            if let Some(at) = rate.at_or_after(from) {
                let (at, anchor, period) = (i128::from(at), i128::from(anchor), i128::from(period));
                let start = anchor + i128::from(first) * period;
                prop_assert_eq!((at - anchor) % period, 0);
                prop_assert!(at >= i128::from(from) && at >= start);
                prop_assert!(at == start || at - period < i128::from(from));
            }
        }
    }
}
