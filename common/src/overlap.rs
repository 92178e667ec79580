//! Places: how many runs of one job may go on at once, and who waits.
//!
//! One entry a job, changed by compare-and-set. Every step is keyed by the run and can be made
//! again: a run that is in has its place, a run that waits waits, and a run that has ended is never
//! let in again.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Ends of runs that an entry remembers.
const REMEMBERED: usize = 200;

/// The places of one job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// The format: 1.
    pub v: u32,
    /// The runs that go on.
    #[serde(default)]
    pub active: Vec<Active>,
    /// The runs that wait, first come first.
    #[serde(default)]
    pub waiting: VecDeque<Uuid>,
    /// The runs that waited and wait no more, because they are cancelled; they end when that is
    /// on record.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub leaving: Vec<Uuid>,
    /// Of places that go by another id than their run ([`place_id`]): the id, and the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub again: Vec<(Uuid, Uuid)>,
    /// The last runs that have ended, shortened; the latest last.
    #[serde(default)]
    pub ended: VecDeque<String>,
}

/// A run that has a place.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Active {
    /// The run.
    pub run: Uuid,
    /// It waited, and is to be dispatched; whoever finds it so does that.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub due: bool,
    /// It had waited: it goes by what was kept of it then, and not by its lock.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub waited: bool,
}

/// What a run that finds no place does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenFull {
    /// It waits, unless so many wait already.
    Wait {
        /// The most that may wait; nothing: any number.
        limit: Option<u32>,
    },
    /// It waits, and those before it are to stop; one that has not begun never does.
    Replace,
    /// It is left out.
    Skip,
}

/// What became of a run that asked for a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Admission {
    /// It has one.
    Active,
    /// It waits for one, or has waited and is to be dispatched.
    Waiting,
    /// It has waited, and is dispatched.
    Promoted,
    /// It has ended before.
    Ended,
    /// It is left out: the job is running.
    Overlap,
    /// It is left out: too many wait.
    QueueFull,
}

/// Where a run is, by its job's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It goes on.
    Active,
    /// It waited, has its place, and is to be dispatched.
    Due,
    /// It waits.
    Waiting,
    /// It has ended, or is cancelled and about to.
    Ended,
    /// It was never let in, or is forgotten.
    Unknown,
}

/// What became of a run that is to wait no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Withdrawal {
    /// It waits no more, and never goes on.
    Left,
    /// It has a place: it goes on, or is about to.
    Active,
    /// It had ended before.
    Ended,
}

impl Places {
    /// Asks for a place for `run`, of `places` that there are.
    pub fn admit(&mut self, run: Uuid, places: usize, when_full: WhenFull) -> Admission {
        self.v = 1;
        if let Some(active) = self.active.iter().find(|active| active.run == run) {
            return match (active.due, active.waited) {
                (true, _) => Admission::Waiting,
                (false, true) => Admission::Promoted,
                (false, false) => Admission::Active,
            };
        }
        if self.waiting.contains(&run) || self.leaving.contains(&run) {
            return Admission::Waiting;
        }
        if self.has_ended(run) {
            return Admission::Ended;
        }
        // Nobody overtakes those that wait.
        if self.active.len() < places && self.waiting.is_empty() {
            self.active.push(Active { run, due: false, waited: false });
            return Admission::Active;
        }
        match when_full {
            WhenFull::Skip => Admission::Overlap,
            WhenFull::Wait { limit: Some(limit) } if self.waiting.len() >= limit as usize => {
                Admission::QueueFull
            }
            WhenFull::Wait { .. } => {
                self.waiting.push_back(run);
                Admission::Waiting
            }
            WhenFull::Replace => {
                self.leaving.extend(self.waiting.drain(..));
                self.waiting.push_back(run);
                Admission::Waiting
            }
        }
    }

    /// Asks for a place for `run`, which is tried again for the `round`th time. Whoever asks
    /// dispatches it himself as soon as it has one.
    pub fn turn(&mut self, run: Uuid, round: u32, places: usize) -> Admission {
        let id = place_id(run, round);
        if let Some(active) = self.active.iter_mut().find(|active| active.run == id) {
            active.due = false;
            return Admission::Active;
        }
        let admission = self.admit(id, places, WhenFull::Wait { limit: None });
        let is_in = matches!(admission, Admission::Active | Admission::Waiting);
        if is_in && id != run && !self.again.contains(&(id, run)) {
            self.again.push((id, run));
        }
        admission
    }

    /// The runs that are to stop for `run`, while it waits to replace them: those that go on, and
    /// those that never will.
    pub fn replaced_by(&self, run: Uuid) -> Vec<Uuid> {
        if !self.waiting.contains(&run) {
            return Vec::new();
        }
        let all = self.active.iter().map(|active| active.run).chain(self.leaving.iter().copied());
        let run_of =
            |id| self.again.iter().find(|(again, _)| *again == id).map_or(id, |(_, run)| *run);
        all.map(run_of).collect()
    }

