//! Ids and chances that are derived from a run, so that whoever decides again decides the same.

use taskparty_common::name::JobId;
use uuid::Uuid;

/// The id of the alert that a run failed for good, after so many retries by hand.
pub(super) fn alert(run: Uuid, round: u32) -> String {
    match round {
        0 => format!("{run}.failed"),
        round => format!("{run}.failed.{round}"),
    }
}

/// The id of the alert that a job is paused after this run.
pub(super) fn paused(run: Uuid) -> String {
    format!("{run}.paused")
}

/// The id of the alert that this job does not follow this run, as they go round in a circle.
pub(super) fn circle(run: Uuid, job: &JobId) -> String {
    format!("{run}.circle.{job}")
}

/// The id of the alert that messages were set aside, from the sequence of the first.
pub(super) fn set_aside(seq: u64) -> String {
    format!("set_aside.{seq}")
}

/// A number in 0..1 for the jitter of a retry: evenly spread over runs and attempts, and the same
/// each time it is asked for.
pub(super) fn chance(run: Uuid, shard: u32, attempt: u32) -> f64 {
    let (high, low) = run.as_u64_pair();
    let mut x = high ^ low.rotate_left(17) ^ (u64::from(shard) << 32 | u64::from(attempt));
    // SplitMix64's finisher.
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^= x >> 31;
    // 53 bits are what a float holds exactly.
    #[allow(clippy::cast_precision_loss, reason = "53 bits fit")]
    let share = (x >> 11) as f64;
    share / (1_u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chances_are_spread() {
        let mut tenths = [0; 10];
        for n in 0..1_000_u128 {
            let chance = chance(Uuid::from_u128(n << 40), 0, 1);
            tenths[(chance * 10.0) as usize] += 1;
        }
        assert!(tenths.iter().all(|count| (60..140).contains(count)), "{tenths:?}");
    }
}
