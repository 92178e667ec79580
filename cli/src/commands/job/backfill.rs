//! `job backfill`: run instants of the past.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::time::Duration;

use serde_json::Value;
use taskparty_common::outcome::RunState;
use taskparty_scheduler::api::wire::{BackfillJob, Backfilled, Code, ListRuns, OneJob, Problem};

use super::super::{Outcome, instant, with_client};
use crate::args::BackfillArgs;
use crate::client::Client;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::output::{Format, Output};

/// How often it is looked how far it is.
const LOOK: Duration = Duration::from_secs(1);

/// Asks for the backfill, and on a terminal shows how far it is until it is done.
pub(super) async fn run(args: BackfillArgs, config: &Config, output: Output) -> Outcome {
    let request = BackfillJob {
        id: args.id,
        from: instant("--from", &args.from)?,
        to: instant("--to", &args.to)?,
        overlap: args.overlap,
        again: args.again,
        by: config.who.clone(),
    };
    with_client(config, |client| async move {
        let made: Backfilled = client.call("job", "backfill", &request).await?;
        output.print(&made, said)?;
        if output.format() == Format::Table && std::io::stderr().is_terminal() {
            follow(&client, &made).await?;
        }
        Ok(Exit::Done)
    })
    .await
}

fn said(made: &Backfilled) -> String {
    let mut left_out = match made.left_out {
        0 => String::new(),
        1 => "; 1 ran and is left out (--again runs it all the same)".into(),
        n => format!("; {n} ran and are left out (--again runs them all the same)"),
    };
    left_out.push_str(&match made.to_come {
        0 => String::new(),
        1 => "; 1 is still the schedule's own, and is left to it".into(),
        n => format!("; {n} are still the schedule's own, and are left to it"),
    });
    match made.to_run {
        0 => format!("{} has no instant to run in this period{left_out}", made.job),
        1 => format!("1 instant of {} runs{left_out}", made.job),
        n => format!("{n} instants of {} run{left_out}", made.job),
    }
}

/// Shows how far it is, on the line below, until all of it has ended, or its job is deleted: then what is
/// left does not run.
async fn follow(client: &Client, made: &Backfilled) -> Result<(), Failure> {
    let say = |text: &str| {
        let _ = write!(std::io::stderr().lock(), "\r\x1b[2K{text}");
    };
    if made.to_run == 0 {
        return Ok(());
    }
    loop {
        let states = states(client, made).await?;
        let open: usize = states.iter().filter(|(s, _)| !is_end(s)).map(|(_, n)| n).sum();
        let ended: usize = states.values().sum::<usize>() - open;
        let ended = ended.saturating_sub(made.known).min(made.to_run);
        let words: Vec<String> = states.iter().map(|(state, n)| format!("{n} {state}")).collect();
        if open == 0 && ended >= made.to_run {
            say(&format!("done: {}\n", words.join(", ")));
            return Ok(());
        }
        say(&format!("{ended} of {} have ended: {}", made.to_run, words.join(", ")));
        if is_deleted(client, &made.job).await? {
            say("");
            let detail = format!(
                "job {} was deleted: {ended} of the {} instants had ended by then; those that go on end, and the others do not run",
                made.job, made.to_run
            );
            return Err(Problem::new(Code::NotFound, detail).into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn is_deleted(client: &Client, job: &str) -> Result<bool, Failure> {
    let request = OneJob { id: job.to_owned(), by: client.by() };
    match client.call::<Value>("job", "get", &request).await {
        Ok(_) => Ok(false),
        Err(failure) if failure.problem.code == Code::NotFound => Ok(true),
        Err(failure) => Err(failure),
    }
}

fn is_end(state: &str) -> bool {
    RunState::from_word(state).is_some_and(RunState::is_terminal)
}

/// How many backfilled runs of the period are in each state.
async fn states(client: &Client, made: &Backfilled) -> Result<BTreeMap<String, usize>, Failure> {
    let request = ListRuns {
        job: Some(made.job.clone()),
        since: Some(made.from),
        until: Some(made.to),
        trigger: Some("backfill".into()),
        ..ListRuns::default()
    };
    let turn = |request: &mut ListRuns, after, left: usize| {
        request.after = after;
        request.limit = Some(left.min(500));
    };
    let most = (None, made.known + made.to_run);
    let page = client.pages::<_, Value>(("run", "list"), request, turn, most).await?;
    let mut states = BTreeMap::new();
    for run in &page.items {
        let state = run.get("state").and_then(Value::as_str).unwrap_or_default();
        *states.entry(state.to_owned()).or_default() += 1;
    }
    Ok(states)
}
