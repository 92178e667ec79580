//! What an attempt came to, as the record that goes out: pure functions from values to values.
//!
//! *Invariant: a record always fits.* Message and output are cut to their limits here and marked,
//! so that no handler can make a result that the stream refuses.

use std::io::{self, Write};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use taskparty_common::dispatch::{Dispatch, MAX_MESSAGE, MAX_OUTPUT, ResultRecord, Shard};
use taskparty_common::name::{Instance, JobId};
use taskparty_common::outcome::{Code, Outcome};
use uuid::Uuid;

use crate::handler::{Failure, Returned};

/// What a handler returned, as JSON that fits.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output {
    json: Option<Box<RawValue>>,
    truncated: bool,
}

impl Output {
    /// Writes `value` as JSON. One that is too long becomes a JSON string that holds the beginning
    /// of it; `null` becomes nothing. However long it is, no more than the limit is ever held.
    pub(crate) fn of(value: &impl Serialize) -> Result<Self, serde_json::Error> {
        let mut clip = Clip { kept: Vec::new(), whole: true };
        serde_json::to_writer(&mut clip, value)?;
        let text = valid_utf8(&clip.kept);
        if clip.whole {
            let json = RawValue::from_string(text.to_owned())?;
            return Ok(Self { json: (text != "null").then_some(json), truncated: false });
        }
        let json = serde_json::to_string(fitting(text, MAX_OUTPUT))?;
        Ok(Self { json: Some(RawValue::from_string(json)?), truncated: true })
    }
}

/// Keeps the first [`MAX_OUTPUT`] bytes and swallows the rest.
struct Clip {
    kept: Vec<u8>,
    whole: bool,
}

impl Write for Clip {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let room = MAX_OUTPUT - self.kept.len();
        // A record is one line. Raw JSON may have line breaks, between its tokens only.
        let flat = |byte: &u8| if matches!(byte, b'\n' | b'\r') { b' ' } else { *byte };
        self.kept.extend(bytes[..bytes.len().min(room)].iter().map(flat));
        self.whole &= bytes.len() <= room;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn valid_utf8(bytes: &[u8]) -> &str {
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

/// The longest beginning of `text` that, written as a JSON string, takes at most `limit` bytes.
fn fitting(text: &str, limit: usize) -> &str {
    let mut used = 2;
    for (at, c) in text.char_indices() {
        used += match c {
            '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
            '\0'..='\u{1f}' => 6,
            c => c.len_utf8(),
        };
        if used > limit {
            return &text[..at];
        }
    }
    text
}

/// Cuts a message to at most [`MAX_MESSAGE`] bytes, at a character, ending in `…`.
fn cut_message(mut message: String) -> (String, bool) {
    const MARK: &str = "…";
    if message.len() <= MAX_MESSAGE {
        return (message, false);
    }
    message.truncate(message.floor_char_boundary(MAX_MESSAGE - MARK.len()));
    message.push_str(MARK);
    (message, true)
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub(crate) struct Ending {
    pub(crate) outcome: Outcome,
    code: Option<Code>,
    message: String,
    output: Output,
    retryable: bool,
}

impl Ending {
    /// The handler came to its end by itself.
    pub(crate) fn returned(returned: Returned) -> Self {
        match returned {
            Ok(output) => Self {
                outcome: Outcome::Succeeded,
                code: None,
                message: String::new(),
                output,
                retryable: true,
            },
            Err(Failure::BadParams(text)) => Self::failed(Code::BadParams, text).fatal(),
            Err(Failure::Killed(text)) => Self::failed(Code::HandlerError, text),
            Err(Failure::Handler(error)) if error.is_retryable() => {
                Self::failed(Code::HandlerError, error.message())
            }
            Err(Failure::Handler(error)) => {
                Self::failed(Code::HandlerError, error.message()).fatal()
            }
        }
    }

    /// The handler panicked.
    pub(crate) fn panicked(text: &str) -> Self {
        Self::failed(Code::HandlerPanic, format!("the handler panicked: {text}"))
    }

    /// The handler took longer than it may.
    pub(crate) fn timed_out(timeout_ms: u64) -> Self {
        let text = format!("the handler was stopped at its timeout of {timeout_ms} ms");
        Self::new(Outcome::TimedOut, Code::Timeout, text)
    }

    /// Somebody asked for it to stop.
    pub(crate) fn cancelled(by: &str) -> Self {
        let text = if by.is_empty() { "cancelled".into() } else { format!("cancelled by {by}") };
        Self::new(Outcome::Cancelled, Code::Cancelled, text).fatal()
    }

    /// Its code blocks its thread and could not be stopped.
    pub(crate) fn and_goes_on(self) -> Self {
        self.and("its code could not be stopped and may still be at work")
    }

    /// The same, and what more there is to say of it.
    pub(crate) fn and(self, more: &str) -> Self {
        Self { message: format!("{}; {more}", self.message), ..self }
    }

    /// It came after its start deadline.
    pub(crate) fn too_late(start_by: DateTime<Utc>, now: DateTime<Utc>) -> Self {
        let late = (now - start_by).num_milliseconds();
        let text = format!("it had to start by {start_by:?}; the executor got it {late} ms later");
        Self::new(Outcome::NotStarted, Code::StartDeadline, text)
    }

    /// Executors died of it, or with it, too often.
    pub(crate) fn lost(delivery: u64, max_deliveries: u64) -> Self {
        let text = format!(
            "delivery {delivery}, and only {max_deliveries} are allowed: each executor before took it and never reported"
        );
        Self::new(Outcome::Lost, Code::ExecutorLost, text)
    }

    /// This executor has no such handler.
    pub(crate) fn unknown_handler(dispatch: &Dispatch) -> Self {
        let text = format!("this executor of {} has no handler {}", dispatch.app, dispatch.handler);
        Self::failed(Code::UnknownHandler, text)
    }

    /// The dispatch is not what this executor understands.
    pub(crate) fn undecodable(error: &serde_json::Error) -> Self {
        Self::failed(Code::BadParams, format!("the dispatch could not be read: {error}")).fatal()
    }

    fn failed(code: Code, message: impl Into<String>) -> Self {
        Self::new(Outcome::Failed, code, message)
    }

    fn new(outcome: Outcome, code: Code, message: impl Into<String>) -> Self {
        let (code, message) = (Some(code), message.into());
        Self { outcome, code, message, output: Output::default(), retryable: true }
    }

    fn fatal(self) -> Self {
        Self { retryable: false, ..self }
    }
}

/// What must be known of a dispatch to report on it. It can often be read from one that cannot be
/// read whole.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Attempt {
    pub(crate) run: Uuid,
    pub(crate) job: JobId,
    pub(crate) shard: Shard,
    pub(crate) attempt: u32,
    pub(crate) fire_time: DateTime<Utc>,
}

impl From<&Dispatch> for Attempt {
    fn from(dispatch: &Dispatch) -> Self {
        Self {
            run: dispatch.run,
            job: dispatch.job.clone(),
            shard: Shard { param: None, ..dispatch.shard },
            attempt: dispatch.attempt,
            fire_time: dispatch.fire_time,
        }
    }
}

impl Attempt {
    /// The record of how it ended.
    pub(crate) fn record(self, ending: Ending, by: Reporter<'_>, times: Times) -> ResultRecord {
        let (message, cut) = cut_message(ending.message);
        ResultRecord {
            v: 1,
            run: self.run,
            job: self.job,
            shard: Shard { param: None, ..self.shard },
            attempt: self.attempt,
            delivery: by.delivery,
            instance: by.instance.clone(),
            outcome: ending.outcome,
            code: ending.code,
            message,
            output: ending.output.json,
            truncated: ending.output.truncated || cut,
            retryable: ending.retryable,
            fire_time: self.fire_time,
            started_at: times.started,
            finished_at: times.finished,
        }
    }
}

/// Who reports, of which delivery.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reporter<'a> {
    pub(crate) instance: &'a Instance,
    pub(crate) delivery: u64,
}

/// When an attempt started, if it did, and ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) started: Option<DateTime<Utc>>,
    pub(crate) finished: DateTime<Utc>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(output: &Output) -> &str {
        output.json.as_ref().unwrap().get()
    }

