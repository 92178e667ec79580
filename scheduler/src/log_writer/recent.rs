//! What is kept in memory because it may well be asked for again.

use std::collections::HashMap;
use std::hash::Hash;

/// Values by key. Bounded: past the limit those that were neither put nor asked for since the last
/// turn are forgotten.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    /// What is put between two turns may weigh so much.
    turn_at: usize,
    weigh: fn(&V) -> usize,
    /// What was put since the last turn weighs so much.
    weight: usize,
    recent: HashMap<K, V>,
    older: HashMap<K, V>,
}

impl<K: Eq + Hash + Copy, V> Recent<K, V> {
    /// None yet; they may weigh `limit` together.
    pub(super) fn new(limit: usize, weigh: fn(&V) -> usize) -> Self {
        let (recent, older) = (HashMap::new(), HashMap::new());
        Self { turn_at: limit / 2, weigh, weight: 0, recent, older }
    }

    /// Keeps a value.
    pub(super) fn put(&mut self, key: K, value: V) {
        if self.weight >= self.turn_at {
            self.older = std::mem::take(&mut self.recent);
            self.weight = 0;
        }
        self.take(&key);
        self.weight += (self.weigh)(&value);
        self.recent.insert(key, value);
    }

    /// The value of `key`, if it is there.
    pub(super) fn get(&mut self, key: &K) -> Option<V>
    where
        V: Clone,
    {
        if let Some(value) = self.recent.get(key) {
            return Some(value.clone());
        }
        let value = self.older.remove(key)?;
        self.put(*key, value.clone());
        Some(value)
    }

    /// Whether there is a value of `key`.
    pub(super) fn has(&self, key: &K) -> bool {
        self.recent.contains_key(key) || self.older.contains_key(key)
    }

    /// The value of `key`, if it is there, for good.
    pub(super) fn take(&mut self, key: &K) -> Option<V> {
        let Some(value) = self.recent.remove(key) else { return self.older.remove(key) };
        self.weight -= (self.weigh)(&value);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_what_is_used_stays() {
        let mut kept = Recent::new(1000, |_: &u32| 2);
        kept.put(0, 7);
        for key in 1..3000 {
            kept.put(key, key);
            assert_eq!(kept.get(&0), Some(7));
        }
        assert!(kept.recent.len() + kept.older.len() <= 500 + 1);
        assert_eq!((kept.get(&2999), kept.get(&1)), (Some(2999), None));
        assert_eq!((kept.take(&0), kept.take(&0)), (Some(7), None));
    }

    #[test]
    fn what_was_put_before_does_not_come_back() {
        let mut kept = Recent::new(2, |_: &u32| 1);
        for value in [1, 2, 3] {
            kept.put(0, value);
        }
        assert_eq!((kept.take(&0), kept.take(&0)), (Some(3), None));
    }
}
