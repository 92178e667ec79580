//! From the files in `nats/topology` to the streams and consumers of one installation.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use taskparty_common::name::{App, Handler, Instance};
use taskparty_common::priority::Priority;

use super::TopologyConfig;
use crate::subject::Names;

const DISPATCH: &str = include_str!("../../topology/dispatch.json");
const HANDLER: &str = include_str!("../../topology/consumer_handler.json");
const PRIORITY: &str = include_str!("../../topology/consumer_priority.json");
const INSTANCE: &str = include_str!("../../topology/consumer_instance.json");
const STREAMS: [&str; 4] = [
    include_str!("../../topology/triggers.json"),
    include_str!("../../topology/results.json"),
    include_str!("../../topology/logs.json"),
    include_str!("../../topology/alerts.json"),
];
const BUCKETS: [&str; 7] = [
    include_str!("../../topology/kv_jobs.json"),
    include_str!("../../topology/kv_fires.json"),
    include_str!("../../topology/kv_cursors.json"),
    include_str!("../../topology/kv_overlap.json"),
    include_str!("../../topology/kv_routes.json"),
    include_str!("../../topology/kv_executors.json"),
    include_str!("../../topology/kv_schedulers.json"),
];
const SCHEDULERS: &str = include_str!("../../topology/consumer_schedulers.json");
const LOG_WRITER: &str = include_str!("../../topology/consumer_log-writer.json");

/// What kind of thing a definition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A stream.
    Stream,
    /// The stream behind a key-value bucket.
    Bucket,
    /// A durable pull consumer.
    Consumer,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Stream => "stream",
            Kind::Bucket => "bucket",
            Kind::Consumer => "consumer",
        })
    }
}

/// A stream, bucket or consumer as it should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Definition {
    /// Which kind.
    pub kind: Kind,
    /// Its name. A bucket's is its stream's; a consumer's is `<stream>/<consumer>`.
    pub name: String,
    /// Its configuration, as JetStream's API takes it; times in nanoseconds.
    pub config: Value,
}

impl Definition {
    /// The stream, and for a consumer the consumer.
    pub(crate) fn parts(&self) -> (&str, Option<&str>) {
        match self.name.split_once('/') {
            Some((stream, consumer)) => (stream, Some(consumer)),
            None => (&self.name, None),
        }
    }
}

/// The streams that do not depend on an app, the buckets, and their consumers; streams first.
pub(crate) fn fixed(names: &Names, config: &TopologyConfig, replicas: usize) -> Vec<Definition> {
    let mut all = Vec::new();
    for text in STREAMS {
        let mut stream = stream(names, text, replicas);
        let size = match stream.name.as_str() {
            name if name == names.results_stream() => Some(config.results_bytes),
            name if name == names.logs_stream() => Some(config.logs_bytes),
            name if name == names.alerts_stream() => Some(config.alerts_bytes),
            _ => None,
        };
        if let Some(size) = size {
            stream.config["max_bytes"] = json!(size);
        }
        all.push(stream);
    }
    for text in BUCKETS {
        all.push(Definition { kind: Kind::Bucket, ..stream(names, text, replicas) });
    }
    all.push(consumer(&names.triggers_stream(), parse(names, SCHEDULERS, &[])));
    all.push(consumer(&names.results_stream(), parse(names, LOG_WRITER, &[])));
    all
}

/// The stream of one app's work.
pub(crate) fn dispatch(
    names: &Names,
    config: &TopologyConfig,
    replicas: usize,
    app: &App,
) -> Definition {
    let mut fields = parse(names, DISPATCH, &[("APP", app.as_str())]);
    fields.insert("num_replicas".into(), json!(replicas));
    fields.insert("max_bytes".into(), json!(config.dispatch_bytes));
    Definition { kind: Kind::Stream, name: text_of(&fields, "name"), config: Value::Object(fields) }
}

/// The consumer of one handler's work.
pub(crate) fn handler(
    names: &Names,
    config: &TopologyConfig,
    app: &App,
    handler: &Handler,
) -> Definition {
    leased(names, config, app, HANDLER, &[("HANDLER", handler.as_str())])
}

/// The consumer of one handler's work of one priority.
pub(crate) fn priority(
    names: &Names,
    config: &TopologyConfig,
    app: &App,
    work: &(Handler, Priority),
) -> Definition {
    let (of, priority) = work;
    if priority.is_default() {
        return handler(names, config, app, of);
    }
    let token = format!("p{priority}");
    let whose = [("HANDLER", of.as_str()), ("PRIORITY", token.as_str())];
    leased(names, config, app, PRIORITY, &whose)
}

/// The consumer of the work for one instance alone.
pub(crate) fn instance(
    names: &Names,
    config: &TopologyConfig,
    app: &App,
    instance: &Instance,
) -> Definition {
    leased(names, config, app, INSTANCE, &[("INSTANCE", instance.as_str())])
}

/// A consumer of an app's work, which holds a message for the length of a lease.
fn leased(
    names: &Names,
    config: &TopologyConfig,
    app: &App,
    text: &str,
    whose: &[(&str, &str)],
) -> Definition {
    let mut fields = parse(names, text, &[&[("APP", app.as_str())][..], whose].concat());
    let lease = i64::try_from(config.lease.as_nanos()).unwrap_or(i64::MAX);
    fields.insert("ack_wait".into(), json!(lease));
    consumer(&names.dispatch_stream(app), fields)
}

