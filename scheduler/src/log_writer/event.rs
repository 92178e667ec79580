//! From messages on RESULTS to events.
//!
//! A message is one JSON object, or several, a line each. *Invariant: a line that cannot be taken
//! in is set aside alone*; its neighbours count.

use std::sync::Arc;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use taskparty_common::ask::Asked;
use taskparty_common::dispatch::{MAX_MESSAGE, Progress, ResultRecord, Started};
use taskparty_common::fire::{Fired, Scheduled};
use taskparty_common::job::MAX_SHARDS;
use taskparty_common::name::App;
use taskparty_nats::subject::Names;

use super::policy::digest_of;
use super::transition::Event;
use crate::store::SetAside;

/// The highest attempt that is believed; the most retries that a job can ask for is below it.
const MAX_ATTEMPT: u32 = 10_000;

/// An event with where it came from.
#[derive(Debug, Clone)]
pub(super) struct Line {
    /// The message's sequence; 0 for what the sweep says.
    pub(super) seq: u64,
    /// The line in the message, from 0.
    pub(super) line: u32,
    /// The message's subject.
    pub(super) subject: Arc<str>,
    /// The app that the subject names.
    pub(super) app: App,
    /// When the server stored the message; for the sweep its own time.
    pub(super) at: DateTime<Utc>,
    /// The line as it came.
    pub(super) raw: Bytes,
    /// What it says.
    pub(super) event: Event,
}

impl Line {
    /// This line as something to set aside.
    pub(super) fn set_aside(&self, reason: String) -> SetAside {
        SetAside {
            seq: self.seq,
            line: self.line,
            subject: self.subject.as_ref().to_owned(),
            payload: self.raw.to_vec(),
            reason,
            stored_at: self.at,
        }
    }
}

/// What the subject of a message says.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Scheduled,
    Fired,
    Started,
    Progress,
    Result,
    Asked,
}

/// Reads one message; what cannot be read goes to `aside`.
pub(super) fn read(
    names: &Names,
    subject: &str,
    seq: u64,
    at: DateTime<Utc>,
    payload: &Bytes,
    lines: &mut Vec<Line>,
    aside: &mut Vec<SetAside>,
) {
    let mut refuse = |line: u32, raw: &[u8], reason: String| {
        aside.push(SetAside {
            seq,
            line,
            subject: subject.to_owned(),
            payload: raw.to_vec(),
            reason,
            stored_at: at,
        });
    };
    let Some((kind, app)) = kind_of(names, subject) else {
        return refuse(
            0,
            payload,
            "the subject is none of scheduled, fired, started, progress, result, asked".into(),
        );
    };
    let subject: Arc<str> = subject.into();
    for (line, raw) in (0_u32..).zip(payload.split(|byte| *byte == b'\n')) {
        if raw.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match parse(kind, &app, raw) {
            Ok(event) => lines.push(Line {
                seq,
                line,
                subject: subject.clone(),
                app: app.clone(),
                at,
                raw: payload.slice_ref(raw),
                event,
            }),
            Err(reason) => refuse(line, raw, reason),
        }
    }
}

fn kind_of(names: &Names, subject: &str) -> Option<(Kind, App)> {
    let app = App::new(subject.rsplit('.').next()?).ok()?;
    let kinds = [
        (Kind::Result, names.result(&app)),
        (Kind::Fired, names.fired(&app)),
        (Kind::Started, names.started(&app)),
        (Kind::Progress, names.progress(&app)),
        (Kind::Scheduled, names.scheduled(&app)),
        (Kind::Asked, names.asked(&app)),
    ];
    let kind = kinds.into_iter().find(|(_, name)| name == subject)?.0;
    Some((kind, app))
}

