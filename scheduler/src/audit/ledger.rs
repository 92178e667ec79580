//! Gathers what was read, by job, by lock and by run, and judges it when all is there.
//!
//! Pure: facts in, in any order, the report out. Each fact is kept as small as judging needs it:
//! some 900 bytes a run with its lock, one attempt and its start: 300 000 runs take 260 MiB.
//! *Invariant: at most [`Bounds::max_runs`] runs are held*; past that the ledger says that it is
//! [full](Ledger::is_full), and its judgement would mean nothing.

use std::collections::HashMap;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use taskparty_common::fire::{FireId, Identity, Skipped};
use taskparty_common::job::MAX_SHARDS;
use taskparty_common::name::Instance;
use taskparty_common::outcome::{SkipReason, TriggerResult};
use uuid::Uuid;

use super::bounds::Bounds;
use super::eras::Revisions;
use super::facts::{
    FiredFact, HistoryRun, Installation, LaggingFact, Leftovers, LockFact, ResultFact, Revision,
    StartFact, WaitingFact, instant_of,
};
use super::held::{
    Began, Head, LockEntry, LockSeen, Numbers, Res, Row, RunFacts, Said, Says, TryRow, one_more,
};
use super::instants::{Account, How};
use super::report::{Findings, Judged, Kind, NoteKind, Place, Report};

/// All that was read.
#[derive(Debug)]
pub struct Ledger {
    pub(super) bounds: Bounds,
    pub(super) installation: Installation,
    pub(super) jobs: Numbers,
    pub(super) instances: Numbers,
    pub(super) revisions: HashMap<u32, Revisions>,
    pub(super) lagging: HashMap<u32, LaggingFact>,
    pub(super) accounts: HashMap<u32, Account>,
    pub(super) locks: HashMap<Arc<str>, LockEntry>,
    pub(super) runs: HashMap<Uuid, RunFacts>,
    pub(super) judged: Judged,
    pub(super) findings: Findings,
    full: bool,
}

impl Ledger {
    /// An empty one.
    pub fn new(bounds: Bounds) -> Self {
        let findings = Findings::new(bounds.most);
        Self {
            bounds,
            installation: Installation::default(),
            jobs: Numbers::default(),
            instances: Numbers::default(),
            revisions: HashMap::new(),
            lagging: HashMap::new(),
            accounts: HashMap::new(),
            locks: HashMap::new(),
            runs: HashMap::new(),
            judged: Judged::default(),
            findings,
            full: false,
        }
    }

    /// Whether there were more runs than it may hold.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// What is known of the installation.
    pub fn installation(&mut self, installation: Installation) {
        self.installation = installation;
    }

    /// Something that was to be read is not what it should be.
    pub fn unreadable(&mut self, where_: &str, why: &str) {
        self.findings.note(NoteKind::Unreadable, Place::default(), format!("{where_}: {why}"));
    }

    /// A revision of a job.
    pub fn revision(&mut self, revision: Revision) {
        let job = self.jobs.of(&revision.job);
        self.revisions.entry(job).or_default().add(revision);
    }

    /// A job has a cursor of its own.
    pub fn lagging(&mut self, fact: LaggingFact) {
        let job = self.jobs.of(&fact.job);
        self.lagging.insert(job, fact);
    }

    /// A run as history has it.
    pub fn history(&mut self, run: HistoryRun) {
        if !self.in_period(run.run) {
            return;
        }
        let HistoryRun { run: id, job, state, lock, result, shards, fired_at, tries } = run;
        let job = self.jobs.of(job.as_str());
        let mut rows = Vec::with_capacity(tries.len());
        for one in tries {
            let mut instance = |instance: &Instance| self.instances.of(instance.as_str());
            let ms = |at: Option<DateTime<Utc>>| at.map(|at| at.timestamp_millis());
            let late = one.late.iter().map(|late| Says {
                outcome: late.outcome,
                delivery: late.delivery,
                instance: instance(&late.instance),
            });
            let late = late.collect();
            let row = TryRow {
                state: one.state,
                outcome: one.outcome,
                delivery: one.delivery,
                instance: one.instance.as_ref().map(instance),
                due: ms(one.due_at),
                dispatched: ms(one.dispatched_at),
                start_by: ms(one.start_by),
                started: ms(one.started_at),
                ended: ms(one.ended_at),
                moved: one.moved,
                late,
                round: one.round,
            };
            rows.push((one.shard, one.attempt, row));
        }
        self.judged.runs += 1;
        self.judged.runs_ended += u64::from(state.is_terminal());
        self.judged.attempts += rows.len() as u64;
        let lock = lock.map(|lock| self.key(&lock));
        let Some(facts) = self.run(id, job) else { return };
        facts.row = Some(Row {
            job,
            state,
            lock,
            result,
            shards,
            fired: fired_at.map(|at| at.timestamp_millis()),
        });
        for (shard, attempt, row) in rows {
            facts.attempt(shard, attempt).row = Some(Box::new(row));
        }
    }

