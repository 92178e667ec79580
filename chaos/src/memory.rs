//! The memory of a process over time, and whether it grows without end.
//!
//! Pure. *Invariant: what is judged is growth between two times of a run, never how much there is.*

use std::time::Duration;

use taskparty_nats::lock::SHORTEST;

/// How much a process may grow while it is judged: a share of what it held, and so many KiB.
const SHARE: u64 = 10;
const KIB: u64 = 8 * 1024;

/// What the log writer's connection to SQLite keeps of the file, in KiB, with what that costs: at most
/// so much more than it held at its start is no growth.
const CACHE: u64 = 36 * 1024;

/// What a nats-server holds of a lock is gone so long after it was taken: it grows by a step more when
/// it begins to remove them, and this is after that.
const LOCKED: Duration = SHORTEST.saturating_add(Duration::from_secs(120));

/// For how long a nats-server must have run on with as many locks as it will ever hold.
const STEADY: Duration = Duration::from_secs(120);

/// Where judging begins and ends, in percent of the run.
const FROM: usize = 33;
const TO: usize = 97;

/// Whose memory it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Whose {
    /// TaskParty's.
    Ours,
    /// TaskParty's too, and it fills a cache of the history first.
    LogWriter,
    /// A nats-server's, which holds each lock for as long as it lives.
    Nats,
}

/// The memory of a process over time.
#[derive(Debug, Clone)]
pub struct Memory {
    /// Which process.
    pub name: String,
    /// What it is.
    pub whose: Whose,
    /// KiB, at equal distances from the begin of the run to its end.
    pub samples: Vec<u64>,
}

impl Memory {
    /// Of a process that has just been started.
    pub fn new(name: impl Into<String>, whose: Whose) -> Self {
        Self { name: name.into(), whose, samples: Vec::new() }
    }

    /// KiB at a share of the time, the median of some samples around it.
    pub fn at(&self, percent: usize) -> u64 {
        let middle = self.samples.len() * percent / 100;
        let width = self.samples.len() / 20 + 1;
        let from = middle.saturating_sub(width);
        let mut around: Vec<u64> =
            self.samples.iter().skip(from).take(2 * width).copied().collect();
        around.sort_unstable();
        around.get(around.len() / 2).copied().unwrap_or_default()
    }

    /// How much more it is at the end than after the first third, in KiB.
    pub fn growth(&self) -> i64 {
        self.at(TO).cast_signed() - self.at(FROM).cast_signed()
    }

    /// What is wrong with it after a run of `length`, as a sentence.
    pub fn verdict(&self, length: Duration) -> Option<String> {
        let from = self.judged_from(length)?;
        let (before, after) = (self.at(from), self.at(TO));
        let first = self.samples.first().copied().unwrap_or_default();
        let cache = match self.whose {
            Whose::LogWriter => (first + CACHE).saturating_sub(before),
            Whose::Ours | Whose::Nats => 0,
        };
        let bound = before + before * SHARE / 100 + KIB + cache;
        (after > bound).then(|| {
            let mib = |kib: u64| kib as f64 / 1024.0;
            format!(
                "{} grows: {:.1} MiB after {from} % of the run, {:.1} MiB after {TO} %, more than \
                 {:.1}",
                self.name,
                mib(before),
                mib(after),
                mib(bound)
            )
        })
    }

    /// From which percent of a run of `length` on it is judged; none: it is not.
    pub fn judged_from(&self, length: Duration) -> Option<usize> {
        match self.whose {
            Whose::Ours | Whose::LogWriter => Some(FROM),
            Whose::Nats if length < LOCKED + STEADY => None,
            // Rounded up: no later than all locks are there that ever will be.
            Whose::Nats => {
                let percent = LOCKED.as_secs() * 100 / length.as_secs() + 1;
                usize::try_from(percent).ok().map(|percent| percent.max(FROM))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024;
    const SHORT: Duration = Duration::from_secs(200);
    const LONG: Duration = Duration::from_secs(1_500);

    /// A process whose memory in MiB after so many percent is what `mib` says.
    fn memory(whose: Whose, mib: impl Fn(u64) -> u64) -> Memory {
        let samples = (0..100).map(|percent| mib(percent) * MIB).collect();
        Memory { samples, ..Memory::new("it", whose) }
    }

    #[test]
    fn what_fills_its_caches_first_and_then_stays_is_well() {
        let cache = memory(Whose::Ours, |percent| 30 + percent.min(30));
        assert_eq!((cache.verdict(SHORT), cache.growth()), (None, 0));
        let wobbles = memory(Whose::Ours, |percent| 30 + percent % 7);
        assert_eq!(wobbles.verdict(SHORT), None);
    }

    #[test]
    fn what_grows_on_and_on_is_told() {
        let told = memory(Whose::Ours, |percent| 30 + percent / 3).verdict(SHORT).unwrap();
        assert!(told.starts_with("it grows: 41.0 MiB after 33 %"), "{told}");
    }

    #[test]
    fn a_log_writer_may_fill_its_cache_late_and_no_more_than_that() {
        let late = memory(Whose::LogWriter, |percent| 30 + percent.saturating_sub(40).min(35));
        assert_eq!(late.verdict(SHORT), None);
        let on = memory(Whose::LogWriter, |percent| 30 + percent);
        assert!(on.verdict(SHORT).is_some());
    }

    #[test]
    fn a_nats_server_may_grow_until_as_many_locks_end_as_are_taken_and_no_longer() {
        let grows = memory(Whose::Nats, |percent| 100 + 2 * percent);
        assert_eq!(grows.verdict(SHORT), None);
        assert!(grows.verdict(LONG).is_some());
        // 720 of 1500 s are 48 %.
        let stays = memory(Whose::Nats, |percent| 100 + 2 * percent.min(48));
        assert_eq!(stays.verdict(LONG), None);
    }
}