    /// `run` is not to go on, if it has not begun: it waits no more. And whether that changed
    /// anything.
    pub fn withdraw(&mut self, run: Uuid) -> (Withdrawal, bool) {
        if self.active.iter().any(|active| active.run == run) {
            return (Withdrawal::Active, false);
        }
        if self.leaving.contains(&run) {
            return (Withdrawal::Left, false);
        }
        if self.has_ended(run) {
            return (Withdrawal::Ended, false);
        }
        self.waiting.retain(|waiting| *waiting != run);
        self.leaving.push(run);
        (Withdrawal::Left, true)
    }

    /// `run` has ended: its place is free. True when that changed anything.
    pub fn release(&mut self, run: Uuid) -> bool {
        if self.has_ended(run) {
            return false;
        }
        self.active.retain(|active| active.run != run);
        self.waiting.retain(|waiting| *waiting != run);
        self.leaving.retain(|leaving| *leaving != run);
        self.again.retain(|(id, _)| *id != run);
        self.ended.push_back(short(run));
        while self.ended.len() > REMEMBERED {
            self.ended.pop_front();
        }
        true
    }

    /// Gives free places to those that wait; they are then due. True when that changed anything.
    pub fn promote(&mut self, places: usize) -> bool {
        let mut changed = false;
        while self.active.len() < places
            && let Some(run) = self.waiting.pop_front()
        {
            self.active.push(Active { run, due: true, waited: true });
            changed = true;
        }
        changed
    }

    /// `run` is dispatched: it is due no more. True when that changed anything.
    pub fn dispatched(&mut self, run: Uuid) -> bool {
        let due = self.active.iter_mut().find(|active| active.run == run && active.due);
        due.map(|active| active.due = false).is_some()
    }

    /// `run` waits again, though nobody knows of it any more. True when that changed anything.
    pub fn wait_again(&mut self, run: Uuid) -> bool {
        let known = self.place_of(run) != Place::Unknown;
        if !known {
            self.v = 1;
            self.waiting.push_back(run);
        }
        !known
    }

    /// Whether any run goes on or waits.
    pub fn is_busy(&self) -> bool {
        !self.active.is_empty() || !self.waiting.is_empty()
    }

    /// Where `run` is.
    pub fn place_of(&self, run: Uuid) -> Place {
        match self.active.iter().find(|active| active.run == run) {
            Some(active) if active.due => Place::Due,
            Some(_) => Place::Active,
            None if self.waiting.contains(&run) => Place::Waiting,
            None if self.has_ended(run) || self.leaving.contains(&run) => Place::Ended,
            None => Place::Unknown,
        }
    }

    /// The runs that are to be dispatched.
    pub fn due(&self) -> impl Iterator<Item = Uuid> + '_ {
        self.active.iter().filter(|active| active.due).map(|active| active.run)
    }

    /// Whether `run` waits, has got its place after it waited, or has ended.
    pub fn has_queued(&self, run: Uuid) -> bool {
        let waited = self.active.iter().any(|active| active.run == run && active.waited);
        waited || self.waiting.contains(&run) || self.has_ended(run)
    }

    fn has_ended(&self, run: Uuid) -> bool {
        let run = short(run);
        self.ended.contains(&run)
    }
}

/// What a run's place goes by once it was retried by hand `round` times: its own id at first, and
/// another each time, as what has ended is never let in again.
pub fn place_id(run: Uuid, round: u32) -> Uuid {
    Uuid::from_u128(run.as_u128() ^ u128::from(round))
}

