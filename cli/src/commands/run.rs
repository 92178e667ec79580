//! `taskparty run …`

mod ask;
pub(super) mod wait;

use std::time::Duration;

use chrono::TimeDelta;
use serde_json::Value;
use taskparty_common::duration;
use taskparty_common::outcome::RunState;
use taskparty_nats::clock::Clock;
use taskparty_scheduler::api::wire::{ListRuns, LogLine, LogPage, OneRun, Problem, RunLogs};

use super::{Outcome, limit, with_client};
use crate::args::{ListRunsArgs, LogsArgs, OneRunArgs, RunCommand};
use crate::client::Client;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::output::{Format, Output, Table, ago, in_words, shown_time};

/// How often `run logs -f` looks.
const FOLLOW: Duration = Duration::from_millis(500);

/// Runs a `run` command.
pub(crate) async fn run(
    command: RunCommand,
    config: &Config,
    output: Output,
    clock: &Clock,
) -> Outcome {
    match command {
        RunCommand::List(args) => list(args, config, output, clock).await,
        RunCommand::Get(args) => get(args, config, output, clock).await,
        RunCommand::Logs(args) => logs(args, config, output).await,
        RunCommand::Cancel(args) => ask::cancel(args, config, output).await,
        RunCommand::Retry(args) => ask::retry(args, config, output).await,
    }
}

