//! Job files: YAML 1.2 or JSON, one job a document, or a list of them under `jobs:`.
//!
//! *Invariant: what is wrong is said with file, place, field, value and what would be right*, for
//! all files at once, before anything is sent. Input is bounded: size, depth and aliases, so that no
//! file can take the memory of the machine.

mod yaml;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::Value;
use taskparty_common::job::{JobSpec, Unknown};
use taskparty_scheduler::api::wire::{Code, Problem, ProblemField};

use crate::failure::Failure;

/// The largest file, in bytes.
const LARGEST: u64 = 32 * 1024 * 1024;

/// The most files of one call.
const MOST_FILES: usize = 10_000;

/// The most problems that are printed.
const MOST_PROBLEMS: usize = 100;

/// A job as a file has it.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    /// File and place in it, for people.
    pub(crate) place: String,
    /// The spec as it was written.
    pub(crate) value: Value,
    /// The spec, checked.
    pub(crate) spec: JobSpec,
}

/// Reads and checks all jobs of `names`: files, folders, or `-` for stdin.
pub(crate) fn read(names: &[String]) -> Result<Vec<Found>, Failure> {
    let mut all = Vec::new();
    let mut problems = Vec::new();
    for path in paths(names)? {
        let shown = shown(&path);
        match text(&path).and_then(|text| yaml::documents(&text)) {
            Ok(documents) => check(&shown, documents, &mut all, &mut problems),
            Err(problem) => problems.push(plain(&shown, problem)),
        }
    }
    duplicates(&all, &mut problems);
    if problems.is_empty() { Ok(all) } else { Err(failure(problems)) }
}

fn shown(path: &Path) -> String {
    if path == Path::new("-") { "stdin".into() } else { path.display().to_string() }
}

fn plain(file: &str, problem: String) -> ProblemField {
    ProblemField { file: Some(file.into()), job: None, field: String::new(), value: None, problem }
}

fn check(
    file: &str,
    documents: Vec<yaml::Document>,
    all: &mut Vec<Found>,
    problems: &mut Vec<ProblemField>,
) {
    if documents.is_empty() {
        problems
            .push(plain(file, "there is no job in it: write one, or leave the file away".into()));
    }
    for document in documents {
        let place = format!("{file}{}", document.place);
        match JobSpec::from_json(&document.value, Unknown::Refuse) {
            Ok(spec) => all.push(Found { place, value: document.value, spec }),
            Err(invalid) => {
                let id = document.value.get("id").and_then(Value::as_str);
                let found = ProblemField::of_job(id, invalid);
                problems.extend(
                    found
                        .into_iter()
                        .map(|error| ProblemField { file: Some(place.clone()), ..error }),
                );
            }
        }
    }
}

/// An id may be in one place only: which of two would win is nobody's guess.
fn duplicates(all: &[Found], problems: &mut Vec<ProblemField>) {
    let mut places: BTreeMap<&str, &str> = BTreeMap::new();
    for found in all {
        let id = found.spec.id.as_str();
        if let Some(first) = places.insert(id, &found.place) {
            problems.push(ProblemField {
                file: Some(found.place.clone()),
                job: None,
                field: "id".into(),
                value: Some(format!("{id:?}")),
                problem: format!("it is also in {first}; give each job its own id"),
            });
        }
    }
}

fn failure(mut problems: Vec<ProblemField>) -> Failure {
    let left_out = problems.len().saturating_sub(MOST_PROBLEMS);
    problems.truncate(MOST_PROBLEMS);
    let mut lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
    if left_out > 0 {
        lines.push(format!("... and {left_out} more problems"));
    }
    lines.push("nothing was changed".into());
    Problem::new(Code::Invalid, lines.join("\n")).with(problems).into()
}

/// The files to read, in order; folders give their files by name.
fn paths(names: &[String]) -> Result<Vec<PathBuf>, Failure> {
    let mut paths = Vec::new();
    for name in names {
        let path = PathBuf::from(name);
        if name == "-" || !path.is_dir() {
            paths.push(path);
            continue;
        }
        let entries = std::fs::read_dir(&path)
            .map_err(|error| Failure::invalid(format!("cannot read the folder {name}: {error}")))?;
        let mut files: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(|path| is_job_file(path)).collect();
        files.sort();
        if files.is_empty() {
            return Err(Failure::invalid(format!(
                "there is no .yaml, .yml or .json file in the folder {name}"
            )));
        }
        paths.extend(files);
    }
    if paths.len() > MOST_FILES {
        return Err(Failure::invalid(format!(
            "{} files at once; give at most {MOST_FILES}",
            paths.len()
        )));
    }
    Ok(paths)
}

fn is_job_file(path: &Path) -> bool {
    let known = |end: &std::ffi::OsStr| {
        ["yaml", "yml", "json"].iter().any(|known| end.eq_ignore_ascii_case(known))
    };
    path.is_file() && path.extension().is_some_and(known)
}

fn text(path: &Path) -> Result<String, String> {
    let unreadable = |error: std::io::Error| format!("it cannot be read: {error}");
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin().lock())
    } else {
        Box::new(std::fs::File::open(path).map_err(unreadable)?)
    };
    let mut bytes = Vec::new();
    source.take(LARGEST + 1).read_to_end(&mut bytes).map_err(unreadable)?;
    if bytes.len() as u64 > LARGEST {
        return Err(format!("it has more than {LARGEST} bytes; split it"));
    }
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8 text".into())
}