fn stream(names: &Names, text: &str, replicas: usize) -> Definition {
    let mut fields = parse(names, text, &[]);
    fields.insert("num_replicas".into(), json!(replicas));
    Definition { kind: Kind::Stream, name: text_of(&fields, "name"), config: Value::Object(fields) }
}

fn consumer(stream: &str, fields: Map<String, Value>) -> Definition {
    let name = format!("{stream}/{}", text_of(&fields, "durable_name"));
    Definition { kind: Kind::Consumer, name, config: Value::Object(fields) }
}

fn text_of(fields: &Map<String, Value>, key: &str) -> String {
    fields.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The names in a file with the default prefix, under ours. Only names and subjects are touched.
fn parse(names: &Names, text: &str, placeholders: &[(&str, &str)]) -> Map<String, Value> {
    // The files are part of the program: a test reads each of them.
    let mut fields: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
    let rename = |name: &str| rename(names, name, placeholders);
    for key in ["name", "durable_name", "filter_subject"] {
        if let Some(Value::String(name)) = fields.get_mut(key) {
            *name = rename(name);
        }
    }
    if let Some(Value::Array(subjects)) = fields.get_mut("subjects") {
        for subject in subjects {
            if let Value::String(subject) = subject {
                *subject = rename(subject);
            }
        }
    }
    fields
}

fn rename(names: &Names, name: &str, placeholders: &[(&str, &str)]) -> String {
    let prefix = names.prefix();
    let under = |part: &str| {
        if let Some(rest) = part.strip_prefix("TASKPARTY_") {
            return format!("{}_{rest}", prefix.upper());
        }
        match part.strip_prefix("taskparty") {
            Some(rest) if rest.starts_with(['_', '.']) => format!("{prefix}{rest}"),
            _ => part.to_owned(),
        }
    };
    let renamed = ["KV_", "$KV."]
        .iter()
        .find_map(|lead| name.strip_prefix(lead).map(|rest| format!("{lead}{}", under(rest))))
        .unwrap_or_else(|| under(name));
    // Whole tokens only, and each once: an app may be called HANDLER.
    let mut out = String::new();
    for piece in renamed.split_inclusive(['.', '_']) {
        let token = piece.trim_end_matches(['.', '_']);
        let value = placeholders
            .iter()
            .find(|(placeholder, _)| *placeholder == token)
            .map_or(token, |(_, value)| value);
        out.push_str(value);
        out.push_str(&piece[token.len()..]);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Bucket;
    use taskparty_common::name::Prefix;

    fn names() -> Names {
        Names::new(Prefix::new("acme-2").unwrap())
    }

    #[test]
    fn files_and_code_spell_the_same_names() {
        for names in [Names::default(), names()] {
            let all = fixed(&names, &TopologyConfig::default(), 3);
            let mut expected = vec![
                names.triggers_stream(),
                names.results_stream(),
                names.logs_stream(),
                names.alerts_stream(),
            ];
            expected.extend(Bucket::ALL.map(|bucket| names.bucket_stream(bucket)));
            expected.push(format!("{}/{}", names.triggers_stream(), crate::subject::SCHEDULERS));
            expected.push(format!("{}/{}", names.results_stream(), crate::subject::LOG_WRITER));
            assert_eq!(all.iter().map(|one| one.name.clone()).collect::<Vec<_>>(), expected);
            assert_eq!(all[11].config["filter_subject"], names.triggers());
            for (definition, bucket) in all[4..11].iter().zip(Bucket::ALL) {
                assert_eq!(definition.config["subjects"], json!([names.key(bucket, ">")]));
            }
        }
    }

    #[test]
    fn an_app_and_a_handler_fill_their_places_whatever_they_are_called() {
        let names = names();
        for (app, handler_name) in
            [("order-service", "settle"), ("HANDLER", "APP"), ("a_APP_b", "x_HANDLER")]
        {
            let (app, handler_name) = (App::new(app).unwrap(), Handler::new(handler_name).unwrap());
            let config =
                TopologyConfig { lease: std::time::Duration::from_secs(5), ..Default::default() };
            let stream = dispatch(&names, &config, 1, &app);
            assert_eq!(stream.name, names.dispatch_stream(&app));
            assert_eq!(stream.config["subjects"][0], format!("acme-2.dispatch.{app}.>"));
            let consumer = handler(&names, &config, &app, &handler_name);
            assert_eq!(
                consumer.parts(),
                (names.dispatch_stream(&app).as_str(), Some(handler_name.as_str()))
            );
            assert_eq!(consumer.config["filter_subject"], names.dispatch_of(&app, &handler_name));
            assert_eq!(consumer.config["ack_wait"], 5_000_000_000_i64);
            let first = (handler_name, Priority::new(0).unwrap());
            let consumer = priority(&names, &config, &app, &first);
            assert_eq!(
                consumer.parts().1,
                Some(crate::subject::of_priority(&first.0, first.1).as_str())
            );
            assert_eq!(
                consumer.config["filter_subject"],
                names.dispatch_of_priority(&app, &first.0, first.1)
            );
            let one = Instance::new("INSTANCE-1").unwrap();
            let consumer = instance(&names, &config, &app, &one);
            assert_eq!(consumer.parts().1, Some("on_INSTANCE-1"));
            assert_eq!(consumer.config["filter_subject"], names.direct_of(&app, &one));
        }
    }
}
