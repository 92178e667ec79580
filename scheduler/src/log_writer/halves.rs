//! Lines that wait a little for the rest of their run.
//!
//! When much is under way, a run's fired record and its result come a hundred milliseconds apart, in
//! different batches, and writing a run twice costs twice as much. So while batches are large, a line
//! whose other half has not come waits for it, for at most [`LONGEST`]. At rest nothing waits.
//!
//! *Invariant: a message is given back, to be acked, with the last of its lines, and not earlier.*

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use uuid::Uuid;

use super::event::Line;
use super::transition::Event;

/// The longest that a line waits.
const LONGEST: Duration = Duration::from_millis(250);

/// With so many new lines at once there is much under way.
const BUSY: usize = 200;

/// The most lines that wait; with more, all are written.
const MOST: usize = 8192;

/// A line, and the message that it came in.
#[derive(Debug)]
pub(super) struct Part<M> {
    pub(super) line: Line,
    pub(super) message: Arc<M>,
    /// When it came.
    pub(super) at: Instant,
}

/// Lines that wait, in the order in which they came.
#[derive(Debug)]
pub(super) struct Halves<M> {
    parts: Vec<Part<M>>,
}

impl<M> Default for Halves<M> {
    fn default() -> Self {
        Self { parts: Vec::new() }
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
    fn absorb<M>(&mut self, part: &Part<M>, now: Instant) {
        match part.line.event {
            Event::Fired(..) => self.fired = true,
            Event::Result(_) => self.result = true,
            Event::Started(_) => {}
            Event::Scheduled(_) | Event::Progress(_) | Event::Asked(_) | Event::Sweep(_) => {
                self.other = true;
            }
        }
        self.late |= now >= part.at + LONGEST;
    }

    /// Nothing is to be waited for, of a run that is `written` already or not.
    fn is_whole(self, written: bool) -> bool {
        self.other || self.late || (self.result && (self.fired || written))
    }
}

impl<M> Halves<M> {
    /// When the first of those that wait is to be written.
    pub(super) fn due(&self) -> Option<Instant> {
        self.parts.first().map(|part| part.at + LONGEST)
    }

    /// Those that wait.
    pub(super) fn parts(&self) -> &[Part<M>] {
        &self.parts
    }

    /// Takes in what has come, and returns what is to be written at `now`; `written` says whether
    /// something of a run has been.
    pub(super) fn sort(
        &mut self,
        new: Vec<Part<M>>,
        now: Instant,
        written: impl Fn(Uuid) -> bool,
    ) -> Vec<Part<M>> {
        let busy = new.len() >= BUSY;
        self.parts.extend(new);
        if !busy || self.parts.len() > MOST {
            return std::mem::take(&mut self.parts);
        }
        let mut seen: HashMap<Uuid, Seen> = HashMap::with_capacity(self.parts.len());
        for part in &self.parts {
            seen.entry(part.line.event.run()).or_default().absorb(part, now);
        }
        let whole = |part: &mut Part<M>| {
            let run = part.line.event.run();
            seen.get(&run).is_none_or(|seen| seen.is_whole(written(run)))
        };
        self.parts.extract_if(.., whole).collect()
    }

    /// All that wait.
    pub(super) fn take(&mut self) -> Vec<Part<M>> {
        std::mem::take(&mut self.parts)
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
    fn message(lines: &[(char, u128)], at: Instant) -> (Arc<()>, Vec<Part<()>>) {
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
            Part { line: lines.remove(0), message: message.clone(), at }
        };
        let parts = lines.iter().map(part).collect();
        (message, parts)
    }

    /// So many runs that are whole: there is much under way.
    fn crowd(at: Instant) -> Vec<Part<()>> {
        let lines: Vec<_> = (1000..1100).flat_map(|n| [('f', n), ('r', n)]).collect();
        message(&lines, at).1
    }

    fn runs(parts: &[Part<()>]) -> HashSet<u128> {
        let runs = parts.iter().map(|part| part.line.event.run().as_u128());
        runs.filter(|run| *run < 1000).collect()
    }

    #[test]
    fn at_rest_nothing_waits() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (_, parts) = message(&[('f', 1), ('f', 2), ('r', 3)], now);
        assert_eq!(halves.sort(parts, now, |_| false).len(), 3);
        assert_eq!(halves.due(), None);
    }

    #[test]
    fn in_a_crowd_a_half_waits_for_the_other_and_for_so_long() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (_, mut parts) =
            message(&[('f', 1), ('f', 2), ('r', 3), ('s', 4), ('p', 5), ('r', 6)], now);
        parts.extend(crowd(now));
        let written = halves.sort(parts, now, |run| run.as_u128() == 6);
        assert_eq!(
            runs(&written),
            [5, 6].into(),
            "progress waits for nothing, nor a result of what is written"
        );
        let later = now + LONGEST / 2;
        let (_, mut parts) = message(&[('r', 1), ('f', 3)], later);
        parts.extend(crowd(later));
        let written = halves.sort(parts, later, |_| false);
        assert_eq!(runs(&written), [1, 3].into());
        let order: Vec<_> = written.iter().map(|part| part.line.event.run().as_u128()).collect();
        assert_eq!(order[..2], [1, 3], "those that waited come first");
        assert_eq!(halves.due(), Some(now + LONGEST));
        let written = halves.sort(crowd(now + LONGEST), now + LONGEST, |_| false);
        assert_eq!(runs(&written), [2, 4].into());
        assert_eq!(halves.due(), None);
    }

    #[test]
    fn when_nothing_more_comes_all_are_written() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (_, mut parts) = message(&[('f', 1)], now);
        parts.extend(crowd(now));
        assert!(runs(&halves.sort(parts, now, |_| false)).is_empty());
        assert_eq!(runs(&halves.sort(Vec::new(), now, |_| false)), [1].into());
    }

    #[test]
    fn no_more_than_so_many_wait() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let lines: Vec<_> = (0..=MOST as u128).map(|n| ('f', n)).collect();
        let all = message(&lines, now).1;
        assert_eq!(halves.sort(all, now, |_| false).len(), MOST + 1);
    }

    #[test]
    fn a_message_comes_out_with_the_last_of_its_lines() {
        let now = Instant::now();
        let mut halves = Halves::default();
        let (message, mut parts) = message(&[('f', 1), ('r', 1), ('f', 2)], now);
        parts.extend(crowd(now));
        let mut own = Some(message);
        drop(halves.sort(parts, now, |_| false));
        let left = own.take().map(|message| Arc::strong_count(&message));
        assert_eq!(left, Some(2), "a line of it waits");
        let rest = halves.take();
        let gone = rest.into_iter().filter_map(|part| Arc::into_inner(part.message)).count();
        assert_eq!(gone, 1);
    }
}
