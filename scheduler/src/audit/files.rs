//! Reading what executors wrote of their own calls: a line of JSON a start.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use super::{AuditError, Ledger, StartFact};

/// Reads a file line by line; returns how many starts it has.
///
/// A last line without its end was being written when its executor was killed: whether that call
/// began nobody knows, and it is left out with a note.
pub(super) fn read(path: &Path, ledger: &mut Ledger) -> Result<u64, AuditError> {
    let fail = |line, problem: String| AuditError::Starts { path: path.to_owned(), line, problem };
    let file = File::open(path).map_err(|error| fail(0, error.to_string()))?;
    let mut reader = BufReader::new(file);
    let (mut text, mut line, mut starts) = (String::new(), 0, 0);
    loop {
        text.clear();
        line += 1;
        let bytes = reader.read_line(&mut text).map_err(|error| fail(line, error.to_string()))?;
        if bytes == 0 {
            return Ok(starts);
        }
        if text.trim().is_empty() {
            continue;
        }
        match serde_json::from_str::<StartFact>(&text) {
            Ok(start) => {
                starts += 1;
                ledger.start(start);
            }
            Err(_) if !text.ends_with('\n') => {
                ledger.unreadable(&path.display().to_string(), "its last line is cut off");
            }
            Err(error) => {
                let wanted = "{run, shard, attempt, delivery, instance, at}";
                return Err(fail(line, format!("{error}; a line is {wanted}")));
            }
        }
    }
}
