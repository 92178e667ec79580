//! One attempt of a job that runs a script or program.
//!
//! *Invariant: when this future has ended, or was dropped, its process group has been killed.* The
//! SDK drops it when the lease is lost: another executor has the work then, so there is no grace.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use serde_json::value::RawValue;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout, timeout_at};
use uuid::Uuid;

use super::config::{Language, ScriptConfig};
use super::group::Group;
use super::lines::{Budget, Lines, Tail};
use super::params::{Params, Runner, Source};
use super::{environment, folder, verdict};
use crate::context::Context;
use crate::handler::{Failure, HandlerError, Returned};
use crate::logs::Level;

/// How long children that outlive a script may still write to its log before they are killed. A
/// `tee` that a script started needs a moment.
const LEFTOVERS: Duration = Duration::from_secs(1);

/// How long the ends of the pipes are waited for once the group has been killed.
const LAST_WORDS: Duration = Duration::from_millis(500);

/// Runs it.
pub(super) async fn run(
    context: &Context,
    json: &RawValue,
    runner: Runner,
    config: &ScriptConfig,
) -> Returned {
    let params = Params::read(json).map_err(Failure::BadParams)?;
    environment::check(&params.env, &config.job_env).map_err(Failure::BadParams)?;
    let variables = environment::variables(context, json, &config.environment, &params.env)
        .map_err(Failure::Handler)?;
    let source = params.source.clone();
    let prepared = {
        let config = config.clone();
        tokio::task::spawn_blocking(move || Prepared::new(&source, runner, &config))
    };
    let prepared =
        prepared.await.map_err(|error| Failure::Handler(HandlerError::retry(error)))??;
    let mut command = match &prepared.interpreter {
        Some(interpreter) => {
            let mut command = Command::new(interpreter);
            command.arg(&prepared.path);
            command
        }
        None => Command::new(&prepared.path),
    };
    command
        .args(&params.args)
        .env_clear()
        .envs(variables)
        .current_dir(&prepared.directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut group = Group::start().map_err(|error| {
        let text = format!("the guard of its processes, /bin/sh, cannot be started: {error}");
        Failure::Handler(HandlerError::retry(text))
    })?;
    let child =
        group.spawn(&mut command).await.map_err(|error| cannot_start(&prepared.name, &error))?;
    let input = params.stdin.unwrap_or_else(|| json.get().to_owned());
    let (mut stdout, mut stderr) = (Tail::default(), Tail::default());
    let status =
        attend(context, &mut group, child, input, config.grace, (&mut stdout, &mut stderr)).await;
    match status {
        Ok(End::Itself(status)) => {
            verdict::of(&prepared.name, status, config.fatal_exit_code, &mut stdout, &mut stderr)
        }
        // Nobody reads this: the SDK knows why it asked for the end.
        Ok(End::Stopped) => Err(Failure::Handler(HandlerError::retry("it was stopped"))),
        Ok(End::Killed(text)) => Err(Failure::Killed(text)),
        Err(error) => {
            let text = format!("the end of {} cannot be seen: {error}", prepared.name);
            Err(Failure::Handler(HandlerError::retry(text)))
        }
    }
}

/// How a process and its group came to their end.
enum End {
    /// By itself.
    Itself(ExitStatus),
    /// When it was asked to.
    Stopped,
    /// It was asked to and did not, and was killed; the text says so.
    Killed(String),
}

/// Feeds the process, reads what it writes, and sees to its end and to that of its group.
async fn attend(
    context: &Context,
    group: &mut Group,
    mut child: Child,
    input: String,
    grace: Duration,
    (stdout, stderr): (&mut Tail, &mut Tail),
) -> std::io::Result<End> {
    let budget = Budget::new();
    let (stdin, out, err) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A script that does not read its input is no fault.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
    };
    let read_out = async {
        if let Some(out) = out {
            Lines::new(context, Level::Info, &budget).read(out, stdout).await;
        }
    };
    let read_err = async {
        if let Some(err) = err {
            Lines::new(context, Level::Warn, &budget).read(err, stderr).await;
        }
    };
    let mut feed = pin!(feed);
    let mut pipes = pin!(async { tokio::join!(read_out, read_err) });
    let (mut fed, mut closed) = (false, false);
    let status = loop {
        tokio::select! {
            () = &mut feed, if !fed => fed = true,
            _ = &mut pipes, if !closed => closed = true,
            status = child.wait() => break Some(status?),
            () = context.cancelled() => break None,
        }
    };
    // The time that the rest of the group has, and the script itself when it was stopped.
    let patience = if status.is_some() { LEFTOVERS } else { grace };
    let end = Instant::now() + patience;
    let mut killed = None;
    if status.is_none() {
        group.terminate().await;
        let ended = timeout_at(end, async {
            loop {
                tokio::select! {
                    () = &mut feed, if !fed => fed = true,
                    _ = &mut pipes, if !closed => closed = true,
                    ended = child.wait() => break ended,
                }
            }
        });
        if ended.await.is_err() {
            killed = Some(format!("it did not end within {grace:?} of SIGTERM, and was killed"));
        }
    }
    if !closed {
        closed = timeout_at(end, &mut pipes).await.is_ok();
    }
    if status.is_none() && !closed && killed.is_none() {
        killed = Some(format!(
            "what it had started did not end within {grace:?} of SIGTERM, and was killed"
        ));
    }
    if let Some(text) = &killed {
        context.warn(text);
    }
    group.kill();
    if status.is_none() {
        child.wait().await?;
    }
    if !closed {
        let _ = timeout(LAST_WORDS, &mut pipes).await;
    }
    Ok(match (status, killed) {
        (Some(status), _) => End::Itself(status),
        (None, None) => End::Stopped,
        (None, Some(text)) => End::Killed(text),
    })
}

