//! `taskparty`: a node, a client, a playground. This file only wires.

mod args;
mod client;
mod commands;
mod config;
mod demo;
mod events;
mod failure;
mod files;
mod node;
mod output;
mod signals;

use std::process::ExitCode;

use clap::Parser;
use taskparty_nats::clock::Clock;
use tracing_subscriber::EnvFilter;

use crate::args::{BenchCommand, Cli, Command, ExecutorCommand, SchedulerCommand};
use crate::config::{Config, Env};
use crate::failure::Failure;
use crate::output::{Colour, Output};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let env = Env::read();
    let colour = if env.text("NO_COLOR").is_some() { Colour::Off } else { Colour::On };
    let output = Output::new(cli.global.output, colour);
    let exit = match run(cli, &env, output) {
        Ok(exit) => exit,
        Err(failure) => {
            output.problem(&failure.problem);
            failure.exit
        }
    };
    ExitCode::from(exit as u8)
}

fn run(cli: Cli, env: &Env, output: Output) -> commands::Outcome {
    let mut more = Vec::new();
    if let Command::Serve(args) = &cli.command {
        let roles: Vec<&str> = args.roles.iter().map(|role| role.word()).collect();
        more.push(("serve.roles", (!roles.is_empty()).then(|| roles.join(","))));
        more.push(("store.url", args.store_url.clone()));
    }
    let config = Config::read(&cli.global, more, env)?;
    log(&cli.command, &config)?;
    fail_points(env)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime
        .map_err(|error| Failure::could_not(format!("threads cannot be started: {error}")))?;
    runtime.block_on(command(cli.command, &config, env, output))
}

async fn command(
    command: Command,
    config: &Config,
    env: &Env,
    output: Output,
) -> commands::Outcome {
    let clock = Clock::system();
    match command {
        Command::Dev(args) => {
            let exit = args.demo_exit || env.text("TASKPARTY_DEMO_EXIT").is_some();
            commands::dev::run(args, exit.into(), config, output, &clock).await
        }
        Command::Serve(_) => commands::serve::run(config, &clock).await,
        Command::Job(command) => commands::job::run(command, config, output, &clock).await,
        Command::Run(command) => commands::run::run(command, config, output, &clock).await,
        Command::Executor(ExecutorCommand::List) => {
            commands::live::executors(config, output, &clock).await
        }
        Command::Executor(ExecutorCommand::Drain(_)) => Err(Failure::not_yet("executor drain")),
        Command::Scheduler(SchedulerCommand::List) | Command::Schedulers => {
            commands::live::schedulers(config, output, &clock).await
        }
        Command::Topology(command) => commands::topology::run(command, config, output).await,
        Command::Config => commands::config::run(config, output),
        Command::Doctor(args) => commands::doctor::run(args, config, output, &clock).await,
        Command::Bench(command) => commands::bench::run(command, output).await,
    }
}

/// Logs go to stderr. A node logs what happens; a command for people only what is wrong, and the
/// connection's own words not at all: they come as the command's error.
fn log(command: &Command, config: &Config) -> Result<(), Failure> {
    let quiet = match command {
        Command::Serve(_) => "info,async_nats=warn",
        Command::Bench(BenchCommand::ExecutorProcess { .. }) => "warn,async_nats=error",
        Command::Dev(_) => "warn,async_nats=error,taskparty_nats::consume=error",
        _ => "error,async_nats=off,taskparty_nats::connect=off",
    };
    let filter = config.log.as_deref().unwrap_or(quiet);
    let filter = EnvFilter::try_new(filter).map_err(|error| {
        Failure::invalid(format!(
            "log: {filter:?} is no filter ({error}); write info, or taskparty_scheduler=debug,warn"
        ))
    })?;
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    Ok(())
}

#[cfg(feature = "failpoints")]
fn fail_points(env: &Env) -> Result<(), Failure> {
    match env.text("TASKPARTY_FAIL_POINTS") {
        Some(rules) => taskparty_nats::failpoint::set(&rules)
            .map_err(|error| Failure::invalid(error.to_string())),
        None => Ok(()),
    }
}

#[cfg(not(feature = "failpoints"))]
fn fail_points(env: &Env) -> Result<(), Failure> {
    if env.text("TASKPARTY_FAIL_POINTS").is_some() {
        return Err(Failure::invalid(
            "TASKPARTY_FAIL_POINTS is set, and this build has no fail points",
        ));
    }
    Ok(())
}
