//! Up to where everything is handled.
//!
//! *Invariant: the watermark never passes an instant without a fired record.* It is the minimum
//! over what is under way and what is next due, so that a scheduler that starts from it misses
//! nothing, however the one before it died.

use std::collections::BTreeMap;

/// The due times of instants that are decided and not yet recorded.
#[derive(Debug, Default)]
pub(crate) struct UnderWay {
    by_due: BTreeMap<i64, usize>,
}

impl UnderWay {
    /// An instant that is due at `due_ms` is decided.
    pub(crate) fn begin(&mut self, due_ms: i64) {
        *self.by_due.entry(due_ms).or_default() += 1;
    }

    /// Its fired record is stored.
    pub(crate) fn end(&mut self, due_ms: i64) {
        if let Some(count) = self.by_due.get_mut(&due_ms) {
            *count -= 1;
            if *count == 0 {
                self.by_due.remove(&due_ms);
            }
        }
    }

    /// The instant up to which everything is handled: just before the first thing that is under
    /// way or next due, and not after `now_ms`.
    pub(crate) fn watermark(&self, next_due: Option<i64>, now_ms: i64) -> i64 {
        let oldest = self.by_due.first_key_value().map(|(due, _)| *due);
        let first = [oldest, next_due].into_iter().flatten().min();
        first.map_or(now_ms, |first| now_ms.min(first.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_watermark_waits_for_whatever_is_oldest() {
        let mut under_way = UnderWay::default();
        assert_eq!(under_way.watermark(None, 1_000), 1_000);
        assert_eq!(under_way.watermark(Some(900), 1_000), 899);
        under_way.begin(500);
        under_way.begin(500);
        under_way.begin(700);
        under_way.end(500);
        assert_eq!(under_way.watermark(Some(900), 1_000), 499);
        under_way.end(500);
        assert_eq!(under_way.watermark(Some(2_000), 1_000), 699);
        under_way.end(700);
        assert_eq!(under_way.watermark(Some(2_000), 1_000), 1_000);
    }
}
