//! `taskparty job …`

use clap::{Args, Subcommand};

/// `job …`
#[derive(Debug, Subcommand)]
pub(crate) enum JobCommand {
    /// Save jobs from files: new ones are created, others updated; the same is no change.
    Apply(ApplyArgs),
    /// The jobs, with their next fires.
    #[command(visible_alias = "ls")]
    List(ListJobsArgs),
    /// One job; with `-o yaml` as a spec that `job apply` takes.
    #[command(
        visible_alias = "info",
        after_help = "Examples:\n  taskparty job get nightly-settlement\n  taskparty job get nightly-settlement -o yaml > job.yaml"
    )]
    Get(OneJobArgs),
    /// Delete a job. What runs goes on; nothing new is fired.
    #[command(
        visible_alias = "rm",
        after_help = "Examples:\n  taskparty job delete nightly-settlement"
    )]
    Delete(OneJobArgs),
    /// Stop a job's scheduled fires; a manual trigger works all the same.
    Pause(PauseArgs),
    /// Let a paused job go on.
    #[command(after_help = "Examples:\n  taskparty job resume nightly-settlement")]
    Resume(OneJobArgs),
    /// When a job, or a cron expression, fires next.
    Next(NextArgs),
    /// Run a job now, or once at a time to come.
    Trigger(TriggerArgs),
    /// Run instants of the past, one after the other.
    Backfill(BackfillArgs),
}

/// The options of `job apply`.
#[derive(Debug, Args)]
#[command(after_help = "Everything is checked before anything is changed.

Examples:
  taskparty job apply -f jobs.yaml
  taskparty job apply -f jobs/ --dry-run          what would change? (exit code 4 when something would)
  taskparty job apply -f jobs/ --prune --label team=billing
  cat jobs.yaml | taskparty job apply -f -")]
pub(crate) struct ApplyArgs {
    /// A file, a folder of files (.yaml .yml .json), or - for stdin. Can be given again.
    #[arg(short, long = "file", required = true, value_name = "FILE|DIR|-")]
    pub(crate) files: Vec<String>,
    /// Say what would change, and change nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Delete the jobs that carry the labels and are in none of the files.
    #[arg(long, requires = "labels")]
    pub(crate) prune: bool,
    /// Which jobs --prune is about. Can be given again: all must match.
    #[arg(long = "label", value_name = "KEY=VALUE", requires = "prune")]
    pub(crate) labels: Vec<String>,
    /// Create jobs paused. A job that is there keeps its pause, or goes on.
    #[arg(long)]
    pub(crate) paused: bool,
    /// Save only where the job still has this revision (0: where there is none). For one job.
    #[arg(long, value_name = "N")]
    pub(crate) check_revision: Option<u64>,
}

/// The options of `job list`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskparty job list
  taskparty job list --label team=billing --paused=true
  taskparty job list -o json")]
pub(crate) struct ListJobsArgs {
    /// Only jobs with this label. Can be given again: all must match.
    #[arg(long = "label", value_name = "KEY=VALUE")]
    pub(crate) labels: Vec<String>,
    /// Only jobs of this app.
    #[arg(long)]
    pub(crate) app: Option<String>,
    /// Only jobs of this handler.
    #[arg(long)]
    pub(crate) handler: Option<String>,
    /// Only jobs that are paused, or with =false only those that are not.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", value_name = "true|false")]
    pub(crate) paused: Option<bool>,
    /// At most so many; else all.
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Go on after this job: the `next` of an earlier answer.
    #[arg(long, value_name = "ID")]
    pub(crate) after: Option<String>,
}

/// One job.
#[derive(Debug, Args)]
pub(crate) struct OneJobArgs {
    /// The job's id.
    pub(crate) id: String,
}

/// The options of `job pause`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  taskparty job pause nightly-settlement --reason 'bank holiday'
  taskparty job pause nightly-settlement --until 2027-01-02T00:00:00+08:00
  taskparty job pause nightly-settlement --until 2h")]
pub(crate) struct PauseArgs {
    /// The job's id.
    pub(crate) id: String,
    /// Why, for whoever looks.
    #[arg(long)]
    pub(crate) reason: Option<String>,
    /// When it goes on by itself: a time with its offset, or a duration from now.
    #[arg(long, value_name = "TIME|DURATION", allow_hyphen_values = true)]
    pub(crate) until: Option<String>,
}

