//! Following a run until it has ended.

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::Value;
use taskparty_common::outcome::RunState;
use taskparty_nats::clock::Clock;
use taskparty_scheduler::api::wire::{Code, Nothing, OneRun, Schedulers};
use uuid::Uuid;

use super::{Outcome, people, progress, run_state, text, took};
use crate::client::Client;
use crate::failure::Exit;
use crate::output::{Format, Output};

/// How often is looked.
const LOOK: Duration = Duration::from_millis(300);

/// How long no node may answer: as long as a restart of the only one may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often it is looked whether a scheduler is live, while the run is not known.
const SCHEDULERS: Duration = Duration::from_secs(1);

/// Follows the run; on a terminal with a line that says where it is. Then prints it, and exits with
/// its outcome.
///
/// There is no deadline: a run may take as long as it likes, and Ctrl-C ends the waiting, not the run.
/// A node that does not answer is waited for by the same reasoning, but not for ever: when none has
/// answered for [`PATIENCE`], that ends it.
pub(crate) async fn until_ended(
    client: &Client,
    run: Uuid,
    output: Output,
    clock: &Clock,
) -> Outcome {
    let watched = output.format() == Format::Table && std::io::stderr().is_terminal();
    let named = OneRun { run: Some(run.to_string()), ..OneRun::default() };
    let mut line = Line { watched, last: String::new() };
    let mut nodes = Nodes { silent: None, looked: Instant::now(), told: false };
    let ended = loop {
        let answer = client.call::<Value>("run", "get", &named).await;
        if !matches!(&answer, Err(failure) if failure.problem.code == Code::Unavailable) {
            nodes.silent = None;
        }
        match answer {
            Ok(found) => {
                let state = RunState::from_word(text(&found, "state"));
                if state.is_some_and(RunState::is_terminal) {
                    break found;
                }
                line.say(&shown(&found));
            }
            // It may be too new for the history; or nobody fires just now.
            Err(failure) if failure.problem.code == Code::NotFound => {
                line.say("not fired yet");
                nodes.look_for_schedulers(client, &mut line, output).await;
            }
            Err(failure) if failure.problem.code == Code::Unavailable => {
                let since = *nodes.silent.get_or_insert_with(|| {
                    line.end();
                    let (why, patience) = (&failure.problem.detail, PATIENCE.as_secs());
                    output.warn(&format!(
                        "{why}; the run goes on, and an answer is waited for, for up to {patience} s"
                    ));
                    Instant::now()
                });
                if since.elapsed() >= PATIENCE {
                    return Err(failure);
                }
            }
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

/// What is known of the nodes while a run is followed.
struct Nodes {
    /// Since when none answers.
    silent: Option<Instant>,
    /// When it was last looked whether a scheduler is live.
    looked: Instant,
    /// It was said that there is none.
    told: bool,
}

impl Nodes {
    /// Says so, once, when the run waits because no scheduler is live.
    async fn look_for_schedulers(&mut self, client: &Client, line: &mut Line, output: Output) {
        if self.told || self.looked.elapsed() < SCHEDULERS {
            return;
        }
        self.looked = Instant::now();
        let live = client.call::<Schedulers>("scheduler", "list", &Nothing {}).await;
        if live.is_ok_and(|live| live.items.is_empty()) {
            line.end();
            output.warn("no scheduler is live; the run starts when one is");
            self.told = true;
        }
    }
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

    fn end(&mut self) {
        if self.watched {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[2K");
            self.last.clear();
        }
    }
}
