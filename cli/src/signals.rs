//! SIGTERM and SIGINT: the first asks for an end in order, the second ends the process.

use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failure::{Exit, Failure};

/// Signals that come closer together are one: `timeout`, and whoever else passes a Ctrl-C on, send
/// it to a process that has had it already.
const ONE: Duration = Duration::from_millis(300);

/// Cancels the token at the first SIGTERM or SIGINT; at the second, ends the process at once.
pub(crate) fn cancel_on_signal() -> Result<CancellationToken, Failure> {
    let broken = |error| Failure::could_not(format!("signals cannot be listened to: {error}"));
    let mut term = signal(SignalKind::terminate()).map_err(broken)?;
    let mut int = signal(SignalKind::interrupt()).map_err(broken)?;
    let token = CancellationToken::new();
    let cancel = token.clone();
    // Lives as long as the process: there is nothing to wait for.
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        cancel.cancel();
        let first = Instant::now();
        while first.elapsed() < ONE {
            tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        }
        eprintln!("told twice: ending at once");
        std::process::exit(Exit::CouldNot as i32);
    });
    Ok(token)
}
