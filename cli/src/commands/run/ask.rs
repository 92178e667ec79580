//! `run cancel`, `run retry`: what is asked of a run that is there.

use taskparty_scheduler::api::wire::{AskRun, RetryRun, RunAsked};

use super::super::{Outcome, with_client};
use crate::args::{OneRunArgs, RetryArgs};
use crate::config::Config;
use crate::failure::Exit;
use crate::output::Output;

/// Asks a run to stop. One that has ended stays as it is, and that is no failure: it does not go on.
pub(super) async fn cancel(args: OneRunArgs, config: &Config, output: Output) -> Outcome {
    with_client(config, |client| async move {
        let OneRunArgs { run, job, key } = args;
        let request = AskRun { run, job, key, by: client.by() };
        let asked: RunAsked = client.call("run", "cancel", &request).await?;
        output.print(&asked, cancelled)?;
        say_if_not_shown(&asked, output);
        Ok(Exit::Done)
    })
    .await
}

/// Tries a run again that has ended.
pub(super) async fn retry(args: RetryArgs, config: &Config, output: Output) -> Outcome {
    with_client(config, |client| async move {
        let RetryArgs { run: OneRunArgs { run, job, key }, all_shards } = args;
        let request = RetryRun { run, job, key, all_shards, by: client.by() };
        let asked: RunAsked = client.call("run", "retry", &request).await?;
        output.print(&asked, |asked| format!("{} is tried again", asked.run))?;
        say_if_not_shown(&asked, output);
        Ok(Exit::Done)
    })
    .await
}

fn cancelled(asked: &RunAsked) -> String {
    let RunAsked { run, state, changed, .. } = asked;
    let by = asked.cancel_requested_by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    match (changed, state.as_str()) {
        (true, "cancelled") => format!("{run} is cancelled"),
        (false, "cancelled") => format!("{run} is cancelled already"),
        (_, "succeeded" | "failed" | "timed_out" | "lost" | "not_started" | "skipped") => {
            format!("{run} has ended already: {state}; there is nothing to cancel")
        }
        (true, _) => format!("{run} is asked to stop; it was {state}"),
        (false, _) => format!("{run} was asked to stop already{by}; it is {state} still"),
    }
}

fn say_if_not_shown(asked: &RunAsked, output: Output) {
    if !asked.shown {
        output.warn("it is stored and comes to pass, but history does not show it yet: does a log writer run? (`taskparty doctor`)");
    }
}
