//! `executor list` and `scheduler list`: who is there.

use taskparty_nats::clock::Clock;
use taskparty_scheduler::api::wire::{Executors, Nothing, Schedulers};

use super::{Outcome, with_client};
use crate::config::Config;
use crate::failure::Exit;
use crate::output::{Output, Table, ago};

/// Prints the live executors.
pub(crate) async fn executors(config: &Config, output: Output, clock: &Clock) -> Outcome {
    with_client(config, |client| async move {
        let page: Executors = client.call("executor", "list", &Nothing {}).await?;
        output.print(&page, |page| {
            if page.items.is_empty() {
                output.note(
                    "no executor is live: a service becomes one with the crate taskparty-executor",
                );
                return String::new();
            }
            let mut table = Table::new(&[
                "app", "instance", "handler", "busy", "state", "host", "pid", "started",
            ]);
            for executor in &page.items {
                for (handler, entry) in &executor.handlers {
                    table.row([
                        executor.app.to_string(),
                        executor.instance.to_string(),
                        handler.to_string(),
                        format!("{}/{}", entry.running.len(), entry.slots),
                        if executor.draining { "draining".into() } else { "live".into() },
                        executor.host.clone(),
                        executor.pid.to_string(),
                        ago(executor.started_at, clock.now()),
                    ]);
                }
            }
            table.text()
        })?;
        Ok(Exit::Done)
    })
    .await
}

/// Prints the live schedulers.
pub(crate) async fn schedulers(config: &Config, output: Output, clock: &Clock) -> Outcome {
    with_client(config, |client| async move {
        let page: Schedulers = client.call("scheduler", "list", &Nothing {}).await?;
        output.print(&page, |page| {
            if page.items.is_empty() {
                output.note("no scheduler is live: no job fires; start one with `taskparty serve`");
                return String::new();
            }
            let mut table = Table::new(&[
                "instance",
                "jobs",
                "jobs revision",
                "fires (last minute)",
                "late p50",
                "p99",
                "max",
                "version",
                "host",
                "pid",
                "started",
            ]);
            for scheduler in &page.items {
                table.row([
                    scheduler.instance.to_string(),
                    scheduler.jobs.to_string(),
                    scheduler.jobs_revision.to_string(),
                    scheduler.late.map_or(0, |late| late.fires).to_string(),
                    ms(scheduler.late.map(|late| late.p50_ms)),
                    ms(scheduler.late.map(|late| late.p99_ms)),
                    ms(scheduler.late.map(|late| late.max_ms)),
                    scheduler.version.clone(),
                    scheduler.host.clone(),
                    scheduler.pid.to_string(),
                    ago(scheduler.started_at, clock.now()),
                ]);
            }
            table.text()
        })?;
        Ok(Exit::Done)
    })
    .await
}

fn ms(time: Option<u64>) -> String {
    time.map_or_else(|| "-".into(), |ms| format!("{ms}ms"))
}
