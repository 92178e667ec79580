//! What became of things: results of triggers, outcomes of attempts, states of runs.
//!
//! The words are promises (contract, section 4). The state of a run is *derived* from its shards
//! by [`RunState::of_shards`]; nothing else decides it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Makes an enum whose variants have one spelling everywhere: JSON, SQL, command line.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$vdoc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Every value with its word.
            pub const ALL: &[(&str, $name)] = &[$(($word, $name::$variant),)*];

            /// The word for this value.
            pub fn as_str(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// The value that `word` stands for.
            pub fn from_word(word: &str) -> Option<Self> {
                match word { $($word => Some($name::$variant),)* _ => None }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// Why a run was to happen.
    Trigger {
        /// Its schedule.
        Schedule = "schedule",
        /// Somebody asked for it.
        Manual = "manual",
        /// Somebody asked for it, for later.
        Delayed = "delayed",
        /// An attempt failed.
        Retry = "retry",
        /// Another job succeeded.
        Dependency = "dependency",
        /// Somebody asked for instants of the past.
        Backfill = "backfill",
        /// Its schedule, too late, by the misfire policy.
        Misfire = "misfire",
    }
}

words! {
    /// The trigger's result: what became of a fire before any handler ran.
    TriggerResult {
        /// The work is in the stream.
        Dispatched = "dispatched",
        /// It waits: for a place, or for an executor.
        Queued = "queued",
        /// It was left out, for a reason.
        Skipped = "skipped",
        /// The server would not store it, or the job is gone.
        Refused = "refused",
        /// Nobody could run it, and it may not wait.
        NoExecutor = "no_executor",
        /// It was found half done after its time.
        Expired = "expired",
    }
}

words! {
    /// Why a fire was skipped.
    SkipReason {
        /// The job was still running.
        Overlap = "overlap",
        /// Too many were waiting.
        QueueFull = "queue_full",
        /// It was missed, and the policy does not run it.
        Misfire = "misfire",
        /// Its local time did not exist.
        Gap = "gap",
        /// The job was paused.
        Paused = "paused",
        /// The job was deleted.
        Deleted = "deleted",
        /// Somebody cancelled it before it was dispatched.
        Cancelled = "cancelled",
    }
}

words! {
    /// How an attempt ended.
    Outcome {
        /// The handler returned Ok.
        Succeeded = "succeeded",
        /// The handler returned an error or panicked, or could not be called.
        Failed = "failed",
        /// The handler took longer than its timeout.
        TimedOut = "timed_out",
        /// Somebody asked for it to stop.
        Cancelled = "cancelled",
        /// The executor died and nobody else may try.
        Lost = "lost",
        /// No handler ever started.
        NotStarted = "not_started",
    }
}

words! {
    /// What exactly went wrong in an attempt.
    Code {
        /// The handler returned an error.
        HandlerError = "handler_error",
        /// The handler panicked.
        HandlerPanic = "handler_panic",
        /// The executor does not know the handler.
        UnknownHandler = "unknown_handler",
        /// The handler could not read its params.
        BadParams = "bad_params",
        /// The attempt took longer than `timeout`.
        Timeout = "timeout",
        /// Somebody asked for it to stop.
        Cancelled = "cancelled",
        /// The lease could not be kept.
        LeaseLost = "lease_lost",
        /// The executor went away.
        ExecutorLost = "executor_lost",
        /// It did not start before its start deadline.
        StartDeadline = "start_deadline",
        /// No executor of the handler was there in time.
        NoExecutor = "no_executor",
        /// What the handler returned is too large to be kept at all.
        OutputTooLarge = "output_too_large",
    }
}

words! {
    /// Where a run is.
    RunState {
        /// A delayed trigger waits for its time.
        Scheduled = "scheduled",
        /// It holds a place in the queue, or waits for an executor.
        Waiting = "waiting",
        /// In the stream, not started.
        Dispatched = "dispatched",
        /// An executor has it.
        Running = "running",
        /// An attempt failed, the next has its time.
        Retrying = "retrying",
        /// Every shard succeeded.
        Succeeded = "succeeded",
        /// A shard failed for good.
        Failed = "failed",
        /// A shard took too long, for good.
        TimedOut = "timed_out",
        /// It was stopped on request.
        Cancelled = "cancelled",
        /// Its executor died and redeliveries are used up.
        Lost = "lost",
        /// It never started: start deadline, no executor, or refused.
        NotStarted = "not_started",
        /// It was left out, for a reason.
        Skipped = "skipped",
    }
}

impl RunState {
    /// Whether this is an end, never left again.
    pub fn is_terminal(self) -> bool {
        self >= RunState::Succeeded
    }

    /// Whether this is an end that a retry policy or an alert cares about.
    pub fn is_failure(self) -> bool {
        matches!(
            self,
            RunState::Failed | RunState::TimedOut | RunState::Lost | RunState::NotStarted
        )
    }

    /// The state of a run whose shards are in `shards`: while one is not at its end, the liveliest
    /// of those; then the worst of all. A run of no shards is `not_started`.
    pub fn of_shards(shards: impl IntoIterator<Item = RunState>) -> RunState {
        let mut open: Option<RunState> = None;
        let mut worst: Option<RunState> = None;
        for state in shards {
            if state.is_terminal() {
                worst =
                    Some(worst.map_or(state, |w| if rank(state) > rank(w) { state } else { w }));
            } else {
                open = Some(open.map_or(state, |o| if rank(state) > rank(o) { state } else { o }));
            }
        }
        open.or(worst).unwrap_or(RunState::NotStarted)
    }
}

/// Among open states the liveliest is highest, among ends the worst.
fn rank(state: RunState) -> u8 {
    match state {
        RunState::Scheduled | RunState::Skipped => 0,
        RunState::Waiting | RunState::Succeeded => 1,
        RunState::Retrying | RunState::Cancelled => 2,
        RunState::Dispatched | RunState::NotStarted => 3,
        RunState::Running | RunState::Lost => 4,
        RunState::TimedOut => 5,
        RunState::Failed => 6,
    }
}

impl Outcome {
    /// The state that a shard is in when its last attempt ended so.
    pub fn state(self) -> RunState {
        match self {
            Outcome::Succeeded => RunState::Succeeded,
            Outcome::Failed => RunState::Failed,
            Outcome::TimedOut => RunState::TimedOut,
            Outcome::Cancelled => RunState::Cancelled,
            Outcome::Lost => RunState::Lost,
            Outcome::NotStarted => RunState::NotStarted,
        }
    }

    /// Whether a retry may follow.
    pub fn may_retry(self) -> bool {
        !matches!(self, Outcome::Succeeded | Outcome::Cancelled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_as_lively_as_its_liveliest_shard_and_ends_as_its_worst() {
        use RunState::*;
        for (shards, state) in [
            (vec![Succeeded, Succeeded], Succeeded),
            (vec![Succeeded, Running, Dispatched], Running),
            (vec![Failed, Retrying], Retrying),
            (vec![Succeeded, Lost, Failed], Failed),
            (vec![Succeeded, Cancelled], Cancelled),
            (vec![NotStarted, Succeeded], NotStarted),
            (vec![], NotStarted),
        ] {
            assert_eq!(RunState::of_shards(shards.clone()), state, "{shards:?}");
        }
    }

    #[test]
    fn words_are_read_back() {
        for (word, state) in RunState::ALL {
            assert_eq!(RunState::from_word(word), Some(*state));
            assert_eq!(serde_json::to_string(state).unwrap(), format!("\"{word}\""));
        }
        for state in [RunState::Scheduled, RunState::Retrying] {
            assert!(!state.is_terminal());
        }
        for state in [RunState::Succeeded, RunState::Skipped, RunState::NotStarted] {
            assert!(state.is_terminal());
        }
    }
}