fn cannot_start(name: &str, error: &std::io::Error) -> Failure {
    let text = format!("{name} cannot be started: {error}");
    match Errno::from_io_error(error) {
        Some(Errno::TOOBIG) => Failure::BadParams(format!("{text}; its args and env are too long")),
        Some(Errno::ACCESS | Errno::NOEXEC) => Failure::BadParams(format!(
            "{text}; is it executable, and does it begin with #! and an interpreter?"
        )),
        Some(Errno::NOENT) => Failure::BadParams(format!("{text}; is its interpreter there?")),
        _ => Failure::Handler(HandlerError::retry(text)),
    }
}

/// What is run, and where.
#[derive(Debug)]
struct Prepared {
    /// For people.
    name: String,
    interpreter: Option<PathBuf>,
    path: PathBuf,
    directory: PathBuf,
    /// Holds an inline text for as long as it runs.
    _scratch: Option<Scratch>,
}

impl Prepared {
    /// Finds the file, or writes the inline text into one. Blocks.
    fn new(source: &Source, runner: Runner, config: &ScriptConfig) -> Result<Self, Failure> {
        let interpreter = match runner {
            Runner::Language(language) => config.interpreters.get(&language).cloned(),
            Runner::Program => None,
        };
        match (source, runner) {
            (Source::File(file), _) => {
                let folder = config.folder.as_deref().ok_or_else(|| {
                    Failure::BadParams("file: this executor has no folder of scripts".into())
                })?;
                let path = folder::find(folder, file).map_err(Failure::BadParams)?;
                let directory = folder.to_owned();
                Ok(Self { name: file.clone(), interpreter, path, directory, _scratch: None })
            }
            (Source::Inline(text), Runner::Language(language)) => {
                let place = config.inline.as_deref().ok_or_else(|| {
                    Failure::BadParams("inline: this executor runs files of its folder only".into())
                })?;
                let (scratch, path) = Scratch::with(place, language, text).map_err(|error| {
                    let text = format!("the inline script cannot be written down: {error}");
                    Failure::Handler(HandlerError::retry(text))
                })?;
                let name = "the inline script".into();
                let directory = scratch.0.clone();
                Ok(Self { name, interpreter, path, directory, _scratch: Some(scratch) })
            }
            (Source::Inline(_), Runner::Program) => {
                Err(Failure::BadParams("inline: a program is a file; use shell, or file".into()))
            }
        }
    }
}

/// A folder of its own for an inline text, which nobody else can read: as an argument it would be
/// seen by all of the machine. Removed when this is dropped.
#[derive(Debug)]
struct Scratch(PathBuf);

impl Scratch {
    fn with(place: &Path, language: Language, text: &str) -> std::io::Result<(Self, PathBuf)> {
        let folder = place.join(format!("taskparty-{}", Uuid::new_v4()));
        std::fs::DirBuilder::new().mode(0o700).create(&folder)?;
        let scratch = Self(folder);
        let path = scratch.0.join(language.inline_name());
        let mut open = std::fs::OpenOptions::new();
        open.write(true).create_new(true).mode(0o600).open(&path)?.write_all(text.as_bytes())?;
        Ok((scratch, path))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.0) {
            tracing::warn!(path = %self.0.display(), %error, "The folder of an inline script could not be removed.");
        }
    }
}
