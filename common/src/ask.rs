//! What somebody asks of a run that is there: that it stops, or is tried again.
//!
//! It goes to `taskparty.asked.<app>`, among what happened, so that the log writer takes it in
//! order with all else. *Invariant: whatever is asked can be asked again*: it names the round of the
//! run that it is about, and what is done is not done twice.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::name::{App, JobId};

/// Something that is asked of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The format: 1.
    pub v: u32,
    /// The run.
    pub run: Uuid,
    /// Its job.
    pub job: JobId,
    /// The job's app, as whoever asks knows it.
    pub app: App,
    /// What.
    #[serde(flatten)]
    pub ask: Ask,
    /// Who, for people; what replaces a run says which run it is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub by: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum Ask {
    /// That it stops, wherever it is.
    Cancel {
        /// How many times the run had been retried by hand, as whoever asks has seen it; none:
        /// however many times it had been when this was asked.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        round: Option<u32>,
    },
    /// That it is tried again, now that it has ended.
    Retry {
        /// Which of its shards.
        shards: Which,
        /// How many times the run had been retried by hand, as whoever asks has seen it: what
        /// comes twice, or too late, changes nothing.
        round: u32,
    },
}

/// Which shards are tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// Those that did not succeed.
    Failed,
    /// All of them.
    All,
}

impl Asked {
    /// The id by which the stream knows a repetition.
    pub fn message_id(&self) -> String {
        match self.ask {
            Ask::Cancel { round: None } => format!("{}.cancel", self.run),
            Ask::Cancel { round: Some(round) } => format!("{}.cancel.{round}", self.run),
            Ask::Retry { round, .. } => format!("{}.retry.{round}", self.run),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_is_read_back() {
        for (ask, id) in [
            (Ask::Cancel { round: None }, "00000000-0000-0000-0000-000000000000.cancel"),
            (Ask::Cancel { round: Some(1) }, "00000000-0000-0000-0000-000000000000.cancel.1"),
            (
                Ask::Retry { shards: Which::All, round: 2 },
                "00000000-0000-0000-0000-000000000000.retry.2",
            ),
        ] {
            let asked = Asked {
                v: 1,
                run: Uuid::nil(),
                job: JobId::new("a").unwrap(),
                app: App::new("b").unwrap(),
                ask,
                by: "alice".into(),
                at: DateTime::UNIX_EPOCH,
            };
            let text = serde_json::to_string(&asked).unwrap();
            assert_eq!(serde_json::from_str::<Asked>(&text).unwrap(), asked, "{text}");
            assert_eq!(asked.message_id(), id);
        }
    }
}
