//! What the audit says.
//!
//! The words of [`Kind`] and [`NoteKind`] are promises: scripts select by them.

use std::collections::BTreeMap;
use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! kinds {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Every kind.
            pub const ALL: &[$name] = &[$($name::$variant,)*];

            /// Its word.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

kinds! {
    /// What is wrong.
    Kind {
        /// A nominal instant has neither a run nor a record that it was left out.
        InstantMissing = "instant_missing",
        /// A nominal instant is accounted for more than once.
        InstantTwice = "instant_twice",
        /// Something was fired for an instant that the job does not have.
        InstantUnexpected = "instant_unexpected",
        /// A lock has no fired record: its fire is half done.
        LockUnrecorded = "lock_unrecorded",
        /// A fired record's lock should still be there and is not.
        LockMissing = "lock_missing",
        /// Two records, or a record and its lock, say different things of one fire.
        RecordConflict = "record_conflict",
        /// History knows a fire that has no fired record.
        RecordMissing = "record_missing",
        /// A run that was fired is not in history.
        RunMissing = "run_missing",
        /// An attempt that was fired, or its result, is not in history.
        AttemptMissing = "attempt_missing",
        /// A run goes on past all its deadlines.
        RunStuck = "run_stuck",
        /// History says something else of a run than its records, or than its attempts.
        StateDisagrees = "state_disagrees",
        /// An attempt ended otherwise than any result says.
        OutcomeDisagrees = "outcome_disagrees",
        /// The attempts of a shard are not numbered 1, 2, 3.
        AttemptHole = "attempt_hole",
        /// There is an attempt after one that succeeded.
        AttemptAfterSuccess = "attempt_after_success",
        /// There are more attempts than the job allows.
        AttemptBeyondRetries = "attempt_beyond_retries",
        /// One delivery of an attempt was started more than once.
        StartTwice = "start_twice",
        /// A handler was started for something that was never dispatched.
        StartUndispatched = "start_undispatched",
        /// An attempt succeeded and no executor wrote that it had started it.
        SuccessWithoutStart = "success_without_start",
        /// A handler was started after another attempt of its shard had succeeded.
        StartAfterSuccess = "start_after_success",
        /// The dispatch of an attempt that has ended is still in its stream.
        DispatchLeft = "dispatch_left",
        /// A message could not be taken into history.
        SetAside = "set_aside",
        /// A decision was not published in time.
        OutboxStuck = "outbox_stuck",
    }
}

kinds! {
    /// What is worth knowing and not wrong.
    NoteKind {
        /// One fire was recorded again, with the same content.
        RecordRepeated = "record_repeated",
        /// An attempt that succeeded was started by more than one delivery.
        Redelivered = "redelivered",
        /// One delivery was started on both sides of a time at which NATS forgot what was delivered,
        /// or an attempt came again whose ack it forgot.
        DeliveryForgotten = "delivery_forgotten",
        /// Results came after the end of their attempt, and changed nothing.
        LateResult = "late_result",
        /// A result that was stored later than another one of its attempt counts.
        LaterResultWon = "later_result_won",
        /// Instants just before an edit, which nobody had fired when it came: an edit begins a new
        /// past.
        BeforeEdit = "before_edit",
        /// A job lags and catches up: its instants since its cursor are left open.
        Lagging = "lagging",
        /// Revisions of a job are no longer there: only what is known was judged.
        HistoryCut = "history_cut",
        /// A definition cannot be read: its instants were not judged.
        DefinitionUnreadable = "definition_unreadable",
        /// The records of a part of the period have left their stream: that part was not judged.
        RecordsGone = "records_gone",
        /// Something that is to be read is no such thing.
        Unreadable = "unreadable",
        /// Nothing has ever fired here.
        NothingFired = "nothing_fired",
    }
}

/// Where something was found; what does not apply is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run: Option<Uuid>,
    /// Which shard.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<u32>,
    /// Which attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// The key of the lock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lock: Option<String>,
    /// The nominal instant; of several the first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instant: Option<DateTime<Utc>>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Violation {
    /// What.
    pub kind: Kind,
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// How many: above 1 for instants in a row.
    pub count: u64,
    /// What should be there.
    pub expected: String,
    /// What is there.
    pub found: String,
}

