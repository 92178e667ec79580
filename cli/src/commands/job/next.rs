//! `job next`: upcoming fires, of a job or of an expression.

use std::fmt::Display;

use chrono::{DateTime, Utc};
use serde::Serialize;
use taskparty_common::schedule::{
    Fold, Gap, OccurrenceKind, Schedule, ScheduleError, ScheduleSpec,
};
use taskparty_nats::clock::Clock;
use taskparty_scheduler::api::wire::{NextFires, Problem, ProblemField, Upcoming, UpcomingFire};

use super::super::{Outcome, instant, with_client};
use crate::args::NextArgs;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::output::{Output, Table, shown_time};

/// How many fires at most.
const MOST: usize = 1_000;

/// What is printed for an expression.
#[derive(Debug, Serialize)]
struct Fires {
    timezone: String,
    items: Vec<UpcomingFire>,
    next: Option<String>,
}

/// Prints upcoming fires.
pub(super) async fn run(args: NextArgs, config: &Config, output: Output, clock: &Clock) -> Outcome {
    if args.n == 0 || args.n > MOST {
        return Err(Failure::invalid(format!("-n: write a number from 1 to {MOST}")));
    }
    let after = args.after.as_ref().map(|text| instant("--after", text)).transpose()?;
    match &args.id {
        None => of_expression(&args, after.unwrap_or(clock.now()), output),
        Some(id) => {
            let request = NextFires { id: id.clone(), after, n: Some(args.n) };
            with_client(config, |client| async move {
                let upcoming: Upcoming = client.call("job", "next", &request).await?;
                if upcoming.paused {
                    output.note(
                        "the job is paused: it fires at none of these times until it goes on",
                    );
                }
                output.print(&upcoming, |upcoming| match &upcoming.after_each_run {
                    Some(delay) => chain(delay, upcoming, output),
                    None => table(&upcoming.timezone, &upcoming.items, output),
                })?;
                Ok(Exit::Done)
            })
            .await
        }
    }
}

fn of_expression(args: &NextArgs, after: DateTime<Utc>, output: Output) -> Outcome {
    let spec = ScheduleSpec {
        cron: args.cron.clone(),
        timezone: args.timezone.clone(),
        gap: word("--gap", &args.gap, &[("shift", Gap::Shift), ("skip", Gap::Skip)])?,
        fold: word(
            "--fold",
            &args.fold,
            &[
                ("auto", Fold::Auto),
                ("first", Fold::First),
                ("last", Fold::Last),
                ("both", Fold::Both),
            ],
        )?,
        ..ScheduleSpec::default()
    };
    let schedule = Schedule::new(&spec).map_err(wrong)?;
    let zone = schedule.timezone();
    let items = schedule.upcoming(after, after).take(args.n).map(|occurrence| {
        let skipped = occurrence.kind == OccurrenceKind::Gap;
        UpcomingFire { skipped, ..UpcomingFire::at(occurrence.at, zone) }
    });
    let fires = Fires { timezone: zone.name().into(), items: items.collect(), next: None };
    output.print(&fires, |fires| table(&fires.timezone, &fires.items, output))?;
    Ok(Exit::Done)
}

fn wrong(errors: Vec<ScheduleError>) -> Failure {
    let option = |error: &ScheduleError| match error.field() {
        field if field.is_empty() => "--cron".to_owned(),
        field => format!("--{field}"),
    };
    let fields = errors.iter().map(|error| ProblemField {
        file: None,
        job: None,
        field: option(error),
        value: None,
        problem: error.reason().to_string(),
    });
    let fields: Vec<ProblemField> = fields.collect();
    let lines: Vec<String> = fields.iter().map(ToString::to_string).collect();
    Problem::invalid(lines.join("\n")).with(fields).into()
}

fn word<T: Copy + Default>(
    option: &str,
    given: &Option<String>,
    words: &[(&str, T)],
) -> Result<T, Failure> {
    let Some(given) = given else { return Ok(T::default()) };
    let found = words.iter().find(|(word, _)| word == given).map(|(_, value)| *value);
    let known = || words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| {
        Problem::field(option, Some(format!("{given:?}")), format!("it is one of {}", known()))
            .into()
    })
}

/// Of a fixed delay the next fire is known at most.
fn chain(delay: &str, upcoming: &Upcoming, output: Output) -> String {
    output.note(&format!("it fires {delay} after the end of each run"));
    if upcoming.items.is_empty() {
        output.note("when that is next is known when the run in hand has ended");
        return String::new();
    }
    table(&upcoming.timezone, &upcoming.items, output)
}

fn table(timezone: &str, items: &[UpcomingFire], output: Output) -> String {
    if items.is_empty() {
        output.note("it never fires after that time");
        return String::new();
    }
    let local = format!("local ({timezone})");
    let mut table = Table::new(&["weekday", &local, "utc", ""]);
    for fire in items {
        let note: &dyn Display =
            if fire.skipped { &"skipped: this local time does not exist" } else { &"" };
        table.row([
            fire.weekday.clone(),
            fire.local.clone(),
            shown_time(fire.at),
            note.to_string(),
        ]);
    }
    table.text()
}
