//! Lines that wait a little for the rest of their run.
//!
//! When much is under way, a run's fired record and its result come a hundred milliseconds apart, in
//! different batches, and writing a run twice costs twice as much. So while batches are large, a fired
//! record waits for the run's first result, a result for the fired record, and what says that a handler
//! is at work for either, for about [`LONGEST`]. Nothing else waits; and at rest nothing does.
//!
//! *Invariant: a message is given back, to be acked, with the last of its lines, and not earlier.*

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use taskparty_common::dispatch::ResultRecord;
use taskparty_common::outcome::TriggerResult;
use tokio::time::Instant;
use uuid::Uuid;

use super::event::Line;
use super::transition::Event;

/// The longest that a line waits, beside what the batch before it takes.
const LONGEST: Duration = Duration::from_millis(250);

/// With so many new lines at once there is much under way; where batches are smaller, nothing waits.
const BUSY: usize = 200;

/// The most lines that wait; with more, all are written. Each may be a message: with a batch they stay
/// below the consumer's `max_ack_pending`, past which nothing more is delivered.
const MOST: usize = 4096;

/// The most bytes of the messages of lines that wait, likewise.
const MOST_BYTES: usize = 8 << 20;

/// A line, and the message that it came in.
#[derive(Debug)]
pub(super) struct Arrived<M> {
    pub(super) line: Line,
    pub(super) message: Arc<M>,
    /// How many bytes the message has.
    pub(super) bytes: usize,
    /// When it came.
    pub(super) at: Instant,
}

/// Lines that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct Halves<M> {
    waiting: Vec<Arrived<M>>,
}

impl<M> Default for Halves<M> {
    fn default() -> Self {
        Self { waiting: Vec::new() }
    }
}

/// What has come of a run.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    fired: bool,
    result: bool,
    /// Something that waits for nothing.
    other: bool,
    late: bool,
}

impl Seen {
    fn absorb<M>(&mut self, one: &Arrived<M>, now: Instant) {
        match one.line.event {
            Event::Fired(ref fired, _) if fired.result == TriggerResult::Dispatched => {
                self.fired = true;
            }
            // Its fired record has been here long ago.
            Event::Result(ref result) if took_long(result) => self.other = true,
            Event::Result(_) => self.result = true,
            Event::Started(_) => {}
            Event::Fired(..)
            | Event::Scheduled(_)
            | Event::Progress(_)
            | Event::Asked(_)
            | Event::Sweep(_) => self.other = true,
        }
        self.late |= now >= one.at + LONGEST;
    }

    /// Nothing is to be waited for, of a run whose first half is `kept`, or is not.
    fn is_whole(self, kept: bool) -> bool {
        self.other || self.late || (self.result && (self.fired || kept))
    }
}

/// Whether the handler took longer than anything waits.
fn took_long(result: &ResultRecord) -> bool {
    let took = result.started_at.map(|started| result.finished_at - started);
    took.is_some_and(|took| took.to_std().is_ok_and(|took| took > LONGEST))
}

