//! `taskparty-chaos`: the harness on the command line. Only wires.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand};
use taskparty_chaos::{executor, programs, run, soak};

/// Real processes, killed, frozen and cut off while jobs run; then an audit.
#[derive(Debug, Parser)]
#[command(name = "taskparty-chaos", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Faults for some minutes, then quiet, then the audit. Exit 0: nothing is wrong.
    Run(RunArgs),
    /// Many runs that do nothing, and the memory of each process. Exit 0: each run is there once,
    /// and no process grows.
    Soak(SoakArgs),
    /// An executor of the harness.
    #[command(hide = true)]
    Executor {
        #[arg(long)]
        url: String,
        #[arg(long)]
        starts: Option<PathBuf>,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Which faults. [default: by chance, and printed]
    #[arg(long)]
    seed: Option<u64>,
    /// For how long.
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Fires a second.
    #[arg(long, default_value_t = 200.0)]
    rate: f64,
    #[command(flatten)]
    keep: Keep,
}

#[derive(Debug, Args)]
struct SoakArgs {
    /// How many runs.
    #[arg(long, default_value_t = 200_000)]
    runs: u64,
    /// How many a second.
    #[arg(long, default_value_t = 1_000)]
    rate: usize,
    #[command(flatten)]
    keep: Keep,
}

#[derive(Debug, Args)]
struct Keep {
    /// Where logs, history and starts go, and stay. [default: a new folder, kept when something is
    /// wrong]
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// A folder that stays when it was asked for, or when something is wrong.
struct Folder {
    path: PathBuf,
    ours: Option<tempfile::TempDir>,
}

impl Folder {
    fn open(keep: &Keep) -> Result<Self> {
        match &keep.keep {
            Some(path) => {
                std::fs::create_dir_all(path)?;
                Ok(Self { path: std::path::absolute(path)?, ours: None })
            }
            None => {
                let dir = tempfile::Builder::new().prefix("taskparty-chaos-").tempdir()?;
                Ok(Self { path: dir.path().to_owned(), ours: Some(dir) })
            }
        }
    }

    fn end<T>(self, outcome: Result<T>, fine: impl Fn(&T) -> bool) -> Result<ExitCode> {
        let code = match &outcome {
            Ok(value) if fine(value) => return Ok(ExitCode::SUCCESS),
            Ok(_) => ExitCode::from(1),
            Err(error) => {
                eprintln!("error: {error:#}");
                ExitCode::from(2)
            }
        };
        if let Some(dir) = self.ours {
            eprintln!("logs are kept in {}", dir.keep().display());
        }
        Ok(code)
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode> {
    match Cli::parse().command {
        Command::Run(args) => {
            let folder = Folder::open(&args.keep)?;
            let config = run::Config {
                seed: args.seed.unwrap_or_else(|| u64::from(rand::random::<u32>())),
                length: Duration::from_secs_f64(args.minutes * 60.0),
                rate: args.rate,
            };
            let verdict = run::run(&config, &programs::find()?, &folder.path).await;
            if let Ok(verdict) = &verdict {
                run::print(verdict, &folder.path.display().to_string());
            }
            println!("seed {}", config.seed);
            folder.end(verdict, run::Verdict::is_clean)
        }
        Command::Soak(args) => {
            let folder = Folder::open(&args.keep)?;
            let config = soak::Config { runs: args.runs, rate: args.rate };
            let soaked = soak::soak(config, &programs::find()?, &folder.path).await;
            if let Ok(soaked) = &soaked {
                soak::print(soaked);
            }
            folder.end(soaked, |soaked| soaked.wrong().is_empty())
        }
        Command::Executor { url, starts } => {
            tracing_subscriber::fmt()
                .with_env_filter("info,async_nats=warn")
                .with_writer(std::io::stderr)
                .with_ansi(false)
                .init();
            executor::run(&url, starts.as_deref().map(Path::new)).await?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