    /// A lock.
    pub fn lock(&mut self, fact: LockFact) {
        let LockFact { key, run, skipped, stored_at } = fact;
        if !self.in_period(run) {
            return;
        }
        self.judged.locks += 1;
        let stored = stored_at.timestamp_millis();
        let seen = LockSeen { run, stored, skipped: skipped.map(Box::new) };
        let key = self.key(&key);
        self.locks.entry(key).or_default().lock = Some(seen);
    }

    /// A fired record.
    pub fn fired(&mut self, fact: FiredFact) {
        if let Some(FireId { job, identity: Identity::Instant(at) }) =
            FireId::from_lock_key(&fact.lock)
        {
            let how = match (&fact.skipped, fact.result) {
                (Some(skipped), TriggerResult::Skipped) => How::Skipped(skipped.reason),
                _ => How::Ran,
            };
            self.account(job.as_str(), at, fact.skipped.as_ref(), how);
        }
        if !self.in_period(fact.run) {
            return;
        }
        self.judged.records += 1;
        let said = Said::of(&fact);
        let lock = self.key(&fact.lock);
        if !self.say(&lock, said, fact.job.as_str()) {
            return;
        }
        let (stored, job) = (fact.stored_at.timestamp_millis(), self.jobs.of(fact.job.as_str()));
        let shards = fact.plan.shards().take(MAX_SHARDS as usize);
        let Some(run) = self.run(fact.run, job) else { return };
        if fact.plan.only.is_none() {
            let head = Head {
                lock,
                result: fact.result,
                total: fact.plan.total,
                limits: fact.limits,
                cancelled: fact
                    .skipped
                    .as_ref()
                    .is_some_and(|skipped| skipped.reason == SkipReason::Cancelled),
                stored,
            };
            match &mut run.head {
                Some(known) if known.result == TriggerResult::Queued => *known = head,
                Some(_) => {}
                none => *none = Some(head),
            }
        }
        if fact.result != TriggerResult::Skipped && !fact.awaits_place {
            for shard in shards {
                run.attempt(shard, fact.plan.attempt).fired.get_or_insert(stored);
            }
        }
    }

    /// Whether this is the first record of its lock, or says what became of a run that waited.
    fn say(&mut self, lock: &Arc<str>, said: Said, job: &str) -> bool {
        let entry = self.locks.entry(lock.clone()).or_default();
        let Some(first) = &entry.fired else {
            entry.fired = Some(said);
            return true;
        };
        let answered = first.awaits_place && !said.awaits_place && first.run == said.run;
        if answered || first.becomes(&said) {
            entry.fired = Some(said);
            return true;
        }
        let place = Place {
            job: Some(job.into()),
            run: Some(first.run),
            lock: Some(lock.to_string()),
            ..Place::default()
        };
        if first.agrees(&said) {
            let found = format!("recorded again as {}", said.result);
            self.findings.note(NoteKind::RecordRepeated, place, found);
        } else {
            let text = |said: &Said| {
                let skipped = said
                    .skipped
                    .as_ref()
                    .map(|skipped| format!(" ({} × {})", skipped.0, skipped.1));
                format!(
                    "{}{} of run {}, attempt {} of {} shards",
                    said.result,
                    skipped.unwrap_or_default(),
                    said.run,
                    said.attempt,
                    said.total
                )
            };
            let expected = format!("one record: {}", text(first));
            self.findings.wrong(
                Kind::RecordConflict,
                place,
                expected,
                format!("also {}", text(&said)),
            );
        }
        false
    }