/// Enough of a run's id to tell it from the others of its job: the random end, 64 bits.
fn short(run: Uuid) -> String {
    let simple = run.simple().to_string();
    simple[16..].into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(n: u128) -> Uuid {
        Uuid::from_u128(n)
    }

    const WAIT: WhenFull = WhenFull::Wait { limit: Some(2) };

    #[test]
    fn one_runs_two_wait_and_the_next_is_left_out() {
        let mut places = Places::default();
        let admissions: Vec<_> = (1..=4).map(|n| places.admit(run(n), 1, WAIT)).collect();
        use Admission::*;
        assert_eq!(admissions, [Active, Waiting, Waiting, QueueFull]);
        assert_eq!(places.admit(run(1), 1, WAIT), Active, "asked again");
        assert_eq!(places.admit(run(2), 1, WAIT), Waiting, "asked again");
        assert_eq!(places.admit(run(5), 1, WhenFull::Skip), Overlap);
        assert!(places.release(run(1)) && !places.release(run(1)));
        assert_eq!(places.admit(run(1), 1, WAIT), Ended, "never again");
        assert!(places.promote(1) && !places.promote(1));
        assert_eq!(places.due().collect::<Vec<_>>(), [run(2)]);
        assert_eq!(places.admit(run(2), 1, WAIT), Waiting, "whoever promoted it dispatches it");
        assert!(places.dispatched(run(2)) && !places.dispatched(run(2)));
        assert_eq!(places.admit(run(2), 1, WAIT), Promoted, "asked again, late");
        assert_eq!([1, 2, 3, 9].map(|n| places.place_of(run(n))), {
            use Place::*;
            [Ended, Active, Waiting, Unknown]
        });
        assert!(!places.wait_again(run(1)) && !places.wait_again(run(2)));
        assert!(places.wait_again(run(9)) && places.release(run(9)));
        assert!(places.release(run(3)), "a waiter can be taken out");
        assert_eq!((places.active.len(), places.waiting.len()), (1, 0));
    }

    #[test]
    fn a_run_that_is_tried_again_takes_its_turn_under_another_id() {
        let mut places = Places::default();
        places.admit(run(1), 1, WAIT);
        places.release(run(1));
        assert_eq!(place_id(run(1), 0), run(1));
        let again = place_id(run(1), 1);
        places.admit(run(8), 1, WAIT);
        assert_eq!(places.turn(run(1), 1, 1), Admission::Waiting);
        assert_eq!(places.turn(run(1), 1, 1), Admission::Waiting, "asked again");
        places.release(run(8));
        places.promote(1);
        assert_eq!(places.turn(run(1), 1, 1), Admission::Active);
        assert_eq!(places.due().count(), 0, "who asked dispatches it");
        places.admit(run(9), 1, WhenFull::Replace);
        assert_eq!(places.replaced_by(run(9)), [run(1)], "the run, and not its place");
        assert!(places.release(again) && places.again.is_empty());
        assert_eq!(places.turn(run(1), 1, 1), Admission::Ended);
    }

    #[test]
    fn the_latest_replaces_those_before_it_and_begins_when_the_one_that_goes_on_has_ended() {
        let mut places = Places::default();
        let replace = |places: &mut Places, n| places.admit(run(n), 1, WhenFull::Replace);
        assert_eq!(replace(&mut places, 1), Admission::Active);
        assert!(places.replaced_by(run(1)).is_empty());
        assert_eq!(replace(&mut places, 2), Admission::Waiting);
        assert_eq!(places.replaced_by(run(2)), [run(1)]);
        assert_eq!(replace(&mut places, 3), Admission::Waiting);
        assert_eq!(places.replaced_by(run(3)), [run(1), run(2)]);
        assert_eq!(replace(&mut places, 3), Admission::Waiting, "asked again");
        assert_eq!(replace(&mut places, 2), Admission::Waiting, "asked again, late");
        assert!(places.replaced_by(run(2)).is_empty(), "it replaces nobody any more");
        assert!(!places.promote(1), "never two at once");
        places.release(run(1));
        assert!(places.promote(1));
        assert_eq!(places.due().collect::<Vec<_>>(), [run(3)]);
        assert_eq!(places.withdraw(run(2)), (Withdrawal::Left, false));
    }

    #[test]
    fn one_that_is_withdrawn_waits_no_more_and_the_next_goes_on() {
        let mut places = Places::default();
        for n in 1..=3 {
            places.admit(run(n), 1, WAIT);
        }
        assert_eq!(places.withdraw(run(1)), (Withdrawal::Active, false));
        assert_eq!(places.withdraw(run(2)), (Withdrawal::Left, true));
        assert_eq!(places.withdraw(run(2)), (Withdrawal::Left, false), "once more");
        assert_eq!(places.admit(run(2), 1, WAIT), Admission::Waiting, "it is still to be recorded");
        places.release(run(1));
        places.promote(1);
        assert_eq!(places.due().collect::<Vec<_>>(), [run(3)]);
        assert!(places.release(run(2)) && places.leaving.is_empty());
        assert_eq!(places.withdraw(run(2)), (Withdrawal::Ended, false));
        assert_eq!(places.admit(run(2), 1, WAIT), Admission::Ended);
    }

    #[test]
    fn nobody_overtakes_those_that_wait() {
        let mut places = Places::default();
        places.admit(run(1), 1, WAIT);
        places.admit(run(2), 1, WAIT);
        places.release(run(1));
        assert_eq!(places.admit(run(3), 1, WAIT), Admission::Waiting);
    }

    proptest! {
        /// Whatever happens, there are never more runs than places, and no run twice.
        #[test]
        fn never_more_than_there_are_places(
            steps in prop::collection::vec((0_u8..5, 1_u128..12), 0..200),
            count in 1_usize..4,
        ) {
            let mut places = Places::default();
            let mut over = std::collections::BTreeSet::new();
            for (step, n) in steps {
                match step {
                    0 => {
                        let when_full = if n % 3 == 0 { WhenFull::Replace } else { WAIT };
                        let admission = places.admit(run(n), count, when_full);
                        prop_assert_eq!(admission == Admission::Ended, over.contains(&n));
                    }
                    1 => {
                        places.release(run(n));
                        over.insert(n);
                    }
                    2 => drop(places.promote(count)),
                    3 => drop(places.withdraw(run(n))),
                    _ => drop(places.dispatched(run(n))),
                }
                prop_assert!(places.active.len() <= count);
                let mut all: Vec<_> = places.active.iter().map(|active| active.run).collect();
                all.extend(&places.waiting);
                all.extend(&places.leaving);
                let distinct: std::collections::BTreeSet<_> = all.iter().collect();
                prop_assert_eq!(distinct.len(), all.len());
                let text = serde_json::to_string(&places).unwrap();
                prop_assert_eq!(&serde_json::from_str::<Places>(&text).unwrap(), &places);
            }
        }
    }
}
