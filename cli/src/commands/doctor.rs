//! `doctor`: checks, each with what to do about it; and with `--audit` the audit.

use chrono::TimeDelta;
use taskparty_common::schedule::tzdata_version;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::connect;
use taskparty_scheduler::api::wire::{Check, Diagnosis, Nothing, Verdict};

use super::{Outcome, audit};
use crate::args::DoctorArgs;
use crate::client::Client;
use crate::config::Config;
use crate::failure::Exit;
use crate::output::{Output, Table};

/// A larger difference between two clocks is said.
const CLOCKS: TimeDelta = TimeDelta::seconds(2);

/// Checks what can be checked; exit code 3 when something fails.
pub(crate) async fn run(
    args: DoctorArgs,
    config: &Config,
    output: Output,
    clock: &Clock,
) -> Outcome {
    if args.audit {
        return audit::run(args, config, output, clock).await;
    }
    let diagnosis = diagnose(config, clock).await;
    output.print(&diagnosis, |diagnosis| {
        let mut table = Table::new(&["", "check", "found", "to do"]);
        for check in &diagnosis.items {
            let word = match check.verdict {
                Verdict::Ok => "ok",
                Verdict::Warn => "warn",
                Verdict::Fail => "FAIL",
            };
            table.row([word, &check.check, &check.what, &check.todo]);
        }
        table.text()
    })?;
    let failed = diagnosis.items.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if failed { Exit::Unsuccessful } else { Exit::Done })
}

async fn diagnose(config: &Config, clock: &Clock) -> Diagnosis {
    let now = clock.now();
    let mut found = Diagnosis { items: Vec::new(), next: None, now };
    let nats = match connect(&config.nats).await {
        Ok(nats) => nats,
        Err(error) => {
            found.items.push(Check::fail(
                "nats",
                error.to_string(),
                "mend the connection first; nothing else was checked",
            ));
            return found;
        }
    };
    let server = nats.server();
    found.items.push(Check::ok(
        "nats",
        format!("{} {} at {}", server.name, server.version, config.nats.shown_url()),
    ));
    let versions = format!("taskparty {}, tzdata {}", env!("CARGO_PKG_VERSION"), tzdata_version());
    found.items.push(Check::ok("this client", versions));
    let client = Client::on(nats, config.who.clone());
    match client.call::<Diagnosis>("doctor", "run", &Nothing {}).await {
        Ok(theirs) => {
            let difference = (theirs.now - clock.now()).abs();
            found.items.extend(theirs.items);
            if difference > CLOCKS {
                let what = format!(
                    "this machine and the node that answered differ by {} s",
                    difference.num_seconds()
                );
                found.items.push(Check::warn("clock", what, "set the clocks with NTP"));
            }
        }
        Err(failure) => {
            found.items.push(Check::fail(
                "api",
                failure.problem.detail,
                "start a node with the role api: `taskparty serve`",
            ));
        }
    }
    client.close().await;
    found
}
