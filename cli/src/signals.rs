//! SIGTERM and SIGINT: the first asks for an end in order, the second ends the process.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::failure::{Exit, Failure};

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
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
        eprintln!("told twice: ending at once");
        std::process::exit(Exit::CouldNot as i32);
    });
    Ok(token)
}
