//! What happens in an installation, as it happens, one readable line an event.
//!
//! Plain subscriptions: this looks on, stores nothing, and holds nothing up. Whoever wants to know
//! what happened before asks `run list`.

mod order;

use anstyle::{AnsiColor, Style};
use async_nats::{Message, Subscriber};
use chrono::{DateTime, SecondsFormat, Utc};
use futures::StreamExt;
use futures::stream::{SelectAll, select_all};
use serde::de::DeserializeOwned;
use taskparty_common::dispatch::{Alert, ResultRecord};
use taskparty_common::fire::Fired;
use taskparty_common::outcome::{Outcome, Trigger, TriggerResult};
use taskparty_nats::connect::Nats;
use tokio::time::{Instant, sleep_until};

use self::order::Order;
use crate::failure::Failure;
use crate::output::{Colour, in_words};

/// Something that happened.
#[derive(Debug)]
pub(crate) enum Event {
    /// A trigger's result.
    Fired(Box<Fired>),
    /// A handler's result.
    Result(Box<ResultRecord>),
    /// An alert.
    Alert(Box<Alert>),
}

/// The events of an installation from now on.
#[derive(Debug)]
pub(crate) struct Events {
    messages: SelectAll<Subscriber>,
    /// What came and was not given out yet.
    order: Order,
    prefix: String,
}

impl Events {
    /// Begins to listen.
    pub(crate) async fn listen(nats: &Nats) -> Result<Self, Failure> {
        let names = nats.names();
        let mut subscribers = Vec::new();
        for subject in [names.fired_all(), names.result_all(), names.alert_all()] {
            let subscriber = nats.client().subscribe(subject).await;
            subscribers.push(subscriber.map_err(|error| {
                Failure::could_not(format!("cannot listen to events: {error}"))
            })?);
        }
        Ok(Self {
            messages: select_all(subscribers),
            order: Order::default(),
            prefix: format!("{}.", names.prefix()),
        })
    }

    /// The next event; none when the connection is closed.
    pub(crate) async fn next(&mut self) -> Option<Event> {
        loop {
            let now = Instant::now();
            if let Some(event) = self.order.next(now) {
                return Some(event);
            }
            let due = self.order.due();
            let turn = async {
                match due {
                    Some(due) => sleep_until(due).await,
                    None => std::future::pending().await,
                }
            };
            let message = tokio::select! {
                message = self.messages.next() => message?,
                () = turn => continue,
            };
            for event in read(&message, &self.prefix) {
                self.order.take_in(event, now);
            }
        }
    }
}

/// A message holds one object, or several, a line each. What cannot be read is left out.
fn read(message: &Message, prefix: &str) -> Vec<Event> {
    let kind = message.subject.strip_prefix(prefix).and_then(|rest| rest.split('.').next());
    match kind {
        Some("fired") => lines(&message.payload, |fired| Event::Fired(Box::new(fired))),
        Some("result") => lines(&message.payload, |result| Event::Result(Box::new(result))),
        Some("alert") => lines(&message.payload, |alert| Event::Alert(Box::new(alert))),
        _ => Vec::new(),
    }
}

fn lines<T: DeserializeOwned>(body: &[u8], event: impl Fn(T) -> Event) -> Vec<Event> {
    let lines = body.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.filter_map(|line| serde_json::from_slice(line).ok()).map(event).collect()
}

/// One line about an event, as `12:00:00.000  result  job  …`.
pub(crate) fn line(event: &Event, colour: Colour) -> String {
    let (at, kind, job, style, text) = match event {
        Event::Fired(fired) => {
            let again = fired.trigger == Trigger::Retry;
            let kind = if again { "retry" } else { "fired" };
            (
                fired.fired_at,
                kind,
                fired.job.to_string(),
                style_of_trigger(fired.result),
                fired_text(fired),
            )
        }
        Event::Result(result) => {
            let text = result_text(result);
            (result.finished_at, "result", result.job.to_string(), style_of(result.outcome), text)
        }
        Event::Alert(alert) => {
            let job = alert.job.as_ref().map(ToString::to_string).unwrap_or_default();
            (alert.at, "alert", job, Some(AnsiColor::Red), one_line(&alert.message))
        }
    };
    let plain = format!("{}  {kind:<6}  {job:<16}  {text}", clock(at));
    match (colour, style) {
        (Colour::On, Some(style)) => {
            let style = Style::new().fg_color(Some(style.into()));
            format!("{style}{plain}{style:#}")
        }
        _ => plain,
    }
}

fn clock(at: DateTime<Utc>) -> String {
    let text = at.to_rfc3339_opts(SecondsFormat::Millis, true);
    text.split_once('T').map_or(text.clone(), |(_, time)| time.to_owned())
}

fn style_of_trigger(result: TriggerResult) -> Option<AnsiColor> {
    match result {
        TriggerResult::Dispatched => None,
        TriggerResult::Queued | TriggerResult::Skipped => Some(AnsiColor::Yellow),
        _ => Some(AnsiColor::Red),
    }
}

fn style_of(outcome: Outcome) -> Option<AnsiColor> {
    match outcome {
        Outcome::Succeeded => Some(AnsiColor::Green),
        Outcome::Cancelled => Some(AnsiColor::Yellow),
        _ => Some(AnsiColor::Red),
    }
}

fn fired_text(fired: &Fired) -> String {
    let mut text = format!("{} ({})", fired.result, fired.trigger);
    if fired.trigger == Trigger::Retry {
        text = format!("attempt {} of shard {}", fired.plan.attempt, fired.plan.only.unwrap_or(0));
    } else if fired.plan.total > 1 {
        text.push_str(&format!(", {} shards", fired.plan.total));
    }
    if let Some(skipped) = &fired.skipped {
        text.push_str(&format!(", {}: {} instants", skipped.reason, skipped.count));
    }
    if !fired.message.is_empty() {
        text.push_str(&format!(": {}", one_line(&fired.message)));
    }
    format!("{text}  run {}", fired.run)
}

fn result_text(result: &ResultRecord) -> String {
    let mut text = result.outcome.to_string();
    if let Some(started_at) = result.started_at {
        text.push_str(&format!(" in {}", in_words(result.finished_at - started_at)));
    }
    if result.shard.total > 1 {
        text.push_str(&format!(", shard {} of {}", result.shard.index, result.shard.total));
    }
    if result.attempt > 1 {
        text.push_str(&format!(", attempt {}", result.attempt));
    }
    text.push_str(&format!(" on {}", result.instance));
    if let Some(code) = result.code {
        text.push_str(&format!(": {code}: {}", one_line(&result.message)));
    }
    text
}

fn one_line(text: &str) -> String {
    let line: String =
        text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(160).collect();
    line.trim_end().to_owned()
}
