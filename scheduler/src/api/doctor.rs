//! `doctor.run`: checks of the installation, each with what to do about what was found.

use chrono::TimeDelta;
use taskparty_common::schedule::tzdata_version;
use taskparty_nats::history::{consumer_info, stream_info};
use taskparty_nats::subject::{Bucket, LOG_WRITER, SCHEDULERS};

use super::definitions::unreadable;
use super::problem::Problem;
use super::wire::{Check, Diagnosis, Executors, Nothing, Schedulers};
use super::{Api, live, topology};

/// A stream that is fuller than this will refuse, or drop, before long. Per cent.
const FULL: u64 = 80;

/// More results than this waiting mean that history is behind.
const LAG: u64 = 10_000;

/// A clock that is off by more stops a scheduler from firing.
const CLOCKS: TimeDelta = TimeDelta::seconds(2);

/// Runs every check; one that cannot be made says so and fails.
pub(super) async fn run(api: &Api, _: Nothing) -> Result<Diagnosis, Problem> {
    let mut items = vec![Check::ok(
        "versions",
        format!("node: taskparty {}, tzdata {}", env!("CARGO_PKG_VERSION"), tzdata_version()),
    )];
    items.push(topology_is_right(api).await);
    items.extend(streams_have_room(api).await);
    items.push(schedulers_live(api).await);
    items.push(executors_live(api).await);
    items.push(log_writer_follows(api).await);
    items.push(triggers_are_taken(api).await);
    items.push(history_answers(api).await);
    items.push(jobs_are_sound(api).await);
    items.push(clock_is_right(api).await);
    Ok(Diagnosis { items, next: None, now: api.clock.now() })
}

fn cannot(check: &str, problem: Problem) -> Check {
    // What could not be done says what to do by itself.
    Check::fail(check, format!("could not be checked: {problem}"), "")
}

async fn topology_is_right(api: &Api) -> Check {
    const NAME: &str = "topology";
    match topology::show(api, Nothing {}).await {
        Err(problem) => cannot(NAME, problem),
        Ok(found) => {
            let wrong: Vec<&str> = found
                .items
                .iter()
                .filter(|item| item.state != "ok" && item.state != topology::LATER)
                .map(|item| item.name.as_str())
                .collect();
            if wrong.is_empty() {
                Check::ok(
                    NAME,
                    format!(
                        "{} streams, buckets and consumers as they should be",
                        found.items.len()
                    ),
                )
            } else {
                let todo =
                    "`taskparty topology show` says what; `taskparty topology apply` mends it";
                Check::warn(NAME, format!("missing or different: {}", wrong.join(", ")), todo)
            }
        }
    }
}

async fn streams_have_room(api: &Api) -> Vec<Check> {
    const NAME: &str = "room";
    let names = api.nats.names();
    let mut checks = Vec::new();
    let streams = [
        names.results_stream(),
        names.triggers_stream(),
        names.logs_stream(),
        names.alerts_stream(),
    ];
    for stream in streams {
        match stream_info(api.nats.js(), &stream).await {
            Err(error) => checks.push(cannot(NAME, unreadable(error))),
            Ok(info) => {
                let percent =
                    info.max_bytes.map(|most| info.bytes.saturating_mul(100) / most.max(1));
                // The oldest lines of a log make room by themselves.
                let full = percent.is_some_and(|percent| percent > FULL)
                    && stream == names.results_stream();
                if full {
                    let what = format!("{stream} is {}% full", percent.unwrap_or(0));
                    let todo = "results are refused when it is full: see that the log writer runs, or allow it more";
                    checks.push(Check::warn(NAME, what, todo));
                }
            }
        }
    }
    if checks.is_empty() {
        checks.push(Check::ok(NAME, "all streams have room"));
    }
    checks
}

async fn schedulers_live(api: &Api) -> Check {
    const NAME: &str = "schedulers";
    let found: Result<Schedulers, Problem> = live::schedulers(api, Nothing {}).await;
    match found {
        Err(problem) => cannot(NAME, problem),
        Ok(found) if found.items.is_empty() => Check::fail(
            NAME,
            "none is live: no job fires",
            "start one: `taskparty serve --roles scheduler`",
        ),
        Ok(found) => {
            let mut versions: Vec<&str> =
                found.items.iter().map(|entry| entry.version.as_str()).collect();
            versions.sort_unstable();
            versions.dedup();
            let what = format!("{} live, version {}", found.items.len(), versions.join(" and "));
            if versions.len() == 1 {
                Check::ok(NAME, what)
            } else {
                Check::warn(NAME, what, "bring all nodes to one version when the update is done")
            }
        }
    }
}

