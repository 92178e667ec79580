//! `job apply`: check everything, show what changes, change it.

use std::collections::BTreeSet;

use futures::{StreamExt, stream};
use serde::Serialize;
use taskparty_scheduler::api::wire::{
    Applied, AppliedAll, Apply, Change, Code, Confirmation, Edited, JobView, ListJobs, OneJob,
};

use super::super::{Outcome, labels, with_client};
use super::warn_unconfirmed;
use crate::args::ApplyArgs;
use crate::client::Client;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::files::{self, Found};
use crate::output::{Output, shown_time};

/// A request stays well below what NATS takes (1 MiB), its answer too.
const CHUNK_BYTES: usize = 300 * 1024;
const CHUNK_JOBS: usize = 200;

/// Deletions that wait at once.
const DELETIONS: usize = 16;

/// What the command prints.
#[derive(Debug, Serialize)]
struct Report {
    dry_run: bool,
    results: Vec<Applied>,
    deleted: Vec<String>,
    #[serde(flatten)]
    confirmation: Confirmation,
}

/// Applies the files of `args`.
pub(super) async fn run(args: ApplyArgs, config: &Config, output: Output) -> Outcome {
    let labels = labels(&args.labels)?;
    let found = files::read(&args.files)?;
    if args.check_revision.is_some() && found.len() != 1 {
        return Err(Failure::invalid(format!(
            "--check-revision is for one job, and there are {}",
            found.len()
        )));
    }
    with_client(config, |client| async move {
        // The service checks what only it can know, for all jobs, before the first is changed.
        let mut report = Report {
            dry_run: args.dry_run,
            results: send(&client, &args, found.iter().collect(), Mode::DryRun).await?.results,
            deleted: Vec::new(),
            confirmation: Confirmation { confirmed: true, waiting_for: Vec::new() },
        };
        if args.prune {
            report.deleted = superfluous(&client, &found, labels).await?;
        }
        for warning in report.results.iter().flat_map(|result| &result.warnings) {
            output.warn(warning);
        }
        if args.dry_run {
            output.print(&report, people)?;
            let changes = !report.deleted.is_empty()
                || report.results.iter().any(|r| r.change != Change::Unchanged);
            return Ok(if changes { Exit::Changes } else { Exit::Done });
        }
        let changed: BTreeSet<&str> = report
            .results
            .iter()
            .filter(|r| r.change != Change::Unchanged)
            .map(|r| r.id.as_str())
            .collect();
        let changed =
            found.iter().filter(|found| changed.contains(found.spec.id.as_str())).collect();
        let applied = send(&client, &args, changed, Mode::ForReal).await?;
        report.confirmation = applied.confirmation;
        for result in applied.results {
            if let Some(line) = report.results.iter_mut().find(|line| line.id == result.id) {
                *line = result;
            }
        }
        // Each waits until the schedulers go by it, so they wait together.
        let deletions = report.deleted.iter().map(|id| delete(&client, id));
        let mut deletions = stream::iter(deletions).buffer_unordered(DELETIONS);
        while let Some(edited) = deletions.next().await {
            merge(&mut report.confirmation, edited?.confirmation);
        }
        drop(deletions);
        output.print(&report, people)?;
        warn_unconfirmed(&report.confirmation, output);
        Ok(Exit::Done)
    })
    .await
}

async fn delete(client: &Client, id: &str) -> Result<Edited, Failure> {
    let request = OneJob { id: id.into(), by: client.by() };
    client.call("job", "delete", &request).await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    DryRun,
    ForReal,
}

async fn send(
    client: &Client,
    args: &ApplyArgs,
    found: Vec<&Found>,
    mode: Mode,
) -> Result<AppliedAll, Failure> {
    let confirmation = Confirmation { confirmed: true, waiting_for: Vec::new() };
    let mut all = AppliedAll { results: Vec::with_capacity(found.len()), confirmation };
    for chunk in chunks(&found) {
        let request = Apply {
            jobs: chunk.iter().map(|found| found.value.clone()).collect(),
            dry_run: mode == Mode::DryRun,
            paused: args.paused,
            check_revision: args.check_revision,
            by: client.by(),
        };
        let done = all.results.len();
        let answer: Result<AppliedAll, Failure> = client.call("job", "apply", &request).await;
        let answer = answer.map_err(|failure| located(failure, &found, mode, done))?;
        all.results.extend(answer.results);
        merge(&mut all.confirmation, answer.confirmation);
    }
    Ok(all)
}

fn merge(into: &mut Confirmation, other: Confirmation) {
    into.confirmed &= other.confirmed;
    for instance in other.waiting_for {
        if !into.waiting_for.contains(&instance) {
            into.waiting_for.push(instance);
        }
    }
}