/// Something worth knowing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Note {
    /// What.
    pub kind: NoteKind,
    /// Where.
    #[serde(flatten)]
    pub place: Place,
    /// What was found.
    pub found: String,
}

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Judged {
    /// Jobs with a definition.
    pub jobs: u64,
    /// Nominal instants.
    pub instants: u64,
    /// Instants that may or may not have been fired: around an edit, before the installation
    /// began, too young.
    pub instants_open: u64,
    /// Locks.
    pub locks: u64,
    /// Fired records.
    pub records: u64,
    /// Results.
    pub results: u64,
    /// Runs in history.
    pub runs: u64,
    /// Of those, at their end.
    pub runs_ended: u64,
    /// Attempts in history.
    pub attempts: u64,
    /// Handler starts that executors wrote.
    pub starts: u64,
    /// Messages in the dispatch streams.
    pub waiting: u64,
}

/// The whole report.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The period's begin, inclusive.
    pub from: DateTime<Utc>,
    /// The period's end, exclusive.
    pub to: DateTime<Utc>,
    /// When the audit began.
    pub now: DateTime<Utc>,
    /// What was looked at.
    pub judged: Judged,
    /// How many violations there are.
    pub violations_total: u64,
    /// How many of each kind.
    pub by_kind: BTreeMap<Kind, u64>,
    /// The first of them.
    pub violations: Vec<Violation>,
    /// How many notes of each kind.
    pub notes_by_kind: BTreeMap<NoteKind, u64>,
    /// The first of them.
    pub notes: Vec<Note>,
}

impl Report {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.violations_total == 0
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}: expected {}, found {}", self.kind, self.place, self.expected, self.found)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instant =
            self.instant.map(|at| at.to_rfc3339_opts(chrono::SecondsFormat::Millis, true));
        let number = |number: Option<u32>| number.map(|number| number.to_string());
        for (name, value) in [
            ("job", self.job.clone()),
            ("run", self.run.map(|run| run.to_string())),
            ("shard", number(self.shard)),
            ("attempt", number(self.attempt)),
            ("lock", self.lock.clone()),
            ("instant", instant),
        ] {
            if let Some(value) = value {
                write!(f, " {name} {value}")?;
            }
        }
        Ok(())
    }
}

/// What was found so far: counts without a bound, words within one.
#[derive(Debug)]
pub(super) struct Findings {
    most: usize,
    pub(super) total: u64,
    pub(super) by_kind: BTreeMap<Kind, u64>,
    pub(super) violations: Vec<Violation>,
    pub(super) notes_by_kind: BTreeMap<NoteKind, u64>,
    pub(super) notes: Vec<Note>,
}

impl Findings {
    /// Keeps the words of `most` violations, and of as many notes.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            total: 0,
            by_kind: BTreeMap::new(),
            violations: Vec::new(),
            notes_by_kind: BTreeMap::new(),
            notes: Vec::new(),
        }
    }

    pub(super) fn wrong(
        &mut self,
        kind: Kind,
        place: Place,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) {
        self.wrong_times(1, kind, place, expected, found);
    }

    /// As [`Findings::wrong`], for `count` instants in a row.
    pub(super) fn wrong_times(
        &mut self,
        count: u64,
        kind: Kind,
        place: Place,
        expected: impl Into<String>,
        found: impl Into<String>,
    ) {
        self.total += count;
        let of_kind = self.by_kind.entry(kind).or_default();
        // Some of each kind are shown, however many there are of another.
        let room = self.violations.len() < self.most || *of_kind < 10;
        *of_kind += count;
        if room {
            let (expected, found) = (expected.into(), found.into());
            self.violations.push(Violation { kind, place, count, expected, found });
        }
    }

    pub(super) fn note(&mut self, kind: NoteKind, place: Place, found: impl Into<String>) {
        let of_kind = self.notes_by_kind.entry(kind).or_default();
        let room = self.notes.len() < self.most || *of_kind < 10;
        *of_kind += 1;
        if room {
            self.notes.push(Note { kind, place, found: found.into() });
        }
    }
}
