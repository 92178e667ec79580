//! How late fires were in the last minute: counts in buckets that grow by a quarter, a second each.

use std::collections::VecDeque;

use taskparty_common::dispatch::Lateness;

/// Seconds that are remembered.
const SECONDS: i64 = 60;

/// Buckets: the last begins above a day.
const BUCKETS: usize = 96;

/// The lateness of recent fires.
#[derive(Debug, Default)]
pub(super) struct Recent {
    /// A second (since 1970) with its counts, oldest first.
    seconds: VecDeque<(i64, Second)>,
}

#[derive(Debug)]
struct Second {
    counts: [u32; BUCKETS],
    max_ms: u64,
}

impl Recent {
    /// A fire that was made at `now_ms` was `late_ms` late.
    pub(super) fn add(&mut self, now_ms: i64, late_ms: u64) {
        let second = now_ms.div_euclid(1000);
        if self.seconds.back().is_none_or(|(last, _)| *last < second) {
            self.forget(second);
            self.seconds.push_back((second, Second { counts: [0; BUCKETS], max_ms: 0 }));
        }
        if let Some((_, last)) = self.seconds.back_mut() {
            let count = &mut last.counts[bucket_of(late_ms)];
            *count = count.saturating_add(1);
            last.max_ms = last.max_ms.max(late_ms);
        }
    }

    /// The figures of the minute before `now_ms`; nothing when nothing was fired.
    pub(super) fn of_last_minute(&mut self, now_ms: i64) -> Option<Lateness> {
        self.forget(now_ms.div_euclid(1000));
        let mut counts = [0_u64; BUCKETS];
        let mut max_ms = 0;
        for (_, second) in &self.seconds {
            for (sum, count) in counts.iter_mut().zip(second.counts) {
                *sum += u64::from(count);
            }
            max_ms = max_ms.max(second.max_ms);
        }
        let fires: u64 = counts.iter().sum();
        let quantile = |percent: u64| {
            let rank = (fires * percent).div_ceil(100);
            let mut seen = 0;
            let bucket = counts.iter().position(|count| {
                seen += count;
                seen >= rank
            });
            bucket.map_or(max_ms, upper_bound).min(max_ms)
        };
        (fires > 0).then(|| Lateness { fires, p50_ms: quantile(50), p99_ms: quantile(99), max_ms })
    }

    fn forget(&mut self, second: i64) {
        while self.seconds.pop_front_if(|(old, _)| *old <= second - SECONDS).is_some() {}
    }
}

/// The largest lateness that counts in `bucket`: 0, 1, 2, 3, 4, then a quarter more each time.
fn upper_bound(bucket: usize) -> u64 {
    let mut bound = 0_u64;
    for _ in 0..bucket {
        bound += (bound / 4).max(1);
    }
    bound
}

fn bucket_of(late_ms: u64) -> usize {
    let mut bound = 0_u64;
    for bucket in 0..BUCKETS {
        if late_ms <= bound {
            return bucket;
        }
        bound += (bound / 4).max(1);
    }
    BUCKETS - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_are_those_of_the_last_minute_within_a_quarter() {
        let mut recent = Recent::default();
        assert_eq!(recent.of_last_minute(0), None);
        recent.add(0, 86_400_000);
        for n in 0..1000 {
            recent.add(30_000 + n, n as u64);
        }
        let late = recent.of_last_minute(65_000).unwrap();
        assert_eq!((late.fires, late.max_ms), (1000, 999));
        assert!((500..=625).contains(&late.p50_ms), "{late:?}");
        assert!((990..=999).contains(&late.p99_ms), "{late:?}");
        assert_eq!(recent.of_last_minute(95_000), None);
    }

    #[test]
    fn each_lateness_has_a_bucket_that_holds_it() {
        for late in [0, 1, 2, 3, 4, 5, 7, 100, 999, 60_000, 86_400_000] {
            let bucket = bucket_of(late);
            assert!(upper_bound(bucket) >= late, "{late}");
            assert!(bucket == 0 || upper_bound(bucket - 1) < late, "{late}");
        }
    }
}
