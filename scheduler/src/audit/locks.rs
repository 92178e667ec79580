//! Check 2: each lock has its fired record, and each young record its lock.

use taskparty_common::fire::{FireId, Identity};
use taskparty_nats::lock::SHORTEST;

use super::held::{LockEntry, length, ms, shown};
use super::instants::How;
use super::ledger::Ledger;
use super::report::{Kind, Place};

/// How much sooner than promised a lock may be gone: whole seconds, and two clocks.
const CLOCKS_MS: i64 = 30_000;

impl Ledger {
    pub(super) fn judge_locks(&mut self) {
        let locks = std::mem::take(&mut self.locks);
        let mut keys: Vec<_> = locks.keys().cloned().collect();
        keys.sort_unstable();
        for key in keys {
            if let Some(entry) = locks.get(&key) {
                self.judge_lock(&key, entry);
            }
        }
    }

    fn judge_lock(&mut self, key: &str, entry: &LockEntry) {
        let id = FireId::from_lock_key(key);
        let job = id.as_ref().map(|id| id.job.to_string());
        let run = entry.lock.as_ref().map(|lock| lock.run).or(entry.fired.as_ref().map(|f| f.run));
        let place = Place { job: job.clone(), run, lock: Some(key.into()), ..Place::default() };
        match (&entry.lock, &entry.fired) {
            (Some(lock), Some(fired)) if lock.run != fired.run => {
                let found = format!("its record says {}", fired.run);
                let expected = format!("one run, {}", lock.run);
                self.findings.wrong(Kind::RecordConflict, place, expected, found);
            }
            (Some(_), Some(_)) => {}
            (Some(lock), None) => {
                // What is half done is not lost: its instant is not missing as well.
                if let Some(FireId { job, identity: Identity::Instant(at) }) = &id {
                    self.account(job.as_str(), *at, lock.skipped.as_deref(), How::Locked);
                }
                if lock.stored < self.bounds.settled_ms() {
                    let age = length(self.bounds.now.timestamp_millis() - lock.stored);
                    let expected = "a fired record within seconds";
                    let found =
                        format!("none {age} after the lock was taken ({})", shown(lock.stored));
                    self.findings.wrong(Kind::LockUnrecorded, place, expected, found);
                }
            }
            (None, Some(fired)) => {
                let young = self.bounds.now.timestamp_millis() - ms(SHORTEST) + CLOCKS_MS;
                if fired.fire_time > young && !fired.is_of_a_deleted_job() {
                    let expected = format!("a lock, which lives at least {}", length(ms(SHORTEST)));
                    let found = format!("none, and a record: {}", fired.result);
                    self.findings.wrong(Kind::LockMissing, place, expected, found);
                }
            }
            (None, None) => {}
        }
    }
}