async fn list(args: ListRunsArgs, config: &Config, output: Output, clock: &Clock) -> Outcome {
    if let Some(word) = &args.state
        && RunState::from_word(word).is_none()
    {
        let known: Vec<&str> = RunState::ALL.iter().map(|(word, _)| *word).collect();
        return Err(Problem::field(
            "--state",
            Some(format!("{word:?}")),
            format!("it is one of {}", known.join(", ")),
        )
        .into());
    }
    let since = match &args.since {
        None => None,
        Some(text) => {
            let time = duration::parse(text)
                .map_err(|error| Problem::field("--since", None, error.to_string()))?;
            TimeDelta::from_std(time).ok().and_then(|time| clock.now().checked_sub_signed(time))
        }
    };
    let most = limit(args.limit)?;
    let request = ListRuns { job: args.job, state: args.state, since, ..ListRuns::default() };
    with_client(config, |client| async move {
        let turn = |request: &mut ListRuns, after, left: usize| {
            request.after = after;
            request.limit = Some(left.min(200));
        };
        // The rows stay JSON: what a newer service adds is handed on as it is.
        let page = client.pages::<_, Value>(("run", "list"), request, turn, (args.after, most)).await?;
        output.print(&page, |page| {
            if page.items.is_empty() {
                output.note("no runs");
                return String::new();
            }
            let mut table = Table::new(&["run", "job", "state", "due", "took", "trigger", "shards", "attempts", "why"]);
            for run in &page.items {
                table.row(row(run, clock));
            }
            if page.next.is_some() {
                output.note("there are more: ask for them with --limit, or fewer with --job, --state, --since");
            }
            table.text()
        })?;
        Ok(Exit::Done)
    })
    .await
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn number(value: &Value, field: &str) -> String {
    value.get(field).and_then(Value::as_u64).map_or_else(|| "-".into(), |number| number.to_string())
}

fn time(value: &Value, field: &str) -> Option<chrono::DateTime<chrono::Utc>> {
    value.get(field).and_then(|value| serde_json::from_value(value.clone()).ok())
}

fn took(value: &Value) -> String {
    match (time(value, "started_at"), time(value, "ended_at")) {
        (Some(began), Some(ended)) => in_words(ended - began),
        _ => "-".into(),
    }
}

/// Where an attempt is; `moved`: its executor had gone, and the next attempt is another's.
fn state(attempt: &Value) -> String {
    let moved = attempt.get("moved").and_then(Value::as_bool).unwrap_or_default();
    format!("{}{}", text(attempt, "state"), if moved { ", moved" } else { "" })
}

/// How far the handler said it is, as `30/100 rows`.
fn progress(attempt: &Value) -> String {
    let Some(progress) = attempt.get("progress").filter(|progress| progress.is_object()) else {
        return "-".into();
    };
    let mut shown = number(progress, "done");
    if progress.get("total").is_some_and(Value::is_u64) {
        shown.push_str(&format!("/{}", number(progress, "total")));
    }
    format!("{shown} {}", text(progress, "note")).trim_end().to_owned()
}

/// Why a run is as it is. What became of its trigger explains nothing any more once it was retried by
/// hand, and what it was to wait for nothing once it has ended.
fn why(run: &Value) -> String {
    let code = text(run, "code");
    if was_retried(run) {
        return code.to_owned();
    }
    let (reason, message) = (text(run, "skip_reason"), text(run, "trigger_message"));
    let ended = RunState::from_word(text(run, "state")).is_some_and(|state| state.is_terminal());
    let nobody = message.split_once(" is there; it waits for one, for at most ");
    let came;
    let message = match (text(run, "trigger_result"), nobody) {
        ("queued", Some((nobody, wait))) if ended && code == "no_executor" => {
            came = format!("{nobody} came within {wait}");
            &came
        }
        ("queued", _) if ended => "",
        // Records of before say the reason in the message, too.
        ("skipped", _) if message.starts_with("skipped: ") => message
            .trim_start_matches("skipped: ")
            .trim_start_matches(reason)
            .trim_start_matches(", "),
        _ => message,
    };
    // `cancelled by ada before …` says the reason itself.
    let reason = if message.starts_with(reason) { "" } else { reason };
    let parts = [reason, code, message].into_iter().filter(|part| !part.is_empty());
    parts.collect::<Vec<_>>().join(": ")
}

fn was_retried(run: &Value) -> bool {
    run.get("round").is_some_and(|round| round.as_u64() > Some(0))
}

/// The state, and that a run which goes on is to stop.
fn run_state(run: &Value) -> String {
    let state = text(run, "state");
    let open = RunState::from_word(state).is_some_and(|state| !state.is_terminal());
    if open && !text(run, "cancel_requested_at").is_empty() {
        return format!("{state}, cancel requested");
    }
    state.to_owned()
}

fn row(run: &Value, clock: &Clock) -> [String; 9] {
    let due = time(run, "fire_time");
    [
        text(run, "run").into(),
        text(run, "job").into(),
        run_state(run),
        due.map_or_else(
            || "-".into(),
            |at| format!("{} ({})", shown_time(at), ago(at, clock.now())),
        ),
        took(run),
        text(run, "trigger").into(),
        number(run, "shards"),
        number(run, "attempts"),
        why(run),
    ]
}

async fn get(args: OneRunArgs, config: &Config, output: Output, clock: &Clock) -> Outcome {
    with_client(config, |client| async move {
        let OneRunArgs { run, job, key } = args;
        let run: Value = client.call("run", "get", &OneRun { run, job, key }).await?;
        output.print(&run, |run| people(run, clock))?;
        Ok(Exit::Done)
    })
    .await
}

fn people(run: &Value, clock: &Clock) -> String {
    let mut head = Table::bare();
    head.row(["run", text(run, "run")]);
    for field in ["job", "app", "handler"] {
        if !text(run, field).is_empty() {
            head.row([field, text(run, field)]);
        }
    }
    head.row(["state".to_owned(), run_state(run)]);
    for field in ["trigger", "trigger_result", "owner", "lock"] {
        let is_past = field == "trigger_result" && was_retried(run);
        if !text(run, field).is_empty() && !is_past {
            head.row([field, text(run, field)]);
        }
    }
    // What it waits for now is nearer to the truth than what it was said to wait for at first.
    match text(run, "waits") {
        "" if why(run).is_empty() => {}
        "" => head.row(["why".to_owned(), why(run)]),
        waits => head.row(["waits".to_owned(), waits.to_owned()]),
    }
    let dated = |at| format!("{} ({})", shown_time(at), ago(at, clock.now()));
    for field in ["fire_time", "fired_at", "started_at", "ended_at"] {
        if let Some(at) = time(run, field) {
            head.row([field.to_owned(), dated(at)]);
        }
    }
    if was_retried(run) {
        head.row(["retried by hand".to_owned(), number(run, "round")]);
    }
    if let Some(at) = time(run, "cancel_requested_at") {
        let by = Some(text(run, "cancel_requested_by")).filter(|by| !by.is_empty());
        let by = by.map(|by| format!(" by {by}")).unwrap_or_default();
        head.row(["cancel_requested".to_owned(), format!("{}{by}", dated(at))]);
    }
    if let Some(params) = run.get("params").filter(|params| !params.is_null()) {
        head.row(["params".to_owned(), params.to_string()]);
    }
    let mut parts = vec![head.text()];
    let tries = run.get("tries").and_then(Value::as_array);
    if let Some(tries) = tries.filter(|tries| !tries.is_empty()) {
        let mut table = Table::new(&[
            "shard", "attempt", "state", "took", "progress", "instance", "code", "message",
            "output",
        ]);
        for attempt in tries {
            let output = attempt.get("output").filter(|output| !output.is_null());
            table.row([
                number(attempt, "shard"),
                number(attempt, "attempt"),
                state(attempt),
                took(attempt),
                progress(attempt),
                text(attempt, "instance").into(),
                text(attempt, "code").into(),
                text(attempt, "message").into(),
                output.map(ToString::to_string).unwrap_or_default(),
            ]);
        }
        parts.push(table.text());
    }
    let alerts = run.get("alerts").and_then(Value::as_array);
    if let Some(alerts) = alerts.filter(|alerts| !alerts.is_empty()) {
        let mut table = Table::new(&["alert", "at", "message"]);
        for alert in alerts {
            table.row([text(alert, "kind"), text(alert, "at"), text(alert, "message")]);
        }
        parts.push(table.text());
    }
    parts.join("\n\n")
}

async fn logs(args: LogsArgs, config: &Config, output: Output) -> Outcome {
    with_client(config, |client| async move {
        if args.follow {
            return follow(&client, args.run, output).await;
        }
        let mut all: Vec<LogLine> = Vec::new();
        let mut after_seq = 0;
        let ended = loop {
            let page = page(&client, &args.run, after_seq).await?;
            all.extend(page.items);
            match page.next {
                Some(next) => after_seq = next,
                None => break page.ended,
            }
        };
        let page = LogPage { items: all, next: None, ended };
        output.print(&page, |page| page.items.iter().map(people_line).collect())?;
        Ok(Exit::Done)
    })
    .await
}

async fn page(client: &Client, run: &OneRunArgs, after_seq: u64) -> Result<LogPage, Failure> {
    let (run, job, key) = (run.run.clone(), run.job.clone(), run.key.clone());
    client.call("run", "logs", &RunLogs { run, job, key, after_seq, limit: None }).await
}

/// Prints lines as they come, one JSON object a line where JSON was asked for, until the run ends.
async fn follow(client: &Client, run: OneRunArgs, output: Output) -> Outcome {
    let mut after_seq = 0;
    loop {
        let page = page(client, &run, after_seq).await?;
        for line in &page.items {
            after_seq = line.seq;
            match output.format() {
                Format::Table => output.raw(&people_line(line))?,
                _ => output.raw(&serde_json::to_string(line).unwrap_or_default())?,
            }
        }
        if page.next.is_some() {
            continue;
        }
        if page.ended {
            return Ok(Exit::Done);
        }
        tokio::time::sleep(FOLLOW).await;
    }
}

fn people_line(line: &LogLine) -> String {
    let place = match (line.shard, line.attempt) {
        (Some(shard), Some(attempt)) => format!("  shard {shard}, attempt {attempt} "),
        _ => String::new(),
    };
    let head = format!("{}{place} {:<5}", shown_time(line.at), line.level);
    line.text.trim_end().lines().map(|text| format!("{head} {text}\n")).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn why_a_run_is_as_it_is_holds_now_and_is_said_once() {
        let of = |run| why(&run);
        let run = json!({ "state": "skipped", "skip_reason": "overlap", "trigger_result": "skipped",
            "trigger_message": "skipped: overlap" });
        assert_eq!(of(run), "overlap");
        let mut run = json!({ "state": "skipped", "skip_reason": "misfire", "trigger_result": "skipped",
            "trigger_message": "skipped: misfire, 3 instants from 2027-01-31T09:00:00Z" });
        assert_eq!(of(run.clone()), "misfire: 3 instants from 2027-01-31T09:00:00Z");
        run["trigger_message"] = json!("cancelled by ada before it was dispatched");
        run["skip_reason"] = json!("cancelled");
        assert_eq!(of(run.clone()), "cancelled by ada before it was dispatched");
        run["round"] = json!(1);
        run["state"] = json!("succeeded");
        assert_eq!(of(run), "", "of a run that was retried by hand");

        let waits = "no executor of shop/settle is there; it waits for one, for at most 5s";
        let mut run =
            json!({ "state": "waiting", "trigger_result": "queued", "trigger_message": waits });
        assert_eq!(of(run.clone()), waits);
        run["code"] = json!("no_executor");
        run["state"] = json!("not_started");
        assert_eq!(of(run.clone()), "no_executor: no executor of shop/settle came within 5s");
        run["code"] = json!("handler_error");
        run["state"] = json!("failed");
        assert_eq!(of(run), "handler_error");
    }
}
