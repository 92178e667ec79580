//! Printing: data to stdout, everything else to stderr.
//!
//! *Invariant: stdout holds the data and nothing else*, so that a pipe can rely on it. Colour and
//! progress are for terminals only.

mod table;
mod yaml;

use std::io::{IsTerminal, Write};

use serde::Serialize;
use taskparty_scheduler::api::wire::Problem;

use crate::failure::Failure;
pub(crate) use table::{Table, ago, folded, in_words, shown_time};

/// How to print what was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For scripts.
    Json,
    /// For files.
    Yaml,
}

/// Where a command prints to.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Output {
    format: Format,
    /// Colour on stdout.
    colour: Colour,
}

/// Whether text is coloured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    /// It is.
    On,
    /// It is plain.
    Off,
}

impl Output {
    /// `no_color`: the user asked for none, as with the variable NO_COLOR.
    pub(crate) fn new(format: Format, wanted: Colour) -> Self {
        let colour = if std::io::stdout().is_terminal() { wanted } else { Colour::Off };
        Self { format, colour }
    }

    /// The format that was asked for.
    pub(crate) fn format(self) -> Format {
        self.format
    }

    /// Whether to colour what goes to stdout.
    pub(crate) fn colour(self) -> Colour {
        self.colour
    }

    /// Prints `data` as asked for: `people` makes the text for a table.
    pub(crate) fn print<T: Serialize>(
        self,
        data: &T,
        people: impl FnOnce(&T) -> String,
    ) -> Result<(), Failure> {
        let text = match self.format {
            Format::Table => people(data),
            Format::Json => json(data)?,
            Format::Yaml => yaml::write(data)?,
        };
        self.raw(&text)
    }

    /// Prints text to stdout; a reader that went away is no error.
    pub(crate) fn raw(self, text: &str) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
        match write!(stdout, "{text}{end}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
                Err(Failure::could_not(format!("cannot write to stdout: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Prints a problem to stderr, as a document where JSON was asked for.
    pub(crate) fn problem(self, problem: &Problem) {
        let text = match (self.format, json(problem)) {
            (Format::Json, Ok(text)) => text,
            _ => people_problem(problem),
        };
        let _ = writeln!(std::io::stderr().lock(), "{}", text.trim_end());
    }

    /// A line for people, on stderr; nothing where JSON or YAML was asked for and all is well.
    pub(crate) fn note(self, text: &str) {
        if self.format == Format::Table {
            let _ = writeln!(std::io::stderr().lock(), "{text}");
        }
    }

    /// A warning, on stderr, whatever the format.
    pub(crate) fn warn(self, text: &str) {
        let _ = writeln!(std::io::stderr().lock(), "warning: {text}");
    }
}

fn json<T: Serialize>(data: &T) -> Result<String, Failure> {
    serde_json::to_string_pretty(data)
        .map_err(|error| Failure::could_not(format!("cannot write JSON: {error}")))
}

fn people_problem(problem: &Problem) -> String {
    let mut text = String::new();
    for line in problem.detail.lines() {
        text.push_str(if text.is_empty() { "error: " } else { "       " });
        text.push_str(line);
        text.push('\n');
    }
    text
}