/// The options of `job next`.
#[derive(Debug, Args)]
#[command(after_help = "With --cron no server is needed.

Examples:
  taskparty job next nightly-settlement -n 10
  taskparty job next --cron '0 0 2 * * ?' --timezone Asia/Shanghai
  taskparty job next --cron '30 2 * * *' --timezone Europe/Berlin --gap skip --after 2027-03-27T00:00:00Z")]
pub(crate) struct NextArgs {
    /// The job's id.
    #[arg(required_unless_present = "cron", conflicts_with = "cron")]
    pub(crate) id: Option<String>,
    /// An expression instead of a job: 5 fields as Unix cron, 6 or 7 as Quartz. Can be given again.
    #[arg(long, value_name = "EXPR")]
    pub(crate) cron: Vec<String>,
    /// The zone of the expression, an IANA name. [default: UTC]
    #[arg(long, value_name = "ZONE", requires = "cron")]
    pub(crate) timezone: Option<String>,
    /// What becomes of a local time that does not exist: shift or skip. [default: shift]
    #[arg(long, requires = "cron")]
    pub(crate) gap: Option<String>,
    /// What becomes of a local time that exists twice: auto, first, last or both. [default: auto]
    #[arg(long, requires = "cron")]
    pub(crate) fold: Option<String>,
    /// Fires after this time, like 2027-01-31T09:00:00Z. [default: now]
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) after: Option<String>,
    /// How many.
    #[arg(short, default_value_t = 5, value_name = "N")]
    pub(crate) n: usize,
}

/// The options of `job trigger`.
#[derive(Debug, Args)]
#[command(
    after_help = "Prints the id of the run. The same key triggers once, however often it is sent.

Examples:
  taskparty job trigger nightly-settlement
  taskparty job trigger nightly-settlement --params '{\"day\": \"2027-01-31\"}'
  taskparty job trigger send-reminder --in 30m --key order-1234
  taskparty job trigger refresh-cache --instance web-1-5f0c2a
  taskparty job trigger nightly-settlement --wait && echo settled"
)]
pub(crate) struct TriggerArgs {
    /// The job's id.
    pub(crate) id: String,
    /// Params of this run alone, as JSON; @FILE reads them from a file.
    #[arg(long, value_name = "JSON|@FILE")]
    pub(crate) params: Option<String>,
    /// Run it after this time, like 30s.
    #[arg(long = "in", value_name = "DURATION", allow_hyphen_values = true, conflicts_with = "at")]
    pub(crate) delay: Option<String>,
    /// Run it at this time, like 2027-01-31T09:00:00+08:00.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) at: Option<String>,
    /// Your own name for this trigger: the same key triggers once.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// Only this executor, whatever the job's route; `taskparty executor list` shows them. It goes to
    /// no other one: if that executor goes away, the run ends.
    #[arg(long, value_name = "ID")]
    pub(crate) instance: Option<String>,
    /// What this run does while an earlier one goes on: queue, skip, replace or allow. [default: as
    /// the job says]
    #[arg(long, value_name = "POLICY")]
    pub(crate) overlap: Option<String>,
    /// Wait for the end of the run, and exit with its outcome: 0 succeeded, 3 anything else.
    #[arg(long)]
    pub(crate) wait: bool,
}

/// The options of `job backfill`.
#[derive(Debug, Args)]
#[command(
    after_help = "Instants that ran are left out. They are stored before the command answers, and carried out whatever
happens to whoever does it; on a terminal it shows how far that is (Ctrl-C ends the showing alone). While
other runs of the job go on they wait, unless the job may overlap itself.

Examples:
  taskparty job backfill nightly-settlement --from 2027-01-01T00:00:00Z --to 2027-02-01T00:00:00Z
  taskparty job backfill nightly-settlement --from 2027-01-01T00:00:00Z --to 2027-01-02T00:00:00Z --again"
)]
pub(crate) struct BackfillArgs {
    /// The job's id.
    pub(crate) id: String,
    /// The first instant that may run, with its offset.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) from: String,
    /// Up to before this, with its offset; not ahead.
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) to: String,
    /// What these runs do while another one goes on: queue, skip, replace or allow. [default: queue; allow where
    /// the job says so]
    #[arg(long, value_name = "POLICY")]
    pub(crate) overlap: Option<String>,
    /// The instants that ran, too.
    #[arg(long)]
    pub(crate) again: bool,
}