impl<M> Halves<M> {
    /// When the first of those that wait is to be written.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.first().map(|one| one.at + LONGEST)
    }

    /// The messages of those that wait; one more than once, perhaps.
    pub(super) fn messages(&self) -> impl Iterator<Item = &Arc<M>> {
        self.waiting.iter().map(|one| &one.message)
    }

    /// Takes in what has come, and returns what is to be written at `now`. `is_kept` says whether the
    /// first half of a run is written and need not be read to add the other: where that was forgotten, a
    /// result waits in vain.
    pub(super) fn admit(
        &mut self,
        new: Vec<Arrived<M>>,
        now: Instant,
        is_kept: impl Fn(Uuid) -> bool,
    ) -> Vec<Arrived<M>> {
        let busy = new.len() >= BUSY;
        self.waiting.extend(new);
        if !busy || self.waiting.len() > MOST || self.bytes() > MOST_BYTES {
            return self.take_all();
        }
        let mut seen: HashMap<Uuid, Seen> = HashMap::with_capacity(self.waiting.len());
        for one in &self.waiting {
            seen.entry(one.line.event.run()).or_default().absorb(one, now);
        }
        let whole = |one: &mut Arrived<M>| {
            let run = one.line.event.run();
            seen.get(&run).is_none_or(|seen| seen.is_whole(is_kept(run)))
        };
        self.waiting.extract_if(.., whole).collect()
    }

    /// Of the messages of those that wait. The lines of a message are neighbours.
    fn bytes(&self) -> usize {
        let messages = self.waiting.chunk_by(|one, next| Arc::ptr_eq(&one.message, &next.message));
        messages.filter_map(|lines| lines.first()).map(|one| one.bytes).sum()
    }

    /// All that wait.
    pub(super) fn take_all(&mut self) -> Vec<Arrived<M>> {
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::log_writer::event;
    use bytes::Bytes;
    use chrono::DateTime;
    use taskparty_nats::subject::Names;

    /// A message of these lines, which are about run `n`: `f`ired, `r`esult, `s`tarted, `p`rogress.
    fn message(lines: &[(char, u128)], at: Instant) -> (Arc<()>, Vec<Arrived<()>>) {
        let message = Arc::new(());
        let part = |&(kind, n): &(char, u128)| {
            let run = Uuid::from_u128(n);
            let (subject, text) = match kind {
                'f' => (
                    "fired",
                    format!(
                        r#"{{"v":1,"lock":"a.t.1","run":"{run}","job":"a","app":"b","handler":"h","revision":1,"since":"2026-01-01T00:00:00Z","owner":"s","trigger":"schedule","result":"dispatched","fire_time":"2026-01-01T00:00:00Z","fired_at":"2026-01-01T00:00:00Z","plan":{{"total":1,"attempt":1}},"definition":null}}"#
                    ),
                ),
                'r' => (
                    "result",
                    format!(
                        r#"{{"v":1,"run":"{run}","job":"a","shard":{{"index":0,"total":1}},"attempt":1,"delivery":1,"instance":"e","outcome":"succeeded","retryable":true,"fire_time":"2026-01-01T00:00:00Z","finished_at":"2026-01-01T00:00:00Z"}}"#
                    ),
                ),
                's' => (
                    "started",
                    format!(
                        r#"{{"v":1,"run":"{run}","job":"a","shard":0,"attempt":1,"delivery":1,"instance":"e","started_at":"2026-01-01T00:00:00Z"}}"#
                    ),
                ),
                _ => (
                    "progress",
                    format!(r#"{{"v":1,"run":"{run}","shard":0,"attempt":1,"done":1}}"#),
                ),
            };
            let (mut lines, mut aside) = (Vec::new(), Vec::new());
            let subject = format!("taskparty.{subject}.b");
            let payload = Bytes::from(text);
            event::read(
                &Names::default(),
                &subject,
                1,
                DateTime::UNIX_EPOCH,
                &payload,
                &mut lines,
                &mut aside,
            );
            assert!(aside.is_empty(), "{}", aside[0].reason);
            Arrived { line: lines.remove(0), message: message.clone(), bytes: 100, at }
        };
        let parts = lines.iter().map(part).collect();
        (message, parts)
    }

    /// So many runs that are whole: there is much under way.
    fn crowd(at: Instant) -> Vec<Arrived<()>> {
        let lines: Vec<_> = (1000..1100).flat_map(|n| [('f', n), ('r', n)]).collect();
        message(&lines, at).1
    }

    fn runs(parts: &[Arrived<()>]) -> HashSet<u128> {
        let runs = parts.iter().map(|part| part.line.event.run().as_u128());
        runs.filter(|run| *run < 1000).collect()
    }

    #[test]
    fn at_rest_nothing_waits() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (_, parts) = message(&[('f', 1), ('f', 2), ('r', 3)], now);
        assert_eq!(halves.admit(parts, now, |_| false).len(), 3);
        assert_eq!(halves.due(), None);
    }

    #[test]
    fn in_a_crowd_a_half_waits_for_the_other_and_for_so_long() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (_, mut parts) =
            message(&[('f', 1), ('f', 2), ('r', 3), ('s', 4), ('p', 5), ('r', 6)], now);
        parts.extend(crowd(now));
        let written = halves.admit(parts, now, |run| run.as_u128() == 6);
        assert_eq!(
            runs(&written),
            [5, 6].into(),
            "progress waits for nothing, nor a result of what is written"
        );
        let later = now + LONGEST / 2;
        let (_, mut parts) = message(&[('r', 1), ('f', 3)], later);
        parts.extend(crowd(later));
        let written = halves.admit(parts, later, |_| false);
        assert_eq!(runs(&written), [1, 3].into());
        let order: Vec<_> = written.iter().map(|part| part.line.event.run().as_u128()).collect();
        assert_eq!(order[..2], [1, 3], "those that waited come first");
        assert_eq!(halves.due(), Some(now + LONGEST));
        let written = halves.admit(crowd(now + LONGEST), now + LONGEST, |_| false);
        assert_eq!(runs(&written), [2, 4].into());
        assert_eq!(halves.due(), None);
    }

    #[test]
    fn when_nothing_more_comes_all_are_written() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (_, mut parts) = message(&[('f', 1)], now);
        parts.extend(crowd(now));
        assert!(runs(&halves.admit(parts, now, |_| false)).is_empty());
        assert_eq!(runs(&halves.admit(Vec::new(), now, |_| false)), [1].into());
    }

    #[test]
    fn no_more_than_so_many_wait() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let lines: Vec<_> = (0..=MOST as u128).map(|n| ('f', n)).collect();
        let all = message(&lines, now).1;
        assert_eq!(halves.admit(all, now, |_| false).len(), MOST + 1);
    }

    #[test]
    fn a_message_comes_out_with_the_last_of_its_lines() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (message, mut parts) = message(&[('f', 1), ('r', 1), ('f', 2)], now);
        parts.extend(crowd(now));
        drop(halves.admit(parts, now, |_| false));
        assert_eq!(Arc::strong_count(&message), 2, "a line of it waits");
        drop(message);
        let rest = halves.take_all();
        let gone = rest.into_iter().filter_map(|part| Arc::into_inner(part.message)).count();
        assert_eq!(gone, 1);
    }
}
