//! `taskparty run …`

use clap::{Args, Subcommand};

/// `run …`
#[derive(Debug, Subcommand)]
pub(crate) enum RunCommand {
    /// The runs, the latest first.
    #[command(visible_alias = "ls")]
    List(ListRunsArgs),
    /// One run, with its attempts and alerts.
    #[command(
        visible_alias = "info",
        after_help = "Examples:\n  taskparty run get 0199b2c4-8f00-7c1e-9a55-3d1f6f0c2b11\n  taskparty run get --job send-reminder --key order-1234"
    )]
    Get(OneRunArgs),
    /// What the run's handlers have logged.
    Logs(LogsArgs),
    /// Stop a run, wherever it is: scheduled, waiting, dispatched, running or retrying.
    #[command(
        after_help = "It is asked again each second until it has ended. A run that has ended stays as it is.\n\nExamples:\n  taskparty run cancel 0199b2c4-8f00-7c1e-9a55-3d1f6f0c2b11\n  taskparty run cancel --job send-reminder --key order-1234"
    )]
    Cancel(OneRunArgs),
    /// Try a run again that has ended: new attempts of the shards that did not succeed.
    #[command(
        after_help = "It goes by the job as it was when the run was made, and has all of its retries again.\n\nExamples:\n  taskparty run retry 0199b2c4-8f00-7c1e-9a55-3d1f6f0c2b11\n  taskparty run retry 0199b2c4-8f00-7c1e-9a55-3d1f6f0c2b11 --all-shards\n  taskparty run retry --job send-reminder --key order-1234"
    )]
    Retry(RetryArgs),
}

/// The options of `run list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskparty run list
  taskparty run list --job heartbeat --since 1h
  taskparty run list --state failed -o json")]
pub(crate) struct ListRunsArgs {
    /// Only runs of this job.
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<String>,
    /// Only runs in this state, like running or failed.
    #[arg(long)]
    pub(crate) state: Option<String>,
    /// Only runs that were due in this time, like 1h.
    #[arg(long, value_name = "DURATION", allow_hyphen_values = true)]
    pub(crate) since: Option<String>,
    /// At most so many.
    #[arg(long, default_value_t = 50, value_name = "N")]
    pub(crate) limit: usize,
    /// Go on after this: the `next` of an earlier answer.
    #[arg(long, value_name = "NEXT")]
    pub(crate) after: Option<String>,
}

/// One run: by its id, or by the key that it was triggered with.
#[derive(Debug, Args)]
pub(crate) struct OneRunArgs {
    /// The run's id.
    #[arg(required_unless_present = "key", conflicts_with_all = ["job", "key"])]
    pub(crate) run: Option<String>,
    /// The job of --key.
    #[arg(long, value_name = "ID", requires = "key")]
    pub(crate) job: Option<String>,
    /// The latest run of --job that was triggered with this key.
    #[arg(long, value_name = "KEY", requires = "job")]
    pub(crate) key: Option<String>,
}

/// The options of `run retry`.
#[derive(Debug, Args)]
pub(crate) struct RetryArgs {
    #[command(flatten)]
    pub(crate) run: OneRunArgs,
    /// The shards that succeeded, too.
    #[arg(long)]
    pub(crate) all_shards: bool,
}

/// The options of `run logs`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:\n  taskparty run logs 0199b2c4-8f00-7c1e-9a55-3d1f6f0c2b11\n  taskparty run logs 0199b2c4-8f00-7c1e-9a55-3d1f6f0c2b11 -f\n  taskparty run logs --job send-reminder --key order-1234"
)]
pub(crate) struct LogsArgs {
    #[command(flatten)]
    pub(crate) run: OneRunArgs,
    /// Go on until the run has ended.
    #[arg(short, long)]
    pub(crate) follow: bool,
}
