//! What a watch remembers, and what it makes of what it hears.
//!
//! A plain state machine: no I/O. It turns a consumer's deliveries, which begin anew with all
//! current values after each loss, into each change once.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::Arc;

use chrono::{DateTime, Utc};

use super::Entry;

/// The keys that have a value, and how far the bucket was heard.
///
/// It grows with the keys that match the watch: about sixty bytes for each, and the key, which whoever
/// keeps it too shares. A tree: a table that doubles leaves holes behind, or is half empty.
#[derive(Debug, Default)]
pub(super) struct View {
    keys: BTreeMap<Arc<str>, Known>,
    /// Everything that matches, up to this revision, has been heard.
    heard: u64,
    /// Which replay this is.
    replay: u32,
    /// When the bucket's stream was made.
    stream: Option<DateTime<Utc>>,
}

#[derive(Debug)]
struct Known {
    revision: u64,
    /// When the server stored it, in whole seconds since 1970.
    created_s: u32,
    /// The last replay in which it was there.
    replay: u32,
}

impl Known {
    fn of(entry: &Entry, replay: u32) -> Self {
        let created_s = u32::try_from(entry.created.timestamp()).unwrap_or_default();
        Self { revision: entry.revision, created_s, replay }
    }
}

impl View {
    /// All current values come (again), from the stream that was made at `stream`.
    pub(super) fn replay_begins(&mut self, stream: DateTime<Utc>) {
        self.replay = self.replay.wrapping_add(1);
        if self.stream.replace(stream) != Some(stream) {
            // Another stream under the same name: its revisions began again.
            self.heard = 0;
            for known in self.keys.values_mut() {
                known.revision = 0;
            }
        }
    }

    /// What to tell of `entry`; none when it was told before, or nothing changes.
    pub(super) fn hear(&mut self, entry: Entry) -> Option<Entry> {
        let replay = self.replay;
        let heard = self.heard;
        self.heard = heard.max(entry.revision);
        match self.keys.entry(entry.key.clone()) {
            Slot::Occupied(mut known) if entry.revision <= known.get().revision => {
                known.get_mut().replay = replay;
                return None;
            }
            Slot::Occupied(known) if entry.value.is_none() => drop(known.remove()),
            Slot::Occupied(mut known) => *known.get_mut() = Known::of(&entry, replay),
            // Its deletion was heard already: an old value from a replica that lags.
            Slot::Vacant(_) if entry.revision <= heard || entry.value.is_none() => return None,
            Slot::Vacant(slot) => drop(slot.insert(Known::of(&entry, replay))),
        }
        Some(entry)
    }

    /// All current values have come: what was known and did not come has vanished meanwhile. Its
    /// deletion has the revision of the last value that was known, and its time, to the second.
    pub(super) fn replay_ends(&mut self) -> Vec<Entry> {
        let replay = self.replay;
        let vanished = self.keys.extract_if(.., |_, known| known.replay != replay);
        vanished
            .map(|(key, known)| Entry {
                key,
                revision: known.revision,
                value: None,
                created: DateTime::from_timestamp(known.created_s.into(), 0).unwrap_or_default(),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: DateTime<Utc> = DateTime::UNIX_EPOCH;

    fn entry(key: &str, revision: u64, value: Option<&'static str>) -> Entry {
        Entry { key: key.into(), revision, value: value.map(Into::into), created: NOW }
    }

    #[test]
    fn a_replay_tells_only_what_changed_and_what_vanished() {
        let mut view = View::default();
        view.replay_begins(NOW);
        for (key, revision) in [("a", 1), ("b", 2), ("c", 3)] {
            assert!(view.hear(entry(key, revision, Some("x"))).is_some());
        }
        assert!(view.replay_ends().is_empty());

        view.replay_begins(NOW);
        assert_eq!(view.hear(entry("a", 1, Some("x"))), None);
        assert!(view.hear(entry("c", 5, Some("y"))).is_some());
        let vanished = view.replay_ends();
        assert_eq!(vanished, [entry("b", 2, None)]);
    }

    #[test]
    fn a_lagging_replica_revives_nothing() {
        let mut view = View::default();
        view.replay_begins(NOW);
        view.hear(entry("a", 1, Some("x")));
        assert!(view.hear(entry("a", 2, None)).is_some());
        view.replay_begins(NOW);
        assert_eq!(view.hear(entry("a", 1, Some("x"))), None);
        assert_eq!(view.hear(entry("a", 2, None)), None);
        assert!(view.replay_ends().is_empty());
    }

    #[test]
    fn a_bucket_that_was_made_again_begins_again() {
        let mut view = View::default();
        view.replay_begins(NOW);
        view.hear(entry("a", 7, Some("x")));
        view.hear(entry("b", 8, Some("x")));
        view.replay_begins(NOW + chrono::TimeDelta::seconds(1));
        assert!(view.hear(entry("a", 1, Some("y"))).is_some());
        assert_eq!(view.replay_ends().len(), 1);
    }
}
