//! The command line as users type it: names, options, help, examples. No behaviour.

mod bench;
mod job;
mod node;
mod run;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

pub(crate) use bench::{BenchCommand, BenchOptions};
pub(crate) use job::{
    ApplyArgs, BackfillArgs, JobCommand, ListJobsArgs, NextArgs, OneJobArgs, PauseArgs, TriggerArgs,
};
pub(crate) use node::{DevArgs, ServeArgs};
pub(crate) use run::{ListRunsArgs, LogsArgs, OneRunArgs, RetryArgs, RunCommand};

use crate::output::Format;

/// Jobs on a schedule, on demand and delayed, run by services that already talk NATS.
#[derive(Debug, Parser)]
#[command(
    name = "taskparty",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    after_help = "Examples:
  taskparty dev --demo                     everything on this machine, with jobs to watch
  taskparty job apply -f jobs.yaml         save jobs from a file
  taskparty job next --cron '0 0 2 * * ?'  when would this fire?
  taskparty run list --job heartbeat       what happened?

Exit codes: 0 done; 1 could not; 2 wrong use or invalid input; 3 the run ended
unsuccessfully, or doctor found problems; 4 --dry-run found changes."
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes. Under a heading of its own, so that help shows a command's own options
/// together.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// How to print what was found.
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) output: Format,
    /// The configuration file; else taskparty.toml in this folder, if there is one.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The installation's prefix, in front of all its NATS names. [default: taskparty]
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) prefix: Option<String>,
    /// What to log to stderr, as `info` or `taskparty_scheduler=debug,warn`.
    #[arg(long, global = true, value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How long to wait for NATS when connecting, like 5s. [default: 5s]
    #[arg(long, global = true, value_name = "DURATION", allow_hyphen_values = true)]
    pub(crate) timeout: Option<String>,
    #[command(flatten)]
    pub(crate) nats: NatsArgs,
}

/// How to reach NATS, as the `nats` CLI has it.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "NATS")]
pub(crate) struct NatsArgs {
    /// One or more servers, with commas. Also NATS_URL. [default: nats://127.0.0.1:4222]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) nats_url: Option<String>,
    /// A context of the nats CLI. Also NATS_CONTEXT.
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) context: Option<String>,
    /// A credentials file. Also NATS_CREDS.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) creds: Option<PathBuf>,
    /// A file with an nkey seed. Also NATS_NKEY.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) nkey: Option<PathBuf>,
    /// What inboxes begin with, where this user's rights ask for it. [default: _INBOX]
    #[arg(long, global = true, value_name = "PREFIX")]
    pub(crate) inbox_prefix: Option<String>,
    /// The authorities to trust, PEM. Also NATS_CA.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tlsca: Option<PathBuf>,
    /// Our certificate, PEM, with --tlskey. Also NATS_CERT.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tlscert: Option<PathBuf>,
    /// The key of --tlscert, PEM. Also NATS_KEY.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) tlskey: Option<PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Everything on this machine, with nothing to configure: NATS, a node, and jobs to watch.
    Dev(DevArgs),
    /// Run a node: any of scheduler, log-writer, api, script.
    Serve(ServeArgs),
    /// Define, look at, pause and trigger jobs.
    #[command(subcommand)]
    Job(JobCommand),
    /// Look at what ran.
    #[command(subcommand)]
    Run(RunCommand),
    /// Who can run jobs.
    #[command(subcommand)]
    Executor(ExecutorCommand),
    /// Who fires jobs.
    #[command(subcommand)]
    Scheduler(SchedulerCommand),
    /// The live schedulers: the same as `scheduler list`.
    #[command(after_help = "Examples:\n  taskparty schedulers\n  taskparty schedulers -o json")]
    Schedulers,
    /// The streams, buckets and consumers in NATS.
    #[command(subcommand)]
    Topology(TopologyCommand),
    /// The configuration in force, and where each value came from.
    #[command(after_help = "Examples:
  taskparty config
  TASKPARTY_PREFIX=team-2 taskparty config -o json")]
    Config,
    /// Check the installation, and say what to do about what is found.
    #[command(after_help = "Exit code 3 when a check fails, or the audit finds a violation.

Examples:
  taskparty doctor
  taskparty doctor --audit --since 2h
  taskparty doctor --audit --from 2027-01-31T00:00:00Z --to 2027-02-01T00:00:00Z -o json")]
    Doctor(DoctorArgs),
    /// Measure TaskParty on this machine, and NATS without it.
    #[command(subcommand)]
    Bench(BenchCommand),
}

/// The options of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Hold locks, records and history of a period against each other: nothing lost, nothing twice.
    #[arg(long)]
    pub(crate) audit: bool,
    /// The period: as far back as this, like 2h. [default: 1h]
    #[arg(
        long,
        requires = "audit",
        conflicts_with = "from",
        value_name = "DURATION",
        allow_hyphen_values = true
    )]
    pub(crate) since: Option<String>,
    /// The period's begin, inclusive, with its offset.
    #[arg(long, requires = "audit", value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    /// The period's end, exclusive. [default: now]
    #[arg(long, requires = "audit", value_name = "TIME", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// What is younger than this may still be under way.
    #[arg(
        long,
        requires = "audit",
        value_name = "DURATION",
        allow_hyphen_values = true,
        default_value = "60s"
    )]
    pub(crate) settle: String,
    /// Files in which executors wrote each start of a handler, as NDJSON: {run, shard, attempt,
    /// delivery, instance, at}. All executors of the period must have written one.
    #[arg(long, requires = "audit", num_args = 1.., value_name = "FILE")]
    pub(crate) starts: Vec<PathBuf>,
}

/// One executor.
#[derive(Debug, Args)]
pub(crate) struct DrainArgs {
    /// The executor's instance id.
    #[arg(value_name = "INSTANCE")]
    _instance: String,
}

/// `executor …`
#[derive(Debug, Subcommand)]
pub(crate) enum ExecutorCommand {
    /// The live executors, with what they can run and what they do.
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  taskparty executor list\n  taskparty executor list -o json"
    )]
    List,
    /// Not yet: let an executor take no new work.
    #[command(hide = true)]
    Drain(DrainArgs),
}

/// `scheduler …`
#[derive(Debug, Subcommand)]
pub(crate) enum SchedulerCommand {
    /// The live schedulers.
    #[command(
        visible_alias = "ls",
        after_help = "Examples:\n  taskparty scheduler list\n  taskparty scheduler list -o json"
    )]
    List,
}

/// `topology …`
#[derive(Debug, Subcommand)]
pub(crate) enum TopologyCommand {
    /// What is expected, and what is found.
    #[command(visible_alias = "info", after_help = "Examples:\n  taskparty topology show")]
    Show,
    /// Make what is missing, and change what is different.
    #[command(after_help = "Examples:\n  taskparty topology apply")]
    Apply,
    /// The NATS permissions that the executors of an app need, and those of a node.
    #[command(
        after_help = "Needs no server.\n\nExamples:\n  taskparty topology acl --app order-service\n  taskparty topology acl --app order-service -o json"
    )]
    Acl(AclArgs),
}

/// The options of `topology acl`.
#[derive(Debug, Args)]
pub(crate) struct AclArgs {
    /// The app.
    #[arg(long)]
    pub(crate) app: String,
}
