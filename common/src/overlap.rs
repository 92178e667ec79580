//! Places: how many runs of one job may go on at once, how many may begin, and who waits.
//!
//! One entry a job, changed by compare-and-set. Every step is keyed by the run and can be made
//! again: a run that is in has its place, a run that waits waits, and a run that has ended is never
//! let in again. *Invariant: where the job has a rate, a run that gets a place counts in the same
//! step*, so whoever crashes afterwards makes none begin too early, or count twice.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::rate::{Rate, Starts};

/// Ends of runs that an entry remembers.
const REMEMBERED: usize = 200;

/// Runs that are replaced and wait for that to be on record, about: while the history is down none
/// is. Past it, what waits already is not replaced.
const MOST_LEAVING: usize = 200;

/// Waiting runs that get their places in one step, at most: a run counts when it gets its place, and
/// begins when those before it are dispatched.
pub const AT_ONCE: usize = 16;

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
    /// When runs began lately, where the job has a rate.
    #[serde(default, skip_serializing_if = "Starts::is_empty")]
    pub starts: Starts,
    /// The last run that asked may go on beside others, if the job has no limits any more.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beside: bool,
    /// The last runs that have ended, shortened; the latest last.
    #[serde(default)]
    pub ended: VecDeque<String>,
}

/// How many runs of a job may go on, and begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The places that there are.
    pub places: usize,
    /// The job's rate; nothing: as many as there are places.
    pub rate: Option<Rate>,
    /// Now, in milliseconds since 1970; for the rate alone.
    pub now_ms: i64,
}

impl From<usize> for Limits {
    /// So many places, and no rate.
    fn from(places: usize) -> Self {
        Self { places, rate: None, now_ms: 0 }
    }
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
    /// Asks for a place for `run`, inside `limits`.
    pub fn admit(
        &mut self,
        run: Uuid,
        limits: impl Into<Limits>,
        when_full: WhenFull,
    ) -> Admission {
        let limits = limits.into();
        self.v = 1;
        if let Some(active) = self.active.iter().find(|active| active.run == run) {
            return match (active.due, active.waited) {
                (true, _) => Admission::Waiting,
                (false, true) => Admission::Promoted,
                (false, false) => {
                    // Whoever asked first may have died: it may be dispatched only now.
                    self.count_again(limits);
                    Admission::Active
                }
            };
        }
        if self.waiting.contains(&run) || self.leaving.contains(&run) {
            return Admission::Waiting;
        }
        if self.has_ended(run) {
            return Admission::Ended;
        }
        // Nobody overtakes those that wait.
        if self.active.len() < limits.places && self.waiting.is_empty() && self.begins(limits) {
            self.active.push(Active { run, due: false, waited: false });
            return Admission::Active;
        }
        match when_full {
            // What waits for its rate alone is not left out; but it counts as one that goes on.
            WhenFull::Skip
                if limits.rate.is_some()
                    && self.active.len() + self.waiting.len() < limits.places =>
            {
                self.waiting.push_back(run);
                Admission::Waiting
            }
            WhenFull::Skip => Admission::Overlap,
            WhenFull::Wait { limit: Some(limit) } if self.waiting.len() >= limit as usize => {
                Admission::QueueFull
            }
            WhenFull::Wait { .. } => {
                self.waiting.push_back(run);
                Admission::Waiting
            }
            WhenFull::Replace
                if !self.waiting.is_empty()
                    && !self.leaving.is_empty()
                    && self.leaving.len() + self.waiting.len() > MOST_LEAVING =>
            {
                Admission::QueueFull
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
    pub fn turn(&mut self, run: Uuid, round: u32, limits: impl Into<Limits>) -> Admission {
        let id = place_id(run, round);
        let limits = limits.into();
        if let Some(active) = self.active.iter_mut().find(|active| active.run == id) {
            if std::mem::take(&mut active.due) {
                self.count_again(limits);
            }
            return Admission::Active;
        }
        let admission = self.admit(id, limits, WhenFull::Wait { limit: None });
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

    /// Gives free places to those that wait, a few in one step; they are then due. True when that
    /// changed anything.
    pub fn promote(&mut self, limits: impl Into<Limits>) -> bool {
        let limits = limits.into();
        let mut changed = limits.rate.is_some() && self.starts.settle(limits.now_ms);
        for _ in 0..AT_ONCE {
            if self.active.len() >= limits.places || self.waiting.is_empty() || !self.begins(limits)
            {
                break;
            }
            let Some(run) = self.waiting.pop_front() else { break };
            self.active.push(Active { run, due: true, waited: true });
            changed = true;
        }
        changed
    }

    /// When the rate of `limits` lets the next run begin, if that is what it waits for.
    pub fn held_until(&self, limits: Limits) -> Option<i64> {
        let at = self.starts.next(limits.rate?, limits.now_ms);
        (self.active.len() < limits.places && at > limits.now_ms).then_some(at)
    }

    /// A run that has its place is dispatched later than was to be expected when it got that: it
    /// counts from now, too. True when that changed anything.
    pub fn count_again(&mut self, limits: Limits) -> bool {
        let Some(rate) = limits.rate else { return false };
        self.starts.settle(limits.now_ms);
        self.starts.add(rate, limits.now_ms);
        true
    }

    /// Whether the rate lets a run begin now; then it counts.
    fn begins(&mut self, limits: Limits) -> bool {
        let Some(rate) = limits.rate else { return true };
        self.starts.settle(limits.now_ms);
        let may = self.starts.next(rate, limits.now_ms) <= limits.now_ms;
        if may {
            self.starts.add(rate, limits.now_ms);
        }
        may
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
mod tests;
