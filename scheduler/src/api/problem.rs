//! What can go wrong with a request, as a document with a stable code.
//!
//! The same document is the body of an error answer of the service and what the command line
//! writes to stderr with `-o json`. Scripts go by `code`; the words are for people.

use std::fmt;

use serde::{Deserialize, Serialize};
use taskparty_common::job::{FieldError, Invalid};

/// The stable code of a [`Problem`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The input is wrong.
    Invalid,
    /// There is no such thing.
    NotFound,
    /// Somebody else changed it meanwhile.
    Conflict,
    /// A promised part that this version does not have.
    NotYet,
    /// The input or the answer is larger than allowed.
    TooLarge,
    /// Something that is needed does not answer now: try again.
    Unavailable,
    /// NATS or TaskParty refuses it to this user.
    Forbidden,
    /// A fault of TaskParty itself.
    Internal,
}

impl Code {
    /// The word for it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::NotYet => "not_yet",
            Self::TooLarge => "too_large",
            Self::Unavailable => "unavailable",
            Self::Forbidden => "forbidden",
            Self::Internal => "internal",
        }
    }

    /// The number in the service's error header, as HTTP has it.
    pub fn status(self) -> u16 {
        match self {
            Self::Invalid => 400,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::Conflict => 409,
            Self::TooLarge => 413,
            Self::NotYet => 501,
            Self::Unavailable => 503,
            Self::Internal => 500,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::Invalid => "The input is invalid",
            Self::NotFound => "There is no such thing",
            Self::Conflict => "Somebody else changed it meanwhile",
            Self::NotYet => "Not yet",
            Self::TooLarge => "It is too large",
            Self::Unavailable => "It is not available now",
            Self::Forbidden => "It is not allowed",
            Self::Internal => "A fault of TaskParty",
        }
    }
}

/// A problem document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub struct Problem {
    /// What scripts go by.
    pub code: Code,
    /// This problem in a few words.
    pub title: String,
    /// This problem: what was wrong, where, and what to do.
    pub detail: String,
    /// The fields that are wrong, where fields are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<ProblemField>,
    /// For a conflict: the revision that is there; 0 for none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// Where several jobs were to be saved: how many of them, in their order, were saved before this. To
    /// send them all again changes nothing of those.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<usize>,
}

/// A field that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemField {
    /// The file, with the document in it, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The job, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<String>,
    /// The field's path; empty for the whole.
    pub field: String,
    /// The value that was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl Problem {
    /// A problem of a kind.
    pub fn new(code: Code, detail: impl Into<String>) -> Self {
        Self {
            code,
            title: code.title().into(),
            detail: detail.into(),
            errors: Vec::new(),
            revision: None,
            saved: None,
        }
    }

    /// The input is wrong.
    pub fn invalid(detail: impl Into<String>) -> Self {
        Self::new(Code::Invalid, detail)
    }

    /// One field of the input is wrong.
    pub fn field(field: &str, value: Option<String>, problem: impl Into<String>) -> Self {
        let error = FieldError { field: field.into(), value, problem: problem.into() };
        Self::invalid(error.to_string())
            .titled(format!("{field} is invalid"))
            .with(vec![ProblemField::new(error)])
    }

    /// There is no job of this id.
    pub fn no_job(id: &str) -> Self {
        Self::new(Code::NotFound, format!("there is no job {id:?}; `taskparty job list` shows all"))
            .titled("There is no such job")
    }

    /// There is no run of this id.
    pub fn no_run(run: &str) -> Self {
        let detail =
            format!("there is no run {run:?} in the history; `taskparty run list` shows all");
        Self::new(Code::NotFound, detail).titled("There is no such run")
    }

    /// No run of this job was triggered with this key.
    pub fn no_run_of_key(job: &str, key: &str) -> Self {
        let detail = format!(
            "there is no run of job {job:?} with the key {key:?} in the history; \
             `taskparty run list --job {job}` shows all"
        );
        Self::new(Code::NotFound, detail).titled("There is no such run")
    }

    /// Somebody else changed the job meanwhile; it has this revision now.
    pub fn conflict(id: &str, revision: u64) -> Self {
        let found =
            if revision == 0 { "is not there".into() } else { format!("has revision {revision}") };
        let detail = format!(
            "job {id:?} was changed by somebody else: it {found} now; look at it, then apply again"
        );
        let problem = Self::new(Code::Conflict, detail).titled("The job was changed meanwhile");
        Self { revision: Some(revision), ..problem }
    }

    /// Something that is needed does not answer.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(Code::Unavailable, detail)
    }

    /// With these words instead of those for its kind.
    pub fn titled(mut self, title: impl Into<String>) -> Self {
        self.title = title.into();
        self
    }

    /// The code and the detail in one line, as a header takes it: at most 400 characters.
    pub(super) fn line(&self) -> String {
        let text = format!("{}: {}", self.code.as_str(), self.detail);
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(400).collect()
    }

    /// With the fields that are wrong.
    pub fn with(mut self, errors: Vec<ProblemField>) -> Self {
        self.errors = errors;
        self
    }
}

impl ProblemField {
    /// A field of no particular file or job.
    pub fn new(error: FieldError) -> Self {
        let FieldError { field, value, problem } = error;
        Self { file: None, job: None, field, value, problem }
    }

    /// All errors of the spec of `job`.
    pub fn of_job(job: Option<&str>, invalid: Invalid) -> Vec<Self> {
        let job = job.map(str::to_owned);
        let with_job = |error| Self { job: job.clone(), ..Self::new(error) };
        invalid.0.into_iter().map(with_job).collect()
    }
}

impl fmt::Display for ProblemField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for place in [&self.file, &self.job].into_iter().flatten() {
            write!(f, "{place}: ")?;
        }
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        if let Some(value) = &self.value {
            write!(f, "{value}: ")?;
        }
        f.write_str(&self.problem)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail)
    }
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::invalid(invalid.to_string()).with(ProblemField::of_job(None, invalid))
    }
}
