//! From JSON to a checked [`JobSpec`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::Value;

use super::read::{Errors, Fields, Invalid, Unknown, read_duration, string};
use super::{
    AlertWhen, JobSpec, MAX_PARAMS, MAX_RUNNING, Misfire, MisfirePolicy, Overlap, QUEUE_LIMIT,
    route, schedule_field,
};
use crate::backoff::Retry;
use crate::name::{Handler, JobId};
use crate::priority::Priority;
use crate::rate::{Rate, RateError};

/// The most failed runs in a row that can be waited for.
const MAX_FAILURES: u32 = 1000;

/// The most jobs that can follow one.
const MAX_THEN: usize = 32;

const HOUR: Duration = Duration::from_secs(3600);
const NAME: &str = "write a name of 1 to 64 letters, digits, '-' or '_'";

impl JobSpec {
    /// Reads and checks a spec; finds everything that is wrong with it, not only the first.
    pub fn from_json(value: &Value, unknown: Unknown) -> Result<Self, Invalid> {
        let errors = Errors::default();
        let spec = Fields::of(value, "", unknown, &errors).and_then(read_spec);
        errors.or(spec)
    }
}

fn read_spec(mut fields: Fields<'_>) -> Option<JobSpec> {
    let id = fields.required("id", NAME);
    let title = fields.text("title", 200).unwrap_or_default();
    let description = fields.text("description", 4096).unwrap_or_default();
    let owner = fields.text("owner", 200).unwrap_or_default();
    let app = fields.required("app", NAME);
    let handler = fields.required("handler", NAME);
    let schedule = schedule_field::read(&mut fields);
    let params = fields.read("params", read_params).unwrap_or(Value::Null);
    let route = route::read_route(&mut fields);
    let shards = route::read_shards(&mut fields, &route);
    let shard_params = route::read_shard_params(&mut fields, &route, shards);
    let overlap = fields.choice("overlap", &Overlap::WORDS).unwrap_or_default();
    let queue_limit = fields.whole("queue_limit", 1..=10_000).unwrap_or(QUEUE_LIMIT);
    let max_running = fields.whole("max_running", 1..=MAX_RUNNING);
    if overlap == Overlap::Replace && max_running.is_some_and(|most| most > 1) {
        fields.fail(
            "max_running",
            "under overlap: replace there is one run at a time; leave it away",
        );
    }
    let rate = fields.read("rate", read_rate);
    let misfire = read_misfire(&mut fields);
    let retry = read_retry(&mut fields);
    let redeliveries = fields.whole("redeliveries", 0..=100).unwrap_or(2);
    let timeout = fields.read("timeout", read_timeout).unwrap_or(Some(HOUR));
    let start_deadline = fields.duration("start_deadline").unwrap_or(HOUR);
    let no_executor_wait = fields.duration("no_executor_wait").unwrap_or(Duration::from_secs(120));
    let priority = fields.whole("priority", 0..=Priority::MOST);
    let pause_after_failures = fields.whole("pause_after_failures", 1..=MAX_FAILURES);
    let then = fields.read("then", |value| read_then(value, id.as_ref())).unwrap_or_default();
    let alert = read_alert(&mut fields);
    let labels = fields.read("labels", read_labels).unwrap_or_default();
    if timeout.is_some_and(|timeout| timeout.is_zero()) {
        fields.fail("timeout", "an attempt needs some time; write none for no limit");
    }
    if handler.as_ref().is_some_and(|handler: &Handler| handler.as_str().starts_with("on_")) {
        fields.fail(
            "handler",
            "names that begin with on_ are the system's: consumers of pinned work",
        );
    }
    if start_deadline < Duration::from_secs(1) {
        fields.fail("start_deadline", "it is at least 1s");
    }
    fields.finish();
    Some(JobSpec {
        id: id?,
        title,
        description,
        owner,
        app: app?,
        handler: handler?,
        schedule,
        params,
        route,
        shards,
        shard_params,
        overlap,
        queue_limit,
        max_running,
        rate,
        misfire,
        retry,
        redeliveries,
        timeout,
        start_deadline,
        no_executor_wait,
        priority: priority.and_then(|number| Priority::new(number).ok()).unwrap_or_default(),
        pause_after_failures,
        then,
        alert,
        labels,
    })
}