fn chunks<'a>(found: &'a [&'a Found]) -> Vec<&'a [&'a Found]> {
    let mut chunks = Vec::new();
    let mut rest = found;
    while !rest.is_empty() {
        let mut bytes = 0;
        let mut take = 0;
        for found in rest.iter().take(CHUNK_JOBS) {
            bytes += found.value.to_string().len();
            if take > 0 && bytes > CHUNK_BYTES {
                break;
            }
            take += 1;
        }
        let (chunk, tail) = rest.split_at(take);
        chunks.push(chunk);
        rest = tail;
    }
    chunks
}

/// The service knows jobs; which file they are in is known here.
fn located(mut failure: Failure, found: &[&Found], mode: Mode, done: usize) -> Failure {
    let problem = &mut failure.problem;
    for error in &mut problem.errors {
        let job = found.iter().find(|found| error.job.as_deref() == Some(found.spec.id.as_str()));
        error.file = job.map(|found| found.place.clone());
    }
    if !problem.errors.is_empty() {
        let lines: Vec<String> = problem.errors.iter().map(ToString::to_string).collect();
        problem.detail = lines.join("\n");
    }
    let saved = problem.saved.map(|saved| done + saved);
    let became = match mode {
        Mode::DryRun => "nothing was changed".into(),
        Mode::ForReal => {
            let ids: Vec<&str> = found.iter().map(|found| found.spec.id.as_str()).collect();
            became(&ids, done, (saved, problem.code))
        }
    };
    problem.detail.push_str(&format!("\n{became}"));
    problem.saved = saved;
    failure
}

/// Which of the jobs that were to be saved are, when the piece after the first `done` failed.
fn became(ids: &[&str], done: usize, (saved, code): (Option<usize>, Code)) -> String {
    let id = |place: usize| ids.get(place).copied().unwrap_or_default();
    let sure = saved.unwrap_or(done);
    let first = match sure {
        0 => String::new(),
        1 => format!("{} was saved before this; ", id(0)),
        n => format!(
            "{n} of {} jobs were saved before this, in the order of the files, the last of them {}; ",
            ids.len(),
            id(n - 1)
        ),
    };
    let rest = match saved {
        Some(0) if code != Code::Unavailable => return "nothing was changed".into(),
        Some(n) if code == Code::Unavailable => {
            format!("whether {} was is not known, what comes after it was not", id(n))
        }
        Some(n) => format!("{} and what comes after it was not", id(n)),
        None => format!("whether {} and what comes after it was is not known", id(done)),
    };
    format!("{first}{rest}. To apply all of it again is safe: what is saved stays as it is")
}

/// The jobs that carry the labels and are in no file.
async fn superfluous(
    client: &Client,
    found: &[Found],
    labels: std::collections::BTreeMap<String, String>,
) -> Result<Vec<String>, Failure> {
    let request = ListJobs { labels, ..ListJobs::default() };
    let turn = |request: &mut ListJobs, after, _: usize| {
        request.after = after;
        request.limit = Some(500);
    };
    let page =
        client.pages::<_, JobView>(("job", "list"), request, turn, (None, usize::MAX)).await?;
    let kept: BTreeSet<&str> = found.iter().map(|found| found.spec.id.as_str()).collect();
    Ok(page.items.into_iter().map(|job| job.id).filter(|id| !kept.contains(id.as_str())).collect())
}

fn people(report: &Report) -> String {
    let mut text = String::new();
    let mut unchanged = 0;
    for result in &report.results {
        if result.change == Change::Unchanged {
            unchanged += 1;
            continue;
        }
        let word = match (report.dry_run, result.change) {
            (true, Change::Created) => "would create",
            (true, _) => "would update",
            (false, change) => change.as_str(),
        };
        text.push_str(&format!("{word} {}\n", result.id));
        for diff in result.diff.iter().filter(|_| result.change == Change::Updated) {
            let shown = |value: &Option<serde_json::Value>| {
                value.as_ref().map_or("(default)".into(), ToString::to_string)
            };
            text.push_str(&format!(
                "  {}: {} -> {}\n",
                diff.field,
                shown(&diff.before),
                shown(&diff.after)
            ));
        }
        if result.upcoming_before != result.upcoming_after {
            if result.change == Change::Updated {
                text.push_str(&format!("  was to fire next: {}\n", times(&result.upcoming_before)));
            }
            text.push_str(&format!("  fires next: {}\n", times(&result.upcoming_after)));
        }
    }
    let deleted = if report.dry_run { "would delete" } else { "deleted" };
    for id in &report.deleted {
        text.push_str(&format!("{deleted} {id}\n"));
    }
    let count = |change| report.results.iter().filter(|result| result.change == change).count();
    let (created, updated) = (count(Change::Created), count(Change::Updated));
    let deleted = report.deleted.len();
    text.push_str(&if report.dry_run {
        format!(
            "would create {created}, update {updated}, leave {unchanged} as they are, delete {deleted} \
             (dry run: nothing was changed)\n"
        )
    } else {
        format!("{created} created, {updated} updated, {unchanged} unchanged, {deleted} deleted\n")
    });
    text
}

fn times(times: &[chrono::DateTime<chrono::Utc>]) -> String {
    if times.is_empty() {
        return "(none known)".into();
    }
    times.iter().map(|at| shown_time(*at)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_a_piece_fails_it_is_said_which_jobs_are_saved() {
        let ids = ["a", "b", "c", "d"];
        for (done, saved, code, wanted) in [
            (0, Some(0), Code::Conflict, "nothing was changed"),
            (
                0,
                Some(1),
                Code::Conflict,
                "a was saved before this; b and what comes after it was not.",
            ),
            (
                0,
                Some(0),
                Code::Unavailable,
                "whether a was is not known, what comes after it was not.",
            ),
            (
                2,
                Some(3),
                Code::Conflict,
                "3 of 4 jobs were saved before this, in the order of the files, the last of them c; d and",
            ),
            (
                2,
                None,
                Code::Unavailable,
                "the last of them b; whether c and what comes after it was is not known.",
            ),
        ] {
            let said = became(&ids, done, (saved, code));
            assert!(said.contains(wanted), "{said}");
            assert_eq!(
                said.ends_with("what is saved stays as it is"),
                saved != Some(0) || code == Code::Unavailable,
                "{said}"
            );
        }
    }
}
