//! `doctor --audit`: whether nothing was lost and nothing done twice.
//!
//! The audit runs here: it reads NATS with this user's rights, history through the service, and
//! the files of executors from this machine.

use std::io::IsTerminal;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use indicatif::ProgressBar;
use taskparty_common::duration;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{Nats, connect};
use taskparty_nats::publish::Publisher;
use taskparty_scheduler::api::wire::{AskAudit, AuditAnswer, Problem};
use taskparty_scheduler::audit::{
    self, AskRuns, AuditConfig, AuditError, History, HistoryPage, Leftovers, Report, Step,
};

use super::{Outcome, instant};
use crate::args::DoctorArgs;
use crate::client::Client;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::output::{Format, Output, Table, shown_time};

/// How far back without `--since` or `--from`.
const SINCE: TimeDelta = TimeDelta::hours(1);

/// How many violations a table shows; JSON has more.
const SHOWN: usize = 50;

/// Audits; exit code 3 when something is wrong.
pub(super) async fn run(
    args: DoctorArgs,
    config: &Config,
    output: Output,
    clock: &Clock,
) -> Outcome {
    let (from, to) = period(&args, clock.now())?;
    let mut audit = AuditConfig::new(from, to);
    audit.settle = time("--settle", &args.settle)?;
    (audit.lease, audit.starts, audit.clock) = (config.topology.lease, args.starts, clock.clone());
    let nats = connect(&config.nats).await?;
    let client = Client::on(nats.clone(), config.who.clone());
    let report = ask(&nats, &client, audit, output).await;
    client.close().await;
    let report = report?;
    output.print(&report, people)?;
    Ok(if report.is_clean() { Exit::Done } else { Exit::Unsuccessful })
}

fn period(
    args: &DoctorArgs,
    now: DateTime<Utc>,
) -> Result<(DateTime<Utc>, DateTime<Utc>), Failure> {
    let to = args.to.as_deref().map_or(Ok(now), |text| instant("--to", text))?;
    if let Some(text) = &args.from {
        return Ok((instant("--from", text)?, to));
    }
    let since = match &args.since {
        None => SINCE,
        Some(text) => TimeDelta::from_std(time("--since", text)?).unwrap_or(TimeDelta::MAX),
    };
    let from = now.checked_sub_signed(since);
    Ok((from.ok_or_else(|| Failure::invalid("--since: that is before all time"))?, to))
}

fn time(option: &str, text: &str) -> Result<Duration, Failure> {
    duration::parse(text).map_err(|error| Problem::field(option, None, error.to_string()).into())
}

async fn ask(
    nats: &Nats,
    client: &Client,
    audit: AuditConfig,
    output: Output,
) -> Result<Report, Failure> {
    let publisher = Publisher::start(nats.client()).await;
    let publisher = publisher.map_err(|error| Failure::could_not(error.to_string()))?;
    let buckets = Buckets::new(nats.clone(), publisher);
    let watched = output.format() == Format::Table && std::io::stderr().is_terminal();
    let bar = if watched { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
    let progress = |step, count| {
        bar.set_message(format!("{} {}", count, what(step)));
        bar.tick();
    };
    let history = OfNode { client };
    let report = audit::run_watched(&buckets, &history, audit, progress).await;
    bar.finish_and_clear();
    report.map_err(|error| match error {
        AuditError::Empty { .. } | AuditError::TooLarge(_) | AuditError::Starts { .. } => {
            Failure::invalid(error.to_string())
        }
        AuditError::Read(_) | AuditError::History(_) => Failure::could_not(error.to_string()),
    })
}

fn what(step: Step) -> &'static str {
    match step {
        Step::Jobs => "revisions of jobs",
        Step::History => "runs in history",
        Step::Records => "messages of records",
        Step::Locks => "locks",
        Step::Starts => "handler starts",
        Step::Waiting => "dispatches in the streams",
    }
}

/// History, as a node has it.
struct OfNode<'a> {
    client: &'a Client,
}

impl OfNode<'_> {
    async fn ask(&self, ask: &AskAudit) -> Result<AuditAnswer, AuditError> {
        let answer = self.client.call("doctor", "audit", ask).await;
        answer.map_err(|failure: Failure| AuditError::History(failure.problem.detail))
    }
}

impl History for OfNode<'_> {
    async fn runs(&self, ask: &AskRuns) -> Result<HistoryPage, AuditError> {
        let ask = AskAudit { runs: Some(ask.clone()), leftovers_since: None };
        let answer = self.ask(&ask).await?.runs;
        answer.ok_or_else(|| AuditError::History("the node gave no runs".into()))
    }

    async fn leftovers(&self, since: DateTime<Utc>) -> Result<Leftovers, AuditError> {
        let ask = AskAudit { runs: None, leftovers_since: Some(since) };
        let answer = self.ask(&ask).await?.leftovers;
        answer.ok_or_else(|| AuditError::History("the node gave no leftovers".into()))
    }
}

fn people(report: &Report) -> String {
    let mut parts = vec![counts(report)];
    if !report.violations.is_empty() {
        let mut table = Table::new(&["violation", "where", "expected", "found"]);
        for violation in report.violations.iter().take(SHOWN) {
            let place = violation.place.to_string();
            let cells =
                [violation.kind.as_str(), place.trim(), &violation.expected, &violation.found];
            table.row(cells);
        }
        parts.push(table.text());
    }
    if !report.notes.is_empty() {
        let mut table = Table::new(&["note", "where", "found"]);
        for note in report.notes.iter().take(SHOWN) {
            table.row([note.kind.as_str(), note.place.to_string().trim(), &note.found]);
        }
        parts.push(table.text());
    }
    parts.push(verdict(report));
    parts.join("\n\n")
}

fn counts(report: &Report) -> String {
    let judged = &report.judged;
    let mut table = Table::bare();
    table.row(["from".to_owned(), shown_time(report.from)]);
    table.row(["to".to_owned(), shown_time(report.to)]);
    for (name, count) in [
        ("jobs", judged.jobs),
        ("instants", judged.instants),
        ("instants left open", judged.instants_open),
        ("locks", judged.locks),
        ("fired records", judged.records),
        ("results", judged.results),
        ("runs", judged.runs),
        ("runs at their end", judged.runs_ended),
        ("attempts", judged.attempts),
        ("handler starts", judged.starts),
        ("dispatches waiting", judged.waiting),
    ] {
        table.row([name.to_owned(), count.to_string()]);
    }
    table.text()
}

fn verdict(report: &Report) -> String {
    if report.is_clean() {
        return "nothing is wrong".into();
    }
    let kinds: Vec<String> =
        report.by_kind.iter().map(|(kind, count)| format!("{count} {kind}")).collect();
    let shown = report.violations.len().min(SHOWN);
    let more = if report.violations.len() > SHOWN { "; -o json shows more" } else { "" };
    format!("{} violations: {} ({shown} shown{more})", report.violations_total, kinds.join(", "))
}
