//! `bench`: measures, and prints the report.

use std::io::IsTerminal;
use std::time::Duration;

use taskparty_bench::report::{Figure, Report};
use taskparty_bench::{
    Setting, Sync, executor, failover, handlers, history, idle, lateness, throughput,
};
use taskparty_lab::journal::Voice;
use taskparty_lab::servers::Kind;
use taskparty_lab::site::Programs;

use super::Outcome;
use crate::args::{BenchCommand, BenchOptions};
use crate::failure::{Exit, Failure};
use crate::output::{Format, Output, Table};
use crate::signals;

/// Measures what `command` says. SIGINT and SIGTERM break it off: what it had started ends, and its
/// folder goes, unless it is to be kept.
pub(crate) async fn run(command: BenchCommand, output: Output) -> Outcome {
    // An executor of a measurement is ended by whoever started it.
    if matches!(command, BenchCommand::ExecutorProcess { .. }) {
        return measure(command, output).await;
    }
    let interrupted = signals::cancel_on_signal()?;
    let measured = interrupted.run_until_cancelled(measure(command, output)).await;
    measured.unwrap_or_else(|| {
        let detail = "it was interrupted: what it had started is ended, and nothing was measured";
        Err(Failure::could_not(detail))
    })
}

async fn measure(command: BenchCommand, output: Output) -> Outcome {
    let setting = |options: &BenchOptions| setting(options, output);
    let report = match command {
        BenchCommand::Throughput { runs, due, executors, options } => {
            let config = throughput::Config { runs, due, executors: executors.count };
            throughput::measure(config, &setting(&options)?).await
        }
        BenchCommand::Lateness { due, idle, seconds, executors, options } => {
            let length = Duration::from_secs(seconds);
            let config = lateness::Config { due, idle, length, executors: executors.count };
            lateness::measure(config, &setting(&options)?).await
        }
        BenchCommand::Herd { jobs, executors, options } => {
            let config = lateness::Herd { jobs, executors: executors.count };
            lateness::herd(config, &setting(&options)?).await
        }
        BenchCommand::Idle { jobs, seconds, options } => {
            let config = idle::Config { jobs, length: Duration::from_secs(seconds) };
            idle::measure(config, &setting(&options)?).await
        }
        BenchCommand::Failover { stop, rounds, due, options } => {
            let way = if stop { failover::Way::Stop } else { failover::Way::Kill };
            failover::measure(failover::Config { way, rounds, due }, &setting(&options)?).await
        }
        BenchCommand::Store { runs, apart, options } => {
            history::measure(history::Config { runs, apart }, &setting(&options)?).await
        }
        BenchCommand::Executor { runs, handlers, seconds, options } => {
            let config = handlers::Config { runs, handlers, length: Duration::from_secs(seconds) };
            handlers::measure(config, &setting(&options)?).await
        }
        BenchCommand::ExecutorProcess { url, starts, handlers } => {
            let ended = executor::run(&url, &starts, handlers).await;
            ended.map_err(|error| Failure::could_not(format!("{error:#}")))?;
            return Ok(Exit::Done);
        }
    };
    let report = report.map_err(|error| Failure::could_not(format!("{error:#}")))?;
    output.print(&report, people)?;
    Ok(Exit::Done)
}

fn setting(options: &BenchOptions, output: Output) -> Result<Setting, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::could_not(format!("this program cannot be found: {error}")))?;
    let watched = output.format() == Format::Table && std::io::stderr().is_terminal();
    Ok(Setting {
        nats: if options.cluster { Kind::Cluster } else { Kind::Single },
        sync: if options.sync { Sync::Always } else { Sync::Default },
        programs: Programs {
            executor: (program.clone(), vec!["bench".into(), "executor-process".into()]),
            node: program,
        },
        keep: options.keep.clone(),
        voice: if watched { Voice::Err } else { Voice::Silent },
    })
}

fn people(report: &Report) -> String {
    let mut on = Table::bare();
    on.row(["version", report.version]);
    for (name, value) in &report.on {
        on.row([*name, value]);
    }
    let mut figures = Table::new(&[report.bench, "figure", ""]);
    for Figure { name, value, unit } in &report.figures {
        figures.row([name.as_str(), &number(*value), unit]);
    }
    format!("{}\n\n{}", on.text(), figures.text())
}

/// Three digits that say something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
