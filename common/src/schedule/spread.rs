//! Spread: a stable offset per job, so that a thousand jobs of the same minute do not all start
//! in its first second.
//!
//! The offset moves when a fire *starts*, never its nominal instant, which is its identity.

use std::time::Duration;

use sha2::{Digest, Sha256};

/// The offset of `job_id` inside `spread`: at least zero, less than `spread`, in whole
/// milliseconds; zero for a spread below a millisecond.
///
/// It depends on nothing but its arguments, so every scheduler finds the same one.
pub fn spread_offset(job_id: &str, spread: Duration) -> Duration {
    let digest = Sha256::digest(job_id.as_bytes());
    let mut head = [0_u8; 8];
    head.copy_from_slice(&digest[..8]);
    let part = u128::from(u64::from_be_bytes(head));
    let bound = u128::from(u64::try_from(spread.as_millis()).unwrap_or(u64::MAX));
    // part / 2^64 of the bound: less than it, and without the bias of a remainder.
    Duration::from_millis(((part * bound) >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_offset_is_stable_and_stays_inside_the_spread() {
        let minute = Duration::from_secs(60);
        let offset = spread_offset("nightly-settlement", minute);
        assert_eq!(offset, spread_offset("nightly-settlement", minute));
        assert!(offset < minute);
        assert_eq!(spread_offset("nightly-settlement", Duration::ZERO), Duration::ZERO);
        assert!(spread_offset("a", Duration::MAX) < Duration::MAX);
    }

    #[test]
    fn many_jobs_are_spread_over_all_of_it() {
        let spread = Duration::from_secs(10);
        let mut in_second = [0; 10];
        for job in 0..10_000 {
            in_second[spread_offset(&format!("job-{job}"), spread).as_secs() as usize] += 1;
        }
        assert!(in_second.iter().all(|&jobs| (800..1_200).contains(&jobs)), "{in_second:?}");
    }
}
