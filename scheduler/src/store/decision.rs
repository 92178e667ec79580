//! What follows from what happened, as plain values: kept with it, published afterwards.

use chrono::{DateTime, Utc};
use taskparty_common::name::JobId;
use taskparty_common::outcome::{Code, RunState};
use uuid::Uuid;

/// An alert to keep and to publish.
#[derive(Debug, Clone, PartialEq)]
pub struct AlertPart {
    /// Its id: the same alert decided twice has the same.
    pub id: String,
    /// What happened: `failed`, `paused`, `circle`, `set_aside`.
    pub kind: &'static str,
    /// The job; none when it is about no job.
    pub job: Option<JobId>,
    /// The run.
    pub run: Option<Uuid>,
    /// The run's final state.
    pub state: Option<RunState>,
    /// What exactly went wrong.
    pub code: Option<Code>,
    /// A sentence for people.
    pub message: String,
    /// How many attempts were made.
    pub attempts: u32,
    /// The nominal instant of the run.
    pub fire_time: Option<DateTime<Utc>>,
    /// When it was decided.
    pub at: DateTime<Utc>,
}

/// What follows from a transition, to be published after its commit.
#[derive(Debug, Clone, PartialEq)]
pub enum Decision {
    /// Try the shard again at `due`.
    Retry {
        /// The run.
        run: Uuid,
        /// Which shard.
        shard: u32,
        /// The attempt to make.
        attempt: u32,
        /// When.
        due: DateTime<Utc>,
    },
    /// Tell people.
    Alert(AlertPart),
    /// Try the shard again as soon as the run, which had ended, has a place anew.
    Turn {
        /// The run.
        run: Uuid,
        /// Which shard.
        shard: u32,
        /// The attempt to make.
        attempt: u32,
        /// When that was decided.
        due: DateTime<Utc>,
    },
    /// Give back the run's place.
    Release {
        /// The run that ended.
        run: Uuid,
        /// How many times it had been retried by hand.
        round: u32,
    },
    /// Start the next run of a fixed delay at `due`.
    Next {
        /// The run that ended.
        run: Uuid,
        /// When the next is due.
        due: DateTime<Utc>,
    },
    /// Trigger a job that follows on the success of this one.
    Then {
        /// The run that succeeded.
        run: Uuid,
        /// The job that follows.
        job: JobId,
    },
    /// Pause the job, if this was the last of too many failed runs in a row.
    Strike {
        /// The run that failed.
        run: Uuid,
    },
    /// Trigger a planned run whose trigger is gone.
    Again {
        /// The run.
        run: Uuid,
        /// When.
        due: DateTime<Utc>,
    },
}
