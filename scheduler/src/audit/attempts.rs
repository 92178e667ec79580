//! Check 4: each attempt has one outcome, which a result says or the sweep found; attempts are
//! numbered without holes, and none is made after a success or beyond what the job allows.

use taskparty_common::outcome::Outcome;
use uuid::Uuid;

use super::held::{Res, RunFacts, Says, Try, TryRow};
use super::ledger::Ledger;
use super::report::{Kind, NoteKind};

/// The most late results that history keeps of an attempt.
const MAX_LATE: usize = 16;

impl Ledger {
    pub(super) fn judge_attempts(&mut self, id: Uuid, run: &RunFacts) {
        for one in &run.tries {
            match (&one.row, &run.row) {
                (Some(row), _) => self.judge_outcome(id, run, one, row),
                (None, Some(_)) => self.judge_absent(id, run, one),
                // The run itself is missing, and said so.
                (None, None) => {}
            }
        }
        let mut rest = run.tries.as_slice();
        while let Some(first) = rest.first() {
            let (of_shard, others) =
                rest.split_at(rest.partition_point(|one| one.shard == first.shard));
            self.judge_numbers(id, run, of_shard);
            rest = others;
        }
    }

    /// History does not know the attempt.
    fn judge_absent(&mut self, id: Uuid, run: &RunFacts, one: &Try) {
        let said = one.fired.into_iter().chain(one.results.iter().map(|result| result.stored));
        if said.min().is_some_and(|stored| stored < self.bounds.settled_ms()) {
            let expected = "the attempt in history";
            let found = match one.results.first() {
                Some(result) => format!("only its result, {}", result.says.outcome),
                None => "only its fired record".into(),
            };
            let place = self.of_try(id, run, one);
            self.findings.wrong(Kind::AttemptMissing, place, expected, found);
        }
    }

    fn judge_outcome(&mut self, id: Uuid, run: &RunFacts, one: &Try, row: &TryRow) {
        let settled = self.bounds.settled_ms();
        if let (Some(dispatched), None) = (row.dispatched, one.fired)
            && (run.head.is_some() || one.attempt > 1)
            && dispatched < settled
            && self.is_kept(dispatched)
        {
            let found = "none, and an attempt in history that was dispatched";
            let place = self.of_try(id, run, one);
            self.findings.wrong(Kind::RecordMissing, place, "a fired record of it", found);
        }
        let ended = row.outcome.map(|outcome| Says {
            outcome,
            delivery: row.delivery.unwrap_or(0),
            instance: row.instance.unwrap_or(u32::MAX),
        });
        for (index, result) in one.results.iter().enumerate() {
            let again = one.results[..index].iter().any(|before| before.says == result.says);
            let known = ended == Some(result.says)
                || row.late.contains(&result.says)
                || row.late.len() >= MAX_LATE;
            if !again && !known && result.stored < settled {
                let expected = format!("its result, {}", self.says(result));
                let found = row.outcome.map_or_else(
                    || format!("{}, and not that", row.state),
                    |outcome| format!("{outcome}, and not that among the late ones"),
                );
                let place = self.of_try(id, run, one);
                self.findings.wrong(Kind::AttemptMissing, place, expected, found);
            }
        }
        if let Some(ended) = ended {
            self.judge_end(id, run, one, row, ended);
        }
    }

