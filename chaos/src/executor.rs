//! The executor's process: it writes down each start of a handler before anything else.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use taskparty_executor::{ConnectConfig, Context, Executor, HandlerError, slots};
use taskparty_nats::clock::Clock;
use taskparty_scheduler::audit::StartFact;
use tokio::signal::unix::{SignalKind, signal};

use crate::load::APP;

/// Slots of a handler: more than the load needs, so that a run waits for nobody's sleep.
const SLOTS: u32 = 256;

/// How long it may take to end.
const DRAIN: Duration = Duration::from_secs(3);

/// The file of one process. *Invariant: a line is one write*, which a `kill -9` cannot take back.
#[derive(Debug, Clone)]
struct Starts {
    file: Option<Arc<Mutex<File>>>,
    clock: Clock,
}

impl Starts {
    fn note(&self, ctx: &Context) -> Result<(), HandlerError> {
        let Some(file) = &self.file else { return Ok(()) };
        let start = StartFact {
            run: ctx.run(),
            shard: ctx.shard_index(),
            attempt: ctx.attempt(),
            delivery: ctx.delivery(),
            instance: ctx.instance().clone(),
            at: self.clock.now(),
        };
        let mut line = serde_json::to_vec(&start)?;
        line.push(b'\n');
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.write_all(&line)?;
        Ok(file.flush()?)
    }
}

/// Runs until SIGTERM.
///
/// # Errors
/// When the file cannot be written, or NATS refuses.
pub async fn run(url: &str, starts: Option<&Path>) -> Result<()> {
    let open = |path| File::options().create(true).append(true).open(path);
    let file = starts.map(open).transpose()?.map(|file| Arc::new(Mutex::new(file)));
    let starts = Starts { file, clock: Clock::system() };
    let mut terminate = signal(SignalKind::terminate())?;
    executor(url, &starts)?.run(terminate.recv()).await?;
    Ok(())
}

fn executor(url: &str, starts: &Starts) -> Result<Executor> {
    let (quick, flaky, work) = (starts.clone(), starts.clone(), starts.clone());
    let executor = Executor::new(APP)?
        .connect(ConnectConfig::new(url))
        .drain(DRAIN)
        // Does nothing.
        .handler_with("quick", slots(SLOTS), move |ctx: Context, _: Value| {
            let noted = quick.note(&ctx);
            async move { noted }
        })
        // Fails up to the attempt that its params say.
        .handler_with("flaky", slots(SLOTS), move |ctx: Context, fails: u32| {
            let noted = flaky.note(&ctx);
            async move {
                noted?;
                match ctx.attempt() {
                    attempt if attempt <= fails => {
                        Err(HandlerError::retry(format!("attempt {attempt} fails")))
                    }
                    attempt => Ok(attempt),
                }
            }
        })
        // Takes as many milliseconds as its params say.
        .handler_with("work", slots(SLOTS), move |ctx: Context, ms: u64| {
            let noted = work.note(&ctx);
            async move {
                noted?;
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(ctx.delivery())
            }
        });
    Ok(executor)
}
