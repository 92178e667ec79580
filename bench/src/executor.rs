//! The executor that is measured with: its handler does nothing but write down that it began.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use serde_json::Value;
use taskparty_executor::{ConnectConfig, Context, Executor, HandlerError, slots};
use taskparty_nats::clock::Clock;
use tokio::signal::unix::{SignalKind, signal};

use crate::counts::{Start, number_of};
use crate::jobs::{APP, HANDLER};

/// How often what was written down goes into the file.
const FLUSH: Duration = Duration::from_millis(50);

/// So many at once that a run waits for nobody's slot.
const SLOTS: u32 = 512;

/// The name of the handler with this number: the first is the one that jobs name.
pub(crate) fn handler_name(number: u32) -> String {
    match number {
        0 => HANDLER.to_owned(),
        number => format!("{HANDLER}-{number}"),
    }
}

/// Runs until SIGTERM, with so many handlers that are all alike.
///
/// # Errors
/// When the file cannot be written, or NATS refuses.
pub async fn run(url: &str, starts: &Path, handlers: u32) -> Result<()> {
    let file = BufWriter::new(File::options().create(true).append(true).open(starts)?);
    let file = Arc::new(Mutex::new(file));
    let mut executor = Executor::new(APP)?.connect(ConnectConfig::new(url));
    for number in 0..handlers {
        let (file, clock) = (file.clone(), Clock::system());
        let nothing = move |ctx: Context, _: Value| {
            let late = clock.now() - ctx.fire_time();
            let start = Start {
                due_ms: ctx.fire_time().timestamp_millis(),
                late_us: late.num_microseconds().unwrap_or(i64::MAX),
                job: number_of(ctx.job()),
            };
            let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
            let written = file.write_all(start.line().as_bytes()).map_err(HandlerError::from);
            async move { written }
        };
        executor = executor.handler_with(&handler_name(number), slots(SLOTS), nothing);
    }
    let mut terminate = signal(SignalKind::terminate())?;
    let mut running = std::pin::pin!(executor.run(terminate.recv()));
    let flush = || file.lock().unwrap_or_else(PoisonError::into_inner).flush();
    loop {
        tokio::select! {
            ended = &mut running => {
                ended?;
                return Ok(flush()?);
            }
            () = tokio::time::sleep(FLUSH) => flush()?,
        }
    }
}