fn parse(kind: Kind, app: &App, raw: &[u8]) -> Result<Event, String> {
    match kind {
        Kind::Fired => {
            let fired: Fired = json(raw)?;
            if fired.app != *app {
                return Err(format!("it is about app {} on the subject of app {app}", fired.app));
            }
            if fired.plan.total > MAX_SHARDS {
                return Err(format!("{} shards; at most {MAX_SHARDS} are", fired.plan.total));
            }
            bounds(fired.plan.only.unwrap_or(0), fired.plan.attempt)?;
            let digest = digest_of(fired.definition.get());
            Ok(Event::Fired(Box::new(fired), digest))
        }
        Kind::Scheduled => {
            let scheduled: Scheduled = json(raw)?;
            if scheduled.app != *app {
                return Err(format!(
                    "it is about app {} on the subject of app {app}",
                    scheduled.app
                ));
            }
            Ok(Event::Scheduled(Box::new(scheduled)))
        }
        Kind::Started => {
            let started: Started = json(raw)?;
            bounds(started.shard, started.attempt)?;
            Ok(Event::Started(started))
        }
        Kind::Progress => {
            let progress: Progress = json(raw)?;
            bounds(progress.shard, progress.attempt)?;
            Ok(Event::Progress(progress))
        }
        Kind::Result => {
            let mut result: ResultRecord = json(raw)?;
            bounds(result.shard.index, result.attempt)?;
            cut(&mut result);
            Ok(Event::Result(Box::new(result)))
        }
        Kind::Asked => {
            let asked: Asked = json(raw)?;
            if asked.app != *app {
                return Err(format!("it is about app {} on the subject of app {app}", asked.app));
            }
            Ok(Event::Asked(asked))
        }
    }
}

fn json<T: DeserializeOwned>(raw: &[u8]) -> Result<T, String> {
    serde_json::from_slice(raw).map_err(|error| format!("it cannot be read: {error}"))
}

fn bounds(shard: u32, attempt: u32) -> Result<(), String> {
    if shard >= MAX_SHARDS {
        return Err(format!("shard {shard}; the highest is {}", MAX_SHARDS - 1));
    }
    if attempt == 0 || attempt > MAX_ATTEMPT {
        return Err(format!("attempt {attempt}; attempts go from 1 to {MAX_ATTEMPT}"));
    }
    Ok(())
}

/// Executors cut long messages themselves; one that does not is cut here.
fn cut(result: &mut ResultRecord) {
    if result.message.len() > MAX_MESSAGE {
        let end = (0..=MAX_MESSAGE).rev().find(|at| result.message.is_char_boundary(*at));
        result.message.truncate(end.unwrap_or(0));
        result.truncated = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_all(subject: &str, payload: &str) -> (usize, Vec<String>) {
        let (mut lines, mut aside) = (Vec::new(), Vec::new());
        let payload = Bytes::from(payload.to_owned());
        let at = DateTime::UNIX_EPOCH;
        read(&Names::default(), subject, 1, at, &payload, &mut lines, &mut aside);
        (lines.len(), aside.into_iter().map(|aside| aside.reason).collect())
    }

    #[test]
    fn a_bad_line_is_set_aside_and_its_neighbours_count() {
        let good = |attempt: u32| {
            format!(
                r#"{{"v":1,"run":"{}","job":"a","shard":0,"attempt":{attempt},"delivery":1,"instance":"e","started_at":"2026-01-01T00:00:00Z","new":7}}"#,
                uuid::Uuid::nil()
            )
        };
        let payload = format!("{}\nnonsense\n\n{}\n{}\n", good(1), good(2), good(0));
        let (lines, aside) = read_all("taskparty.started.orders", &payload);
        assert_eq!((lines, aside.len()), (2, 2));
        assert!(aside[0].starts_with("it cannot be read"), "{aside:?}");
        assert!(aside[1].starts_with("attempt 0"), "{aside:?}");
    }

    #[test]
    fn a_strange_subject_is_set_aside() {
        for subject in ["taskparty.finished.orders", "other.started.orders", "taskparty.started._x"]
        {
            assert_eq!(read_all(subject, "{}").1.len(), 1, "{subject}");
        }
    }
}
