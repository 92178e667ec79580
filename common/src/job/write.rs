//! From a [`JobSpec`] back to the form that users write.
//!
//! What has its default is left out, so that a spec reads as it was meant; the order of fields is
//! the contract's. *Invariant: reading what is written here gives an equal spec.*

use serde_json::{Map, Value, json};

use super::{JobSpec, Misfire, MisfirePolicy, Overlap, QUEUE_LIMIT, Route, Shards, schedule_field};
use crate::backoff::Retry;
use crate::duration::format;
use crate::name::{App, Handler, JobId};
use crate::priority::Priority;

impl JobSpec {
    /// The spec as JSON, as [`JobSpec::from_json`] takes it.
    pub fn to_json(&self) -> Value {
        let plain = Self::plain(self.id.clone(), self.app.clone(), self.handler.clone());
        let mut map = Map::new();
        let mut put = |field: &str, value: Value| {
            map.insert(field.into(), value);
        };
        put("id", json!(self.id));
        for (field, text) in
            [("title", &self.title), ("description", &self.description), ("owner", &self.owner)]
        {
            if !text.is_empty() {
                put(field, json!(text));
            }
        }
        put("app", json!(self.app));
        put("handler", json!(self.handler));
        if let Some(schedule) = &self.schedule {
            put("schedule", schedule_field::write(schedule));
        }
        if !self.params.is_null() {
            put("params", self.params.clone());
        }
        if self.route != plain.route {
            put("route", self.route.to_json());
        }
        if self.shards != plain.shards {
            put("shards", self.shards.to_json());
        }
        if !self.shard_params.is_empty() {
            put("shard_params", json!(self.shard_params));
        }
        if self.overlap != plain.overlap {
            let word = Overlap::WORDS.iter().find(|(_, overlap)| *overlap == self.overlap);
            put("overlap", json!(word.map(|(word, _)| word)));
        }
        if self.queue_limit != plain.queue_limit {
            put("queue_limit", json!(self.queue_limit));
        }
        if let Some(most) = self.max_running {
            put("max_running", json!(most));
        }
        if let Some(rate) = self.rate {
            put("rate", json!(rate.to_string()));
        }
        if self.misfire != plain.misfire {
            put("misfire", misfire_json(&self.misfire, &plain.misfire));
        }
        if self.retry != plain.retry {
            put("retry", retry_json(&self.retry, &plain.retry));
        }
        if self.redeliveries != plain.redeliveries {
            put("redeliveries", json!(self.redeliveries));
        }
        if self.timeout != plain.timeout {
            put("timeout", self.timeout.map_or(json!("none"), |timeout| json!(format(timeout))));
        }
        if self.start_deadline != plain.start_deadline {
            put("start_deadline", json!(format(self.start_deadline)));
        }
        if self.no_executor_wait != plain.no_executor_wait {
            put("no_executor_wait", json!(format(self.no_executor_wait)));
        }
        if self.priority != plain.priority {
            put("priority", json!(self.priority));
        }
        if let Some(failures) = self.pause_after_failures {
            put("pause_after_failures", json!(failures));
        }
        if !self.then.is_empty() {
            put("then", json!(self.then));
        }
        if self.alert != plain.alert {
            put(
                "alert",
                json!({ "when": self.alert.iter().map(|_| "failed").collect::<Vec<_>>() }),
            );
        }
        if !self.labels.is_empty() {
            put("labels", json!(self.labels));
        }
        Value::Object(map)
    }

    /// A job on demand with every default.
    pub fn plain(id: JobId, app: App, handler: Handler) -> Self {
        let hour = std::time::Duration::from_secs(3600);
        Self {
            id,
            title: String::new(),
            description: String::new(),
            owner: String::new(),
            app,
            handler,
            schedule: None,
            params: Value::Null,
            route: Route::default(),
            shards: Shards::Count(1),
            shard_params: Vec::new(),
            overlap: Overlap::default(),
            queue_limit: QUEUE_LIMIT,
            max_running: None,
            rate: None,
            misfire: Misfire::default(),
            retry: Retry::default(),
            redeliveries: 2,
            timeout: Some(hour),
            start_deadline: hour,
            no_executor_wait: std::time::Duration::from_secs(120),
            priority: Priority::default(),
            pause_after_failures: None,
            then: Vec::new(),
            alert: vec![super::AlertWhen::Failed],
            labels: std::collections::BTreeMap::new(),
        }
    }
}

fn misfire_json(misfire: &Misfire, plain: &Misfire) -> Value {
    let mut map = Map::new();
    if misfire.policy != plain.policy {
        let word = MisfirePolicy::WORDS.iter().find(|(_, p)| *p == misfire.policy).map(|(w, _)| *w);
        map.insert("policy".into(), json!(word));
    }
    for (field, value, default) in
        [("grace", misfire.grace, plain.grace), ("window", misfire.window, plain.window)]
    {
        if value != default {
            map.insert(field.into(), json!(format(value)));
        }
    }
    Value::Object(map)
}

fn retry_json(retry: &Retry, plain: &Retry) -> Value {
    let mut map = Map::new();
    if retry.max != plain.max {
        map.insert("max".into(), json!(retry.max));
    }
    for (field, value, default) in
        [("initial", retry.initial, plain.initial), ("cap", retry.cap, plain.cap)]
    {
        if value != default {
            map.insert(field.into(), json!(format(value)));
        }
    }
    for (field, value, default) in
        [("factor", retry.factor, plain.factor), ("jitter", retry.jitter, plain.jitter)]
    {
        if value != default {
            map.insert(field.into(), json!(value));
        }
    }
    Value::Object(map)
}