async fn executors_live(api: &Api) -> Check {
    const NAME: &str = "executors";
    let found: Result<Executors, Problem> = live::executors(api, Nothing {}).await;
    match found {
        Err(problem) => cannot(NAME, problem),
        Ok(found) if found.items.is_empty() => Check::warn(
            NAME,
            "none is live: fires wait for one, and then fail",
            "start the services that run the jobs",
        ),
        Ok(found) => Check::ok(NAME, format!("{} live", found.items.len())),
    }
}

async fn log_writer_follows(api: &Api) -> Check {
    const NAME: &str = "log writer";
    let stream = api.nats.names().results_stream();
    match consumer_info(api.nats.js(), &stream, LOG_WRITER).await {
        Err(error) => cannot(NAME, unreadable(error)),
        Ok(None) => Check::fail(
            NAME,
            "its consumer is missing",
            "`taskparty topology apply`, then restart the node",
        ),
        Ok(Some(info)) if info.waiting == 0 && info.pending > 0 => {
            let what = format!("nobody takes results; {} wait", info.pending);
            Check::fail(
                NAME,
                what,
                "start one: `taskparty serve --roles log-writer`; nothing is lost meanwhile",
            )
        }
        Ok(Some(info)) if info.pending > LAG => Check::warn(
            NAME,
            format!("{} results wait to be written", info.pending),
            "history is behind: look at the disk and the log of the log writer",
        ),
        Ok(Some(info)) => Check::ok(NAME, format!("{} results wait", info.pending)),
    }
}

async fn triggers_are_taken(api: &Api) -> Check {
    const NAME: &str = "triggers";
    let stream = api.nats.names().triggers_stream();
    match consumer_info(api.nats.js(), &stream, SCHEDULERS).await {
        Err(error) => cannot(NAME, unreadable(error)),
        Ok(None) => Check::fail(
            NAME,
            "their consumer is missing",
            "`taskparty topology apply`, then restart the node",
        ),
        Ok(Some(info)) if info.waiting == 0 && info.pending > 0 => Check::fail(
            NAME,
            format!("nobody takes them; {} wait", info.pending),
            "start a scheduler: `taskparty serve --roles scheduler`",
        ),
        Ok(Some(info)) => Check::ok(NAME, format!("{} wait", info.pending)),
    }
}

async fn history_answers(api: &Api) -> Check {
    const NAME: &str = "history";
    let store = match api.history.store().await {
        Ok(store) => store,
        Err(problem) => {
            let todo = "`taskparty run …` answers nothing until then; firing goes on";
            return Check::fail(NAME, problem.detail, todo);
        }
    };
    match store.runs(&crate::store::RunFilter { limit: Some(1), ..Default::default() }).await {
        Ok(_) => Check::ok(NAME, format!("{} answers", store.path().display())),
        Err(error) => {
            Check::fail(NAME, error.to_string(), "mend the store; results wait in NATS meanwhile")
        }
    }
}

async fn jobs_are_sound(api: &Api) -> Check {
    const NAME: &str = "jobs";
    match api.definitions.all().await {
        Err(problem) => cannot(NAME, problem),
        Ok(jobs) => {
            let broken: Vec<&str> = jobs
                .iter()
                .filter(|(_, stored)| stored.job().is_some_and(|job| job.is_err()))
                .map(|(id, _)| id.as_str())
                .collect();
            if broken.is_empty() {
                Check::ok(NAME, format!("{} jobs, none broken", jobs.len()))
            } else {
                let todo = "they do not fire: apply them again, or delete them; `taskparty job list` says what is wrong";
                Check::fail(NAME, format!("broken: {}", broken.join(", ")), todo)
            }
        }
    }
}

/// The heartbeats of live schedulers carry the server's time; the latest is at most a second or
/// so old.
async fn clock_is_right(api: &Api) -> Check {
    const NAME: &str = "clock";
    match api.buckets.entries(Bucket::Schedulers, ">").await {
        Err(error) => cannot(NAME, unreadable(error)),
        Ok(entries) => {
            let Some(latest) = entries.iter().map(|entry| entry.created).max() else {
                return Check::ok(NAME, "nothing to compare it with");
            };
            let behind = latest - api.clock.now();
            // The other way round a late heartbeat looks the same, up to its time to live.
            if behind > CLOCKS || -behind > CLOCKS + TimeDelta::seconds(4) {
                let what = format!(
                    "the node's clock and the NATS server's differ by about {} s",
                    behind.num_seconds().abs()
                );
                Check::fail(
                    NAME,
                    what,
                    "set the clocks with NTP: a scheduler whose clock is off does not fire",
                )
            } else {
                Check::ok(NAME, "the node's and the NATS server's agree")
            }
        }
    }
}