    #[test]
    fn an_output_that_fits_is_kept_to_the_byte() {
        let longest = "x".repeat(MAX_OUTPUT - 2);
        let output = Output::of(&longest).unwrap();
        assert!(!output.truncated);
        assert_eq!(serde_json::from_str::<String>(json(&output)).unwrap(), longest);
        assert_eq!(json(&Output::of(&"\0").unwrap()), r#""\u0000""#);
        assert!(Output::of(&()).unwrap().json.is_none());
        let raw = RawValue::from_string("{\n\"a\":\r\n\"\\n\"}".into()).unwrap();
        assert_eq!(json(&Output::of(&raw).unwrap()), "{ \"a\":  \"\\n\"}");
    }

    #[test]
    fn a_long_output_becomes_a_string_that_fits_with_its_beginning() {
        for item in ["😀", "\"", "\\", "\0", "é", "x"] {
            for pad in 0..4 {
                let value = vec!["y".repeat(pad), item.repeat(300_000 / item.len())];
                let output = Output::of(&value).unwrap();
                assert!(output.truncated);
                assert!(json(&output).len() <= MAX_OUTPUT);
                let beginning: String = serde_json::from_str(json(&output)).unwrap();
                assert!(serde_json::to_string(&value).unwrap().starts_with(&beginning));
                assert!(beginning.len() > MAX_OUTPUT / 3, "{item:?} {}", beginning.len());
            }
        }
    }

    #[test]
    fn a_long_message_is_cut_at_a_character() {
        for pad in 0..4 {
            let long = format!("{}{}", "y".repeat(pad), "😀".repeat(70_000));
            let (message, cut) = cut_message(long.clone());
            assert!(cut && message.len() <= MAX_MESSAGE && message.len() > MAX_MESSAGE - 8);
            assert!(long.starts_with(message.trim_end_matches('…')));
        }
        assert_eq!(cut_message("x".repeat(MAX_MESSAGE)).0.len(), MAX_MESSAGE);
    }
}