    /// A handler's result.
    pub fn result(&mut self, fact: ResultFact) {
        if !self.in_period(fact.run) {
            return;
        }
        self.judged.results += 1;
        let job = self.jobs.of(fact.job.as_str());
        let instance = self.instances.of(fact.instance.as_str());
        let Some(run) = self.run(fact.run, job) else { return };
        let says = Says { outcome: fact.outcome, delivery: fact.delivery, instance };
        let result = Res {
            says,
            finished: fact.finished_at.timestamp_millis(),
            stored: fact.stored_at.timestamp_millis(),
        };
        one_more(&mut run.attempt(fact.shard, fact.attempt).results, result);
    }

    /// A handler start. After history, locks and records: what none of those knows is judged as
    /// never dispatched.
    pub fn start(&mut self, fact: StartFact) {
        if !self.in_period(fact.run) {
            return;
        }
        self.judged.starts += 1;
        let job = self.jobs.of("?");
        let instance = self.instances.of(fact.instance.as_str());
        let Some(run) = self.run(fact.run, job) else { return };
        let began = Began { delivery: fact.delivery, instance, at: fact.at.timestamp_millis() };
        one_more(&mut run.attempt(fact.shard, fact.attempt).starts, began);
    }

    /// A message in a dispatch stream.
    pub fn waiting(&mut self, fact: WaitingFact) {
        if !self.in_period(fact.run) {
            return;
        }
        self.judged.waiting += 1;
        if let Some(run) = self.runs.get_mut(&fact.run) {
            run.attempt(fact.shard, fact.attempt).waiting = true;
        }
    }

    /// What should not stay in SQL; of the outbox, only what stays in it.
    pub fn leftovers(&mut self, leftovers: &Leftovers) {
        let shown = leftovers.set_aside.len() as u64;
        for fact in &leftovers.set_aside {
            let found = format!("message {} of {}: {}", fact.seq, fact.subject, fact.reason);
            self.findings.wrong(Kind::SetAside, Place::default(), "nothing set aside", found);
        }
        let more = leftovers.set_aside_total.saturating_sub(shown);
        if more > 0 {
            let found = format!("{more} more messages");
            self.findings.wrong_times(
                more,
                Kind::SetAside,
                Place::default(),
                "nothing set aside",
                found,
            );
        }
        for id in &leftovers.outbox {
            let found = format!("{id} is not");
            let expected = "decisions published within seconds";
            self.findings.wrong(Kind::OutboxStuck, Place::default(), expected, found);
        }
    }

    /// The report. Needs everything to be read.
    pub fn judge(mut self) -> Report {
        self.judge_locks();
        let jobs = self.jobs.sorted();
        self.judge_instants(&jobs);
        self.judge_runs();
        let Self { bounds, judged, findings, .. } = self;
        Report {
            from: bounds.from,
            to: bounds.to,
            now: bounds.now,
            judged,
            violations_total: findings.total,
            by_kind: findings.by_kind,
            violations: findings.violations,
            notes_by_kind: findings.notes_by_kind,
            notes: findings.notes,
        }
    }

    /// Notes that an instant, or a stretch up to it, is accounted for.
    pub(super) fn account(&mut self, job: &str, at: i64, skipped: Option<&Skipped>, how: How) {
        let (from, to) = (self.bounds.from.timestamp_millis(), self.bounds.to.timestamp_millis());
        let first = skipped.map_or(at, |skipped| skipped.first.timestamp_millis());
        if at < from || first >= to {
            return;
        }
        let job = self.jobs.of(job);
        let account = self.accounts.entry(job).or_default();
        match skipped {
            Some(skipped) if first < at => account.stretch(first, at, skipped.count),
            _ => account.single(at, how),
        }
    }

    /// The one copy of a lock's key.
    fn key(&mut self, lock: &str) -> Arc<str> {
        if let Some((key, _)) = self.locks.get_key_value(lock) {
            return key.clone();
        }
        let key: Arc<str> = lock.into();
        self.locks.insert(key.clone(), LockEntry::default());
        key
    }

    fn in_period(&self, run: Uuid) -> bool {
        let at = instant_of(run);
        at >= self.bounds.from.timestamp_millis() && at < self.bounds.to.timestamp_millis()
    }

    fn run(&mut self, id: Uuid, job: u32) -> Option<&mut RunFacts> {
        if self.runs.len() >= self.bounds.max_runs && !self.runs.contains_key(&id) {
            self.full = true;
            return None;
        }
        let facts = self.runs.entry(id);
        Some(facts.or_insert_with(|| RunFacts { job, head: None, row: None, tries: Vec::new() }))
    }
}
