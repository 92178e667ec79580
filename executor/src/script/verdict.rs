//! What the end of a process means for its run: pure functions.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use serde_json::value::RawValue;

use super::lines::Tail;
use crate::handler::{Failure, HandlerError, Returned};
use crate::report::Output;

/// How much of standard error gets into the message of a failed run, in bytes.
const MAX_STDERR: usize = 2 * 1024;

/// The outcome of a process, `name` for people, that ended by itself.
pub(super) fn of(
    name: &str,
    status: ExitStatus,
    fatal_code: u8,
    stdout: &mut Tail,
    stderr: &mut Tail,
) -> Returned {
    if status.success() {
        return output(stdout);
    }
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("{name} ended with exit code {code}"),
        (None, Some(signal)) => format!("{name} was killed by {}", signal_name(signal)),
        (None, None) => format!("{name} ended: {status}"),
    };
    let said = stderr.end(MAX_STDERR);
    let message = if said.is_empty() { how } else { format!("{how}: {said}") };
    Err(Failure::Handler(match status.code() {
        Some(code) if code == i32::from(fatal_code) => HandlerError::fatal(message),
        _ => HandlerError::retry(message),
    }))
}

/// What was written, when all of it is JSON; else the last line, as JSON if it is that, and as a
/// text if not.
fn output(stdout: &mut Tail) -> Returned {
    let whole = stdout.whole().and_then(json);
    let written = match whole {
        Some(whole) => Output::of(&whole),
        None => {
            let line = stdout.last_line();
            match json(line.clone()) {
                Some(line) => Output::of(&line),
                None if line.is_empty() => Ok(Output::default()),
                None => Output::of(&line),
            }
        }
    };
    written.map_err(|error| {
        Failure::Handler(HandlerError::fatal(format!("the output is no JSON: {error}")))
    })
}

fn json(text: String) -> Option<Box<RawValue>> {
    RawValue::from_string(text).ok()
}

/// As `kill -l` has it, for the signals that end scripts.
fn signal_name(signal: i32) -> String {
    let name = match signal {
        1 => "SIGHUP",
        2 => "SIGINT",
        3 => "SIGQUIT",
        4 => "SIGILL",
        6 => "SIGABRT",
        8 => "SIGFPE",
        9 => "SIGKILL",
        11 => "SIGSEGV",
        13 => "SIGPIPE",
        14 => "SIGALRM",
        15 => "SIGTERM",
        24 => "SIGXCPU",
        25 => "SIGXFSZ",
        _ => return format!("signal {signal}"),
    };
    format!("signal {signal} ({name})")
}