/// The jobs that follow. Whether they exist, and lead back here, only shows when the job is saved.
fn read_then(value: &Value, own: Option<&JobId>) -> Result<Vec<JobId>, String> {
    let Value::Array(items) = value else {
        return Err("write a list of ids of jobs, as [send-report]".into());
    };
    if items.len() > MAX_THEN {
        return Err(format!("it has {} jobs, the limit is {MAX_THEN}", items.len()));
    }
    let mut then = Vec::with_capacity(items.len());
    for item in items {
        let id = JobId::new(string(item)?).map_err(|error| error.to_string())?;
        if Some(&id) == own {
            return Err("a job cannot follow itself".into());
        }
        if then.contains(&id) {
            return Err(format!("{id} is in it twice"));
        }
        then.push(id);
    }
    Ok(then)
}

fn read_rate(value: &Value) -> Result<Rate, String> {
    match value {
        Value::Number(number) => {
            Err(format!("a rate has a period: write {number}/s, {number}/m or {number}/h"))
        }
        _ => string(value)?.parse().map_err(|error: RateError| error.to_string()),
    }
}

fn read_params(value: &Value) -> Result<Value, String> {
    let size = value.to_string().len();
    if size > MAX_PARAMS {
        return Err(format!("it has {size} bytes of JSON, the limit is {MAX_PARAMS}"));
    }
    Ok(value.clone())
}

/// The outer `None` is an absent or broken field, the inner one no limit.
fn read_timeout(value: &Value) -> Result<Option<Duration>, String> {
    if value.as_str() == Some("none") {
        return Ok(None);
    }
    read_duration(value).map(Some).map_err(|problem| format!("{problem}, or none for no limit"))
}

fn read_misfire(fields: &mut Fields<'_>) -> Misfire {
    let mut misfire = Misfire::default();
    if let Some(mut inner) = fields.object("misfire") {
        if let Some(policy) = inner.choice("policy", &MisfirePolicy::WORDS) {
            misfire.policy = policy;
        }
        if let Some(grace) = inner.duration("grace") {
            misfire.grace = grace;
        }
        if let Some(window) = inner.duration("window") {
            misfire.window = window;
        }
        if misfire.window < misfire.grace {
            inner.fail("window", "it is at least as long as the grace");
        }
        inner.finish();
    }
    misfire
}

fn read_retry(fields: &mut Fields<'_>) -> Retry {
    let mut retry = Retry::default();
    if let Some(mut inner) = fields.object("retry") {
        retry.max = inner.whole("max", 0..=1000).unwrap_or(retry.max);
        retry.initial = inner.duration("initial").unwrap_or(retry.initial);
        retry.factor = inner.number("factor", 1.0..=100.0).unwrap_or(retry.factor);
        retry.cap = inner.duration("cap").unwrap_or(retry.cap.max(retry.initial));
        retry.jitter = inner.number("jitter", 0.0..=1.0).unwrap_or(retry.jitter);
        if retry.cap < retry.initial {
            inner.fail("cap", "it is at least as long as `initial`");
        }
        inner.finish();
    }
    retry
}

fn read_alert(fields: &mut Fields<'_>) -> Vec<AlertWhen> {
    let mut when = vec![AlertWhen::Failed];
    if let Some(mut inner) = fields.object("alert") {
        if let Some(words) =
            inner.choice_list("when", &[("failed", Some(AlertWhen::Failed)), ("recovered", None)])
        {
            if words.contains(&None) {
                inner.fail("when", "recovered: not yet; write [failed] or []");
            }
            when = words.into_iter().flatten().collect();
            when.sort_unstable();
            when.dedup();
        }
        if inner.raw("channels").is_some_and(|value| value.as_array().is_none_or(|c| !c.is_empty()))
        {
            inner.fail("channels", "not yet: alerts go to the NATS stream of alerts");
        }
        inner.finish();
    }
    when
}

fn read_labels(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let Value::Object(map) = value else {
        return Err("write names with texts, as {team: billing}".into());
    };
    if map.len() > 32 {
        return Err(format!("there are {} labels, the limit is 32", map.len()));
    }
    let mut labels = BTreeMap::new();
    for (name, value) in map {
        let sound = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if name.is_empty() || name.len() > 63 || !name.chars().all(sound) {
            return Err(format!("{name:?} is no label: use 1 to 63 letters, digits, - _ . or /"));
        }
        let text = string(value).map_err(|problem| format!("{name}: {problem}"))?;
        if text.chars().count() > 63 {
            return Err(format!("{name}: a label's text has at most 63 characters"));
        }
        labels.insert(name.clone(), text.into());
    }
    Ok(labels)
}
