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
use crate::output::{Output, folded};

/// How wide what is said of a check may be: the whole line has less than 120 columns.
const WIDTH: usize = 100;

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
    output.print(&diagnosis, |diagnosis| diagnosis.items.iter().map(people).collect())?;
    let failed = diagnosis.items.iter().any(|check| check.verdict == Verdict::Fail);
    Ok(if failed { Exit::Unsuccessful } else { Exit::Done })
}

/// `ok    jobs        4 jobs, none broken`, and below it what to do.
fn people(check: &Check) -> String {
    let word = match check.verdict {
        Verdict::Ok => "ok",
        Verdict::Warn => "warn",
        Verdict::Fail => "FAIL",
    };
    let mut lines = folded(&check.what, WIDTH);
    let todo = folded(&check.todo, WIDTH - 2);
    let lead = |n: usize| if n == 0 { "→ " } else { "  " };
    lines.extend(todo.iter().enumerate().map(|(n, line)| format!("{}{line}", lead(n))));
    let mut text = String::new();
    for (n, line) in lines.iter().enumerate() {
        let (word, check) = if n == 0 { (word, check.check.as_str()) } else { ("", "") };
        text.push_str(&format!("{word:<5} {check:<12} {line}\n"));
    }
    text
}

async fn diagnose(config: &Config, clock: &Clock) -> Diagnosis {
    let now = clock.now();
    let mut found = Diagnosis { items: Vec::new(), next: None, now };
    let nats = match connect(&config.nats).await {
        Ok(nats) => nats,
        Err(error) => {
            let todo = "mend this first; nothing else was checked";
            found.items.push(Check::fail("nats", error.to_string(), todo));
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
            // It says what to do by itself.
            found.items.push(Check::fail("api", failure.problem.detail, ""));
        }
    }
    client.close().await;
    found
}
