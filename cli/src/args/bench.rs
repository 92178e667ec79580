//! `taskparty bench …`

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// What to measure.
#[derive(Debug, Subcommand)]
#[command(
    after_help = "Each starts an installation of its own on this machine, in a new folder: nats-server, nodes and
executors, each a process. Nothing of another installation is touched.

Examples:
  taskparty bench throughput
  taskparty bench lateness --due 1000 --idle 100000 --cluster
  taskparty bench herd --jobs 10000 -o json"
)]
pub(crate) enum BenchCommand {
    /// Runs a second, from due to the committed row, beside the bare NATS messages.
    Throughput {
        /// How many runs are counted.
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        runs: u64,
        /// How many are due each second. [default: four fifths of what the bare messages do]
        #[arg(long, value_name = "N", value_parser = count)]
        due: Option<usize>,
        #[command(flatten)]
        executors: Executors,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// Handler start minus nominal instant, at a steady rate beside idle jobs.
    Lateness {
        /// Jobs that are due each second.
        #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = count)]
        due: usize,
        /// Jobs that are not.
        #[arg(long, value_name = "N", default_value_t = 100_000)]
        idle: usize,
        /// For how many seconds.
        #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
        #[command(flatten)]
        executors: Executors,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// Jobs that are all due at the same second: first and last handler start.
    Herd {
        /// How many jobs.
        #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = count)]
        jobs: usize,
        #[command(flatten)]
        executors: Executors,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// Jobs of which none is due: memory, the start, processor time.
    Idle {
        /// How many jobs.
        #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = count)]
        jobs: usize,
        /// For how many seconds the processor time is counted.
        #[arg(long, value_name = "N", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// A scheduler goes away under load: the largest lateness, what is lost, what ran twice.
    Failover {
        /// It ends in order (SIGTERM) instead of being killed (kill -9).
        #[arg(long)]
        stop: bool,
        /// How often.
        #[arg(long, value_name = "N", default_value_t = 6, value_parser = count)]
        rounds: usize,
        /// Jobs that are due each second.
        #[arg(long, value_name = "N", default_value_t = 200, value_parser = count)]
        due: usize,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// The history: runs and rows written a second, and how long questions take when it is full.
    Store {
        /// How many runs.
        #[arg(long, value_name = "N", default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        runs: u64,
        /// How many more runs are fired before a run's result comes. With more than are written in 250 ms
        /// each run is written twice.
        #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
        apart: u64,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// One executor by itself: handlers a second, and what it costs at rest.
    Executor {
        /// How many runs wait for it.
        #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
        runs: u64,
        /// How many handlers it has.
        #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        handlers: u32,
        /// For how many seconds the processor time at rest is counted.
        #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
        seconds: u64,
        #[command(flatten)]
        options: BenchOptions,
    },
    /// An executor of the benchmarks.
    #[command(hide = true)]
    ExecutorProcess {
        #[arg(long)]
        url: String,
        #[arg(long)]
        starts: PathBuf,
        #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        handlers: u32,
    },
}

/// How many there are of something.
fn count(text: &str) -> Result<usize, String> {
    let most = 10_000_000;
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("write a number from 1 to {most}")),
    }
}

/// How many executors take part.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Executors {
    /// How many executors there are.
    #[arg(long = "executors", value_name = "N", default_value_t = 1, value_parser = count)]
    pub(crate) count: usize,
}

/// What every measurement takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct BenchOptions {
    /// Three nats-servers that store everything three times, instead of one.
    #[arg(long)]
    pub(crate) cluster: bool,
    /// NATS syncs each write to the disk before it confirms it.
    #[arg(long)]
    pub(crate) sync: bool,
    /// Where logs, history and the executors' files go, and stay. [default: a new folder that goes]
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
}
