//! `job trigger`: run a job now, or once at a time to come.

use serde_json::Value;
use taskparty_common::duration;
use taskparty_common::job::MAX_PARAMS;
use taskparty_nats::clock::Clock;
use taskparty_scheduler::api::wire::{Code, Problem, TriggerJob, Triggered};

use super::super::{Outcome, instant, run::wait, with_client};
use crate::args::TriggerArgs;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::output::{Format, Output, ago, shown_time};

/// Triggers the job, and prints the run's id.
pub(super) async fn run(
    args: TriggerArgs,
    config: &Config,
    output: Output,
    clock: &Clock,
) -> Outcome {
    if let Some(delay) = &args.delay {
        duration::parse(delay).map_err(|error| Problem::field("--in", None, error.to_string()))?;
    }
    let request = TriggerJob {
        id: args.id,
        params: args.params.as_deref().map(params).transpose()?,
        delay: args.delay,
        at: args.at.as_ref().map(|text| instant("--at", text)).transpose()?,
        key: args.key,
        instance: args.instance,
        overlap: args.overlap,
        by: config.who.clone(),
    };
    with_client(config, |client| async move {
        let triggered: Triggered = client.call("job", "trigger", &request).await?;
        if !triggered.created {
            output.note("this key was triggered before: this is the run that it made");
        } else if triggered.at > clock.now() {
            output.note(&format!(
                "due at {} ({})",
                shown_time(triggered.at),
                ago(triggered.at, clock.now())
            ));
        }
        if args.wait {
            if output.format() == Format::Table {
                output.raw(&triggered.run.to_string())?;
            }
            return wait::until_ended(&client, triggered.run, output, clock).await;
        }
        output.print(&triggered, |triggered| triggered.run.to_string())?;
        Ok(Exit::Done)
    })
    .await
}

fn params(text: &str) -> Result<Value, Failure> {
    let read;
    let json = match text.strip_prefix('@') {
        None => text,
        Some(path) => {
            read = std::fs::read_to_string(path).map_err(|error| {
                Failure::invalid(format!("--params: cannot read {path}: {error}"))
            })?;
            &read
        }
    };
    let params: Value = serde_json::from_str(json).map_err(|error| {
        let problem = format!("it is no JSON ({error}); a text needs quotes: '\"text\"'");
        Problem::field("--params", None, problem)
    })?;
    // Here too, and not by the service alone: what is far larger does not get through to it.
    let size = params.to_string().len();
    if size > MAX_PARAMS {
        let problem = format!("it has {size} bytes of JSON, the limit is {MAX_PARAMS}");
        let problem = Problem::field("--params", None, problem);
        return Err(Problem { code: Code::TooLarge, ..problem }.into());
    }
    Ok(params)
}