    fn judge_end(&mut self, id: Uuid, run: &RunFacts, one: &Try, row: &TryRow, ended: Says) {
        let place = self.of_try(id, run, one);
        let supported = one.results.iter().any(|result| result.says == ended);
        // Who never started or never reported is ended by the sweep, or by its own fired record; so
        // is what was cancelled before it was tried, or whose executor did not answer.
        let by_itself =
            matches!(ended.outcome, Outcome::Lost | Outcome::NotStarted | Outcome::Cancelled);
        let kept = row.ended.is_none_or(|at| self.is_kept(at));
        if !supported && !by_itself && kept {
            let said: Vec<String> = one.results.iter().map(|result| self.says(result)).collect();
            let expected = match said.is_empty() {
                true => "no end: there is no result".into(),
                false => format!("as a result says: {}", said.join("; ")),
            };
            let found = ended.outcome.as_str();
            return self.findings.wrong(Kind::OutcomeDisagrees, place, expected, found);
        }
        if !row.late.is_empty() {
            let found = format!("{} stands; {} came later", ended.outcome, row.late.len());
            self.findings.note(NoteKind::LateResult, place.clone(), found);
        }
        if let Some(first) = one.results.first()
            && supported
            && first.says != ended
        {
            let found = format!("{} stands; stored first was {}", ended.outcome, self.says(first));
            self.findings.note(NoteKind::LaterResultWon, place, found);
        }
    }

    fn says(&self, result: &Res) -> String {
        let Says { outcome, delivery, instance } = result.says;
        format!("{outcome} at delivery {delivery} by {}", self.instances.name(instance))
    }

    /// The attempts of one shard, in order.
    fn judge_numbers(&mut self, id: Uuid, run: &RunFacts, tries: &[Try]) {
        let made: Vec<&Try> = tries
            .iter()
            .filter(|one| one.row.is_some() || one.fired.is_some() || !one.results.is_empty())
            .collect();
        let numbers: Vec<String> = made.iter().map(|one| one.attempt.to_string()).collect();
        let hole = made.iter().zip(1_u32..).find(|(one, number)| one.attempt != *number);
        if let Some((one, number)) = hole {
            let found = format!("attempts {}", numbers.join(", "));
            let place = self.of_try(id, run, one);
            self.findings.wrong(Kind::AttemptHole, place, format!("attempt {number}"), found);
        }
        // A retry by hand begins a new round, and may follow anything.
        let after =
            made.windows(2).find(|pair| succeeded(pair[0]) && round(pair[0]) == round(pair[1]));
        if let Some(after) = after.map(|pair| pair[1]) {
            let found = format!("attempts {}", numbers.join(", "));
            let place = self.of_try(id, run, after);
            let expected = "none after the one that succeeded";
            self.findings.wrong(Kind::AttemptAfterSuccess, place, expected, found);
        }
        if let Some(limits) = run.head.as_ref().and_then(|head| head.limits)
            && let Some(last) = made.last()
            && tries_in(&made, round(last)) > limits.retries.saturating_add(1)
        {
            let expected = format!("at most {}", limits.retries.saturating_add(1));
            let found = format!("attempts {}", numbers.join(", "));
            let place = self.of_try(id, run, last);
            self.findings.wrong(Kind::AttemptBeyondRetries, place, expected, found);
        }
    }
}

/// How many times the run had been retried by hand when it was made.
fn round(one: &Try) -> u32 {
    one.row.as_ref().map_or(0, |row| row.round)
}

/// How many of a round there are, but for those that went to another executor, which is no retry.
fn tries_in(made: &[&Try], round_: u32) -> u32 {
    let last = made.last().map_or(0, |one| one.attempt);
    let before = made.iter().filter(|one| round(one) < round_).map(|one| one.attempt).max();
    let has_moved = |one: &&&Try| one.row.as_ref().is_some_and(|row| row.moved);
    let moved = made.iter().filter(|one| round(one) == round_).filter(has_moved).count();
    let moved = u32::try_from(moved).unwrap_or(u32::MAX);
    last.saturating_sub(before.unwrap_or(0)).saturating_sub(moved)
}

/// Whether an attempt succeeded: by history, or where history does not know it by its results.
pub(super) fn succeeded(one: &Try) -> bool {
    match &one.row {
        Some(row) => row.outcome == Some(Outcome::Succeeded),
        None => one.results.first().is_some_and(|first| first.says.outcome == Outcome::Succeeded),
    }
}
