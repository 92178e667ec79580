//! Requests to JetStream's API about streams and consumers, repeated while an election goes on.
//!
//! Raw JSON on purpose: what the files say is sent as it stands, and what comes back is compared
//! as it stands. A client's typed structs would drop the settings that they do not know yet.

use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::definition::{Definition, Kind};
use super::error::TopologyError;
use crate::connect::Nats;

const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MOST: Duration = Duration::from_secs(1);

mod code {
    pub(super) const NO_PEERS: u64 = 10005;
    pub(super) const NOT_NOW: u64 = 10008;
    pub(super) const CONSUMER_NOT_FOUND: u64 = 10014;
    pub(super) const OFF_FOR_ACCOUNT: u64 = 10039;
    pub(super) const STREAM_EXISTS: u64 = 10058;
    pub(super) const STREAM_NOT_FOUND: u64 = 10059;
    pub(super) const NO_CLUSTER: u64 = 10074;
    pub(super) const OFF: u64 = 10076;
    pub(super) const CONSUMER_EXISTS: u64 = 10148;
    /// Account resources, insufficient resources, streams, consumers, memory, storage.
    pub(super) const LIMITS: [u64; 7] = [10002, 10023, 10026, 10027, 10028, 10047, 10120];
}

#[derive(Debug, Clone)]
pub(crate) struct Api {
    nats: Nats,
}

#[derive(Debug, Deserialize)]
struct Answer {
    error: Option<ApiError>,
    config: Option<Value>,
    state: Option<State>,
    /// Absent where the server does not say it.
    did_create: Option<bool>,
    /// Of a consumer: what it has yet to deliver.
    #[serde(default)]
    num_pending: u64,
    /// Of a consumer: what is in somebody's hands.
    #[serde(default)]
    num_ack_pending: u64,
    #[serde(default)]
    total: usize,
    #[serde(default)]
    streams: Option<Vec<String>>,
    #[serde(default)]
    consumers: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct State {
    #[serde(default)]
    last_seq: u64,
}

/// What the server has of a stream or consumer.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) config: Value,
    /// The last sequence of a stream; 0 for a consumer.
    pub(crate) last_seq: u64,
}

#[derive(Debug, Clone, Deserialize)]
struct ApiError {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    err_code: u64,
    #[serde(default)]
    description: String,
}

/// What one request came to.
enum Said {
    Yes(Answer),
    No(ApiError),
    NotNow(String),
}

impl Api {
    pub(crate) fn new(nats: Nats) -> Self {
        Self { nats }
    }

