//! Which of several consumers is asked next, when the first ones go first: pure functions.
//!
//! *Invariant: what is asked for never exceeds the slots that are kept for it*; so as long as there
//! are fewer free slots than consumers, not all of them can be waited for at once. *Invariant: a slot
//! that has come free goes to the first consumer that has something.*

/// How one consumer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// What it has is not known.
    Unknown,
    /// It had nothing when it was asked last, and no request is open.
    Empty,
    /// It is asked for what it has; the answer comes at once.
    Looking,
    /// It has nothing, and a request for one message waits there.
    Waiting(Wait),
    /// Its requests are lost; what had been sent may still arrive.
    Leaving,
    /// It cannot be asked now.
    Quiet,
}

/// Why a request waits at a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// There is a slot for each that is waited for so.
    Own,
    /// It is this one's turn.
    Turn,
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Ask this one for as much as it has, for all slots that are kept for nothing.
    Look(usize),
    /// Wait for one message of this one.
    Wait(usize, Wait),
    /// Nothing now.
    Listen,
}

impl Line {
    /// Whether something can come of it.
    pub(super) fn is_open(self) -> bool {
        matches!(self, Self::Looking | Self::Waiting(_) | Self::Leaving)
    }
}

/// The next step. Of the `slots` free slots, `unbound` are kept for no request; where not all can be
/// waited for, `turn` says whose turn it is.
pub(super) fn step(lines: &[Line], slots: usize, unbound: usize, turn: usize) -> Step {
    // One after the other: what a later one has does not matter before the earlier ones have answered.
    if lines.iter().any(|line| matches!(line, Line::Looking | Line::Leaving)) {
        return Step::Listen;
    }
    let unknown = lines.iter().position(|line| *line == Line::Unknown);
    if let Some(at) = unknown.filter(|_| unbound > 0) {
        return Step::Look(at);
    }
    // A request that should not wait any more, because slots have become few, is not taken back: what is
    // on its way then could be lost until its lease ends. It is over soon.
    let wanted = wanted(lines, slots, turn);
    let missing = wanted.into_iter().find(|(at, _)| !lines[*at].is_open());
    match missing.filter(|_| unbound > 0) {
        Some((at, wait)) => Step::Wait(at, wait),
        None => Step::Listen,
    }
}

/// For how many quarters of the longest time a request waits: the fewer slots there are, the sooner the
/// one that is kept for it is free for others.
pub(super) fn quarters(lines: &[Line], slots: usize, wait: Wait) -> u32 {
    let count = lines.iter().filter(|line| **line != Line::Quiet).count();
    match wait {
        Wait::Own if slots >= 2 * count => 4,
        Wait::Own if slots >= count => 2,
        Wait::Own | Wait::Turn => 1,
    }
}

/// Which consumers are to be waited for: all, if there are slots for that; else the first ones, and
/// the others by turns.
fn wanted(lines: &[Line], slots: usize, turn: usize) -> Vec<(usize, Wait)> {
    let all = lines.iter().enumerate().filter(|(_, line)| **line != Line::Quiet);
    let mut wanted: Vec<_> = all.map(|(at, _)| (at, Wait::Own)).collect();
    if slots >= wanted.len() {
        return wanted;
    }
    let Some(always) = slots.checked_sub(1) else { return Vec::new() };
    let (at, _) = wanted[always + turn % (wanted.len() - always)];
    wanted.truncate(always);
    wanted.push((at, Wait::Turn));
    wanted
}

#[cfg(test)]
mod tests {
    use super::Line::*;
    use super::Step::{Listen, Look};
    use super::Wait::{Own, Turn};
    use super::*;

    #[test]
    fn the_first_one_that_has_something_goes_first() {
        let table: [(&[Line], usize, usize, usize, Step); 16] = [
            (&[Unknown, Unknown, Unknown], 2, 2, 0, Look(0)),
            (&[Looking, Unknown, Unknown], 2, 0, 0, Listen),
            (&[Empty, Unknown, Unknown], 2, 2, 0, Look(1)),
            (&[Empty, Looking, Unknown], 3, 1, 0, Listen),
            (&[Quiet, Empty, Unknown], 1, 1, 0, Look(2)),
            // Room to wait for each.
            (&[Empty, Empty], 2, 2, 0, Step::Wait(0, Own)),
            (&[Waiting(Own), Empty], 2, 1, 0, Step::Wait(1, Own)),
            (&[Waiting(Own), Waiting(Own)], 5, 3, 0, Listen),
            (&[Waiting(Own), Unknown], 4, 3, 0, Look(1)),
            // None: the first ones, and one of the others after the other.
            (&[Empty, Empty, Empty], 2, 2, 0, Step::Wait(0, Own)),
            (&[Waiting(Own), Empty, Empty], 2, 1, 0, Step::Wait(1, Turn)),
            (&[Waiting(Own), Empty, Empty], 2, 1, 3, Step::Wait(2, Turn)),
            (&[Waiting(Own), Waiting(Turn), Empty], 2, 0, 0, Listen),
            // There were more slots a moment ago: those requests are over soon.
            (&[Waiting(Own), Waiting(Own), Unknown], 2, 0, 0, Listen),
            (&[Waiting(Own), Unknown], 1, 0, 0, Listen),
            (&[Quiet, Quiet], 3, 3, 0, Listen),
        ];
        for (lines, slots, unbound, turn, expected) in table {
            assert_eq!(step(lines, slots, unbound, turn), expected, "{lines:?} {slots} {unbound}");
        }
    }

    /// Whatever there was before: when nothing comes, each one is waited for before long, and never
    /// more than there are slots.
    #[test]
    fn each_one_has_its_turn() {
        for count in 2..=10 {
            for slots in 1..=11 {
                for open in 0..=slots.min(count) {
                    has_its_turn(count, slots, open);
                }
            }
        }
    }

    fn has_its_turn(count: usize, slots: usize, open: usize) {
        let case = format!("{count} lines, {slots} slots, {open} open");
        let line = |at| if at < open { Waiting(Own) } else { Unknown };
        let mut lines: Vec<Line> = (0..count).map(line).collect();
        let (mut turn, mut seen) = (7, vec![false; count]);
        for _ in 0..20 * count {
            let unbound = slots - bound(&lines);
            match step(&lines, slots, unbound, turn) {
                Look(at) => lines[at] = Empty,
                Step::Wait(at, wait) => {
                    assert!(unbound > 0, "{case}");
                    lines[at] = Waiting(wait);
                }
                Listen => {
                    for (at, line) in lines.iter_mut().enumerate() {
                        let Waiting(wait) = *line else { continue };
                        seen[at] = true;
                        turn += usize::from(wait == Turn);
                        *line = Empty;
                    }
                }
            }
            assert!(bound(&lines) <= slots, "{case}");
        }
        assert!(seen.iter().all(|seen| *seen), "{case}: {seen:?}");
    }

    fn bound(lines: &[Line]) -> usize {
        lines.iter().filter(|line| line.is_open()).count()
    }
}
