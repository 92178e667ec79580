//! `taskparty job …`

mod apply;
mod backfill;
mod next;
mod trigger;

use taskparty_nats::clock::Clock;
use taskparty_scheduler::api::wire::{Confirmation, Edited, JobView, ListJobs, OneJob, PauseJob};

use super::{Outcome, instant_or_in, labels, limit, with_client};
use crate::args::{JobCommand, ListJobsArgs, OneJobArgs, PauseArgs};
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::output::{Format, Output, Table, ago, shown_time};

/// Runs a `job` command.
pub(crate) async fn run(
    command: JobCommand,
    config: &Config,
    output: Output,
    clock: &Clock,
) -> Outcome {
    match command {
        JobCommand::Apply(args) => apply::run(args, config, output).await,
        JobCommand::List(args) => list(args, config, output, clock).await,
        JobCommand::Get(args) => get(args, config, output, clock).await,
        JobCommand::Delete(args) => {
            edit("delete", "deleted", "was deleted already", args, config, output).await
        }
        JobCommand::Resume(args) => {
            edit("resume", "resumed", "is not paused", args, config, output).await
        }
        JobCommand::Pause(args) => pause(args, config, output, clock).await,
        JobCommand::Next(args) => next::run(args, config, output, clock).await,
        JobCommand::Trigger(args) => trigger::run(args, config, output, clock).await,
        JobCommand::Backfill(args) => backfill::run(args, config, output).await,
    }
}

async fn list(args: ListJobsArgs, config: &Config, output: Output, clock: &Clock) -> Outcome {
    let request = ListJobs {
        labels: labels(&args.labels)?,
        app: args.app,
        handler: args.handler,
        paused: args.paused,
        ..ListJobs::default()
    };
    let most = args.limit.map_or(Ok(usize::MAX), limit)?;
    with_client(config, |client| async move {
        let turn = |request: &mut ListJobs, after, left: usize| {
            request.after = after;
            request.limit = Some(left.min(500));
        };
        let page =
            client.pages::<_, JobView>(("job", "list"), request, turn, (args.after, most)).await?;
        let now = clock.now();
        output.print(&page, |page| {
            if page.items.is_empty() {
                output.note("no jobs; `taskparty job apply -f FILE` saves some");
                return String::new();
            }
            let mut table =
                Table::new(&["id", "state", "next fire", "app", "handler", "revision", "title"]);
            for job in &page.items {
                table.row(row(job, now));
            }
            table.text()
        })?;
        Ok(Exit::Done)
    })
    .await
}

fn row(job: &JobView, now: chrono::DateTime<chrono::Utc>) -> [String; 7] {
    let field = |name: &str| {
        let spec = job.spec.as_ref();
        spec.and_then(|spec| spec.get(name))
            .and_then(|value| value.as_str())
            .unwrap_or_default()
            .to_owned()
    };
    let next = job.next_fire.map(|at| format!("{} ({})", shown_time(at), ago(at, now)));
    [
        job.id.clone(),
        state(job).into(),
        next.unwrap_or_else(|| "-".into()),
        field("app"),
        field("handler"),
        job.revision.to_string(),
        job.broken.clone().map_or_else(|| field("title"), |why| format!("BROKEN: {why}")),
    ]
}

fn state(job: &JobView) -> &'static str {
    match (&job.broken, job.paused) {
        (Some(_), _) => "broken",
        (None, true) => "paused",
        (None, false) => "active",
    }
}

async fn get(args: OneJobArgs, config: &Config, output: Output, clock: &Clock) -> Outcome {
    with_client(config, |client| async move {
        let job: JobView =
            client.call("job", "get", &OneJob { id: args.id, by: client.by() }).await?;
        match (output.format(), &job.spec, &job.broken) {
            (Format::Yaml, Some(spec), _) => output.print(spec, |_| String::new())?,
            (Format::Table, _, None) => output.raw(&people(&job, clock))?,
            (Format::Json, ..) => output.print(&job, |_| String::new())?,
            (_, _, why) => {
                let why = why.clone().unwrap_or_default();
                return Err(Failure::could_not(format!(
                    "the stored definition of {} is broken: {why}",
                    job.id
                )));
            }
        }
        Ok(Exit::Done)
    })
    .await
}

fn people(job: &JobView, clock: &Clock) -> String {
    let mut table = Table::bare();
    table.row(["job", &job.id]);
    table.row(["state", state(job)]);
    table.row(["revision".to_owned(), job.revision.to_string()]);
    if let Some(at) = job.next_fire {
        table.row([
            "next fire".to_owned(),
            format!("{} ({})", shown_time(at), ago(at, clock.now())),
        ]);
    }
    if let Some(meta) = &job.meta {
        table.row(["created".to_owned(), shown_time(meta.created_at)]);
        table.row([
            "updated".to_owned(),
            format!("{} by {}", shown_time(meta.updated_at), meta.updated_by),
        ]);
        if let Some(paused) = &meta.paused {
            let until = paused
                .until
                .map(|until| format!(" until {}", shown_time(until)))
                .unwrap_or_default();
            let what = format!(
                "since {} by {}{until} {}",
                shown_time(paused.at),
                paused.by,
                paused.reason
            );
            table.row(["paused".to_owned(), what]);
        }
    }
    let spec = job.spec.as_ref().and_then(|spec| spec.as_object());
    for (field, value) in spec.into_iter().flatten().filter(|(field, _)| *field != "id") {
        table.row([field.clone(), value.as_str().map_or_else(|| value.to_string(), str::to_owned)]);
    }
    table.text()
}

async fn pause(args: PauseArgs, config: &Config, output: Output, clock: &Clock) -> Outcome {
    let until =
        args.until.as_ref().map(|text| instant_or_in("--until", text, clock.now())).transpose()?;
    with_client(config, |client| async move {
        let request = PauseJob {
            id: args.id,
            reason: args.reason.unwrap_or_default(),
            until,
            by: client.by(),
        };
        let edited: Edited = client.call("job", "pause", &request).await?;
        said(&edited, "paused", "is paused already", output)
    })
    .await
}

async fn edit(
    verb: &str,
    done: &str,
    not_done: &str,
    args: OneJobArgs,
    config: &Config,
    output: Output,
) -> Outcome {
    with_client(config, |client| async move {
        let request = OneJob { id: args.id, by: client.by() };
        let edited: Edited = client.call("job", verb, &request).await?;
        said(&edited, done, not_done, output)
    })
    .await
}

fn said(edited: &Edited, done: &str, not_done: &str, output: Output) -> Outcome {
    output.print(edited, |edited| {
        if edited.changed {
            format!("{} {done}", edited.id)
        } else {
            format!("{} {not_done}", edited.id)
        }
    })?;
    warn_unconfirmed(&edited.confirmation, output);
    Ok(Exit::Done)
}

/// The change is saved; that not all schedulers have shown it yet is worth a word.
fn warn_unconfirmed(confirmation: &Confirmation, output: Output) {
    if !confirmation.confirmed {
        output.warn(&format!(
            "saved, but these schedulers have not confirmed that they go by it: {}; a fire of the old definition may still happen (see `taskparty scheduler list`)",
            confirmation.waiting_for.join(", ")
        ));
    }
}