    /// What the server has of it, or nothing.
    pub(crate) async fn find(
        &self,
        definition: &Definition,
        deadline: Instant,
    ) -> Result<Option<Found>, TopologyError> {
        let subject = match definition.parts() {
            (stream, None) => format!("STREAM.INFO.{stream}"),
            (stream, Some(consumer)) => format!("CONSUMER.INFO.{stream}.{consumer}"),
        };
        match self.ask(definition, &subject, &json!(null), deadline).await? {
            Ok(answer) => {
                let last_seq = answer.state.map_or(0, |state| state.last_seq);
                Ok(answer.config.map(|config| Found { config, last_seq }))
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(refused(definition, error)),
        }
    }

    /// Makes it; false when another node was faster.
    pub(crate) async fn create(
        &self,
        definition: &Definition,
        deadline: Instant,
    ) -> Result<bool, TopologyError> {
        let answer = match definition.parts() {
            (stream, None) => {
                self.ask(
                    definition,
                    &format!("STREAM.CREATE.{stream}"),
                    &definition.config,
                    deadline,
                )
                .await?
            }
            (stream, Some(_)) => {
                self.put_consumer(definition, stream, &definition.config, "create", deadline)
                    .await?
            }
        };
        match answer {
            Ok(answer) => Ok(answer.did_create.unwrap_or(true)),
            Err(error) if matches!(error.err_code, code::STREAM_EXISTS | code::CONSUMER_EXISTS) => {
                Ok(false)
            }
            Err(error) => Err(refused(definition, error)),
        }
    }

    /// Changes it to `config`.
    pub(crate) async fn update(
        &self,
        definition: &Definition,
        config: &Value,
        deadline: Instant,
    ) -> Result<(), TopologyError> {
        let answer = match definition.parts() {
            (stream, None) => {
                self.ask(definition, &format!("STREAM.UPDATE.{stream}"), config, deadline).await?
            }
            (stream, Some(_)) => {
                self.put_consumer(definition, stream, config, "update", deadline).await?
            }
        };
        answer.map(|_| ()).map_err(|error| refused(definition, error))
    }

    async fn put_consumer(
        &self,
        definition: &Definition,
        stream: &str,
        config: &Value,
        action: &str,
        deadline: Instant,
    ) -> Result<Result<Answer, ApiError>, TopologyError> {
        let consumer = definition.parts().1.unwrap_or_default();
        let filter = config
            .get("filter_subject")
            .and_then(Value::as_str)
            .filter(|filter| !filter.is_empty());
        let subject = match filter {
            // With the filter in the subject, so that permissions can tell consumers apart.
            Some(filter) => format!("CONSUMER.CREATE.{stream}.{consumer}.{filter}"),
            None => format!("CONSUMER.CREATE.{stream}.{consumer}"),
        };
        let mut config = config.clone();
        config["name"] = json!(consumer);
        let body = json!({"stream_name": stream, "config": config, "action": action});
        self.ask(definition, &subject, &body, deadline).await
    }

    /// How many messages a consumer has yet to deliver or waits for; none when it is not there.
    pub(crate) async fn left(
        &self,
        definition: &Definition,
        deadline: Instant,
    ) -> Result<Option<u64>, TopologyError> {
        let (stream, consumer) = definition.parts();
        let subject = format!("CONSUMER.INFO.{stream}.{}", consumer.unwrap_or_default());
        match self.ask(definition, &subject, &json!(null), deadline).await? {
            Ok(answer) => Ok(Some(answer.num_pending + answer.num_ack_pending)),
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(refused(definition, error)),
        }
    }

    /// Removes a consumer; one that is not there is as good as removed.
    pub(crate) async fn delete_consumer(
        &self,
        definition: &Definition,
        deadline: Instant,
    ) -> Result<(), TopologyError> {
        let (stream, consumer) = definition.parts();
        let subject = format!("CONSUMER.DELETE.{stream}.{}", consumer.unwrap_or_default());
        match self.ask(definition, &subject, &json!(null), deadline).await? {
            Err(error) if !is_missing(&error) => Err(refused(definition, error)),
            _ => Ok(()),
        }
    }

    /// The names of all streams that take subjects of `filter`.
    pub(crate) async fn stream_names(
        &self,
        filter: &str,
        deadline: Instant,
    ) -> Result<Vec<String>, TopologyError> {
        self.names("STREAM.NAMES", json!({"subject": filter}), filter, deadline).await
    }

    /// The names of all consumers of a stream.
    pub(crate) async fn consumer_names(
        &self,
        stream: &str,
        deadline: Instant,
    ) -> Result<Vec<String>, TopologyError> {
        self.names(&format!("CONSUMER.NAMES.{stream}"), json!({}), stream, deadline).await
    }

    async fn names(
        &self,
        subject: &str,
        mut body: Value,
        about: &str,
        deadline: Instant,
    ) -> Result<Vec<String>, TopologyError> {
        let definition =
            Definition { kind: Kind::Stream, name: about.to_owned(), config: json!(null) };
        let mut names = Vec::new();
        loop {
            body["offset"] = json!(names.len());
            let answer = self
                .ask(&definition, subject, &body, deadline)
                .await?
                .map_err(|error| refused(&definition, error))?;
            let page = answer.streams.or(answer.consumers).unwrap_or_default();
            let last = page.is_empty();
            names.extend(page);
            if last || names.len() >= answer.total {
                return Ok(names);
            }
        }
    }

    /// One request, again and again while the answer is "not now" or none at all. The inner
    /// result is what the server said in the end.
    async fn ask(
        &self,
        definition: &Definition,
        subject: &str,
        body: &Value,
        deadline: Instant,
    ) -> Result<Result<Answer, ApiError>, TopologyError> {
        // Some requests are refused when they have any body at all.
        let body = if body.is_null() { Bytes::new() } else { Bytes::from(body.to_string()) };
        let subject = format!("{}.{subject}", self.nats.api_prefix());
        let began = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            let reason = match self.once(definition, &subject, body.clone()).await? {
                Said::Yes(answer) => return Ok(Ok(answer)),
                Said::No(error) => return Ok(Err(error)),
                Said::NotNow(reason) => reason,
            };
            if Instant::now() + pause >= deadline {
                return Err(TopologyError::Unanswered {
                    name: definition.name.clone(),
                    reason,
                    waited: began.elapsed(),
                });
            }
            tracing::debug!(name = %definition.name, reason, "JetStream is not ready; asking again");
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MOST);
        }
    }

    async fn once(
        &self,
        definition: &Definition,
        subject: &str,
        body: Bytes,
    ) -> Result<Said, TopologyError> {
        let asked = std::time::Instant::now();
        let message = match self.nats.client().request(subject.to_owned(), body).await {
            Ok(message) => message,
            Err(error) => {
                if let Some(denied) = self.nats.events().denied_since(subject, asked) {
                    let name = definition.name.clone();
                    return Err(TopologyError::Denied { name, action: denied.action });
                }
                return Ok(Said::NotNow(error.to_string()));
            }
        };
        Ok(match serde_json::from_slice::<Answer>(&message.payload) {
            Err(error) => Said::NotNow(format!("the answer cannot be read: {error}")),
            Ok(Answer { error: Some(error), .. }) if not_now(&error) => {
                Said::NotNow(error.description)
            }
            Ok(Answer { error: Some(error), .. }) => Said::No(error),
            Ok(answer) => Said::Yes(answer),
        })
    }
}

/// Whether the same request can succeed a moment later.
fn not_now(error: &ApiError) -> bool {
    match error.err_code {
        code::OFF | code::OFF_FOR_ACCOUNT => false,
        code::NOT_NOW => true,
        // Peers can be missing because they are still coming up, never because of their size.
        code::NO_PEERS => {
            !error.description.contains("insufficient") && !error.description.contains("exceed")
        }
        other => error.code == 503 && !code::LIMITS.contains(&other),
    }
}

fn is_missing(error: &ApiError) -> bool {
    matches!(error.err_code, code::STREAM_NOT_FOUND | code::CONSUMER_NOT_FOUND)
}

fn refused(definition: &Definition, error: ApiError) -> TopologyError {
    let name = definition.name.clone();
    let description = error.description;
    match error.err_code {
        code::OFF | code::OFF_FOR_ACCOUNT => TopologyError::NoJetStream { name },
        code::NO_PEERS | code::NO_CLUSTER => {
            let replicas =
                definition.config.get("num_replicas").and_then(Value::as_u64).unwrap_or(1);
            TopologyError::Peers { name, replicas, description }
        }
        other if code::LIMITS.contains(&other) => TopologyError::Limit { name, description },
        code => TopologyError::Refused { name, code, description },
    }
}
