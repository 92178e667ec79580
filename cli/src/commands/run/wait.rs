//! Following a run until it has ended.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use taskparty_common::outcome::RunState;
use taskparty_nats::clock::Clock;
use taskparty_scheduler::api::wire::{Code, OneRun};
use uuid::Uuid;

use super::{Outcome, people, progress, run_state, text, took};
use crate::client::Client;
use crate::failure::Exit;
use crate::output::{Format, Output};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(300);

/// Follows the run; on a terminal with a line that says where it is. Then prints it, and exits with
/// its outcome.
///
/// There is no deadline: a run may take as long as it likes, and Ctrl-C ends the waiting, not the run.
/// A node that does not answer for a while is waited for by the same reasoning, but not for ever: its
/// error ends it.
pub(crate) async fn until_ended(
    client: &Client,
    run: Uuid,
    output: Output,
    clock: &Clock,
) -> Outcome {
    let watched = output.format() == Format::Table && std::io::stderr().is_terminal();
    let named = OneRun { run: Some(run.to_string()), ..OneRun::default() };
    let mut line = Line { watched, last: String::new() };
    let ended = loop {
        match client.call::<Value>("run", "get", &named).await {
            Ok(found) => {
                let state = RunState::from_word(text(&found, "state"));
                if state.is_some_and(RunState::is_terminal) {
                    break found;
                }
                line.say(&shown(&found));
            }
            // It may be too new for the history; or nobody fires just now.
            Err(failure) if failure.problem.code == Code::NotFound => line.say("not fired yet"),
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(LOOK).await;
    };
    line.end();
    match output.format() {
        Format::Table if text(&ended, "state") == "succeeded" => {
            output.note(&format!("succeeded in {}", took(&ended)));
        }
        Format::Table => output.note(&people(&ended, clock)),
        _ => output.print(&ended, |_| String::new())?,
    }
    let good = text(&ended, "state") == "succeeded";
    Ok(if good { Exit::Done } else { Exit::Unsuccessful })
}

/// Where a run is, in a line.
fn shown(run: &Value) -> String {
    let mut words = vec![run_state(run)];
    let tries = run.get("tries").and_then(Value::as_array);
    for attempt in tries.into_iter().flatten() {
        let far = progress(attempt);
        if text(attempt, "state") == "running" && far != "-" {
            words.push(far);
        }
    }
    words.truncate(4);
    words.join("  ")
}

/// The line that is written over and over, on a terminal alone.
struct Line {
    watched: bool,
    last: String,
}

impl Line {
    fn say(&mut self, text: &str) {
        if self.watched && text != self.last {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[2K{text}");
            self.last = text.to_owned();
        }
    }

    fn end(&self) {
        if self.watched {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
        }
    }
}
