//! Triggering jobs from a service.
//!
//! *Invariant: a trigger is made once.* Every request has a key, the caller's or a fresh one, so
//! that it can be sent again when no answer came.

use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::client::RequestErrorKind;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use taskparty_common::duration;
use taskparty_common::name::{Instance, JobId, Key};
use taskparty_nats::connect::Nats;
use tokio::time::Instant;
use uuid::Uuid;

use crate::error::ClientError;

/// How long a request is tried, when nothing else is said.
const DEADLINE: Duration = Duration::from_secs(10);

/// The pause between two tries.
const PAUSE: Duration = Duration::from_millis(200);

/// Triggers jobs. Cheap to clone.
///
/// ```no_run
/// # async fn example(nats: taskparty_executor::Nats) -> Result<(), taskparty_executor::ClientError> {
/// let client = taskparty_executor::Client::new(nats);
/// let run = client.trigger("send-report").params(&["2027-01"])?.key("report-2027-01").send().await?;
/// println!("{run}");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    nats: Nats,
}

impl Client {
    /// A client on `nats`, which an executor can share.
    pub fn new(nats: Nats) -> Self {
        Self { nats }
    }

    /// Prepares a trigger of `job`: now, with the job's own params, until it says otherwise.
    pub fn trigger(&self, job: &str) -> Trigger {
        Trigger {
            nats: self.nats.clone(),
            job: job.to_owned(),
            params: None,
            key: None,
            instance: None,
            when: When::Now,
            deadline: DEADLINE,
        }
    }
}

#[derive(Debug)]
enum When {
    Now,
    After(Duration),
    At(DateTime<Utc>),
}

/// A trigger that has not been sent yet.
#[derive(Debug)]
#[must_use = "a trigger does nothing until it is sent"]
pub struct Trigger {
    nats: Nats,
    job: String,
    params: Option<Box<RawValue>>,
    key: Option<String>,
    instance: Option<String>,
    when: When,
    deadline: Duration,
}

#[derive(Serialize)]
struct Request<'a> {
    id: &'a JobId,
    #[serde(skip_serializing_if = "Option::is_none")]
    params: Option<&'a RawValue>,
    key: &'a Key,
    #[serde(skip_serializing_if = "Option::is_none")]
    instance: Option<Instance>,
    #[serde(rename = "in", skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    at: Option<DateTime<Utc>>,
}

#[derive(Deserialize)]
struct Taken {
    run: Uuid,
}

/// The service's problem document.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Problem {
    code: String,
    title: String,
    detail: String,
}

impl Trigger {
    /// Params of this run alone, instead of the job's.
    ///
    /// # Errors
    /// [`ClientError::Params`] when they cannot be written as JSON.
    pub fn params(mut self, params: &(impl Serialize + ?Sized)) -> Result<Self, ClientError> {
        self.params = Some(serde_json::value::to_raw_value(params).map_err(ClientError::Params)?);
        Ok(self)
    }

    /// The caller's own name for this trigger: the same key of the same job triggers once, and
    /// gives the same run.
    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    /// Only this executor, by its instance id, whatever the job's route. It goes to no other one: if
    /// that executor goes away, the run ends.
    pub fn instance(self, instance: impl Into<String>) -> Self {
        Self { instance: Some(instance.into()), ..self }
    }

    /// Later, by `delay`.
    pub fn after(self, delay: Duration) -> Self {
        Self { when: When::After(delay), ..self }
    }

    /// Later, at `instant`.
    pub fn at(self, instant: DateTime<Utc>) -> Self {
        Self { when: When::At(instant), ..self }
    }

    /// How long [`Trigger::send`] tries. Default 10 s.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sends it, and returns the run that it makes. It is sent again, with the same key, while no
    /// answer comes.
    ///
    /// # Errors
    /// [`ClientError`]; after [`ClientError::NoAnswer`] it may have been taken.
    pub async fn send(self) -> Result<Uuid, ClientError> {
        let job = JobId::new(&self.job)?;
        let key = match &self.key {
            Some(key) => Key::new(key)?,
            None => Key::new(&Uuid::new_v4().simple().to_string())?,
        };
        let instance = self.instance.as_deref().map(Instance::new).transpose()?;
        let (after, at) = match self.when {
            When::Now => (None, None),
            When::After(delay) => (Some(duration::format(delay)), None),
            When::At(instant) => (None, Some(instant)),
        };
        let params = self.params.as_deref();
        let request = Request { id: &job, params, key: &key, instance, after, at };
        let request = serde_json::to_vec(&request).map_err(ClientError::Params)?;
        let answer = ask(&self.nats, request.into(), self.deadline).await?;
        serde_json::from_slice(&answer)
            .map(|Taken { run }| run)
            .map_err(|error| ClientError::Answer(error.to_string()))
    }
}

async fn ask(nats: &Nats, request: Bytes, within: Duration) -> Result<Bytes, ClientError> {
    let subject = nats.names().api("job", "trigger");
    let end = Instant::now() + within;
    loop {
        let asked = nats.client().request(subject.clone(), request.clone());
        let error = match tokio::time::timeout_at(end, asked).await {
            Ok(Ok(answer)) => return read(answer.headers.as_ref(), answer.payload),
            Ok(Err(error)) => error.kind(),
            Err(_) => RequestErrorKind::TimedOut,
        };
        if Instant::now() + PAUSE >= end {
            return Err(ClientError::NoAnswer { subject, within });
        }
        tracing::debug!(%subject, %error, "A trigger is sent again.");
        tokio::time::sleep(PAUSE).await;
    }
}

/// An answer with the service error headers is a refusal.
fn read(headers: Option<&HeaderMap>, payload: Bytes) -> Result<Bytes, ClientError> {
    let header =
        |name: &str| headers.and_then(|headers| headers.get(name)).map(ToString::to_string);
    let Some(code) = header("Nats-Service-Error-Code") else { return Ok(payload) };
    let problem: Problem = serde_json::from_slice(&payload).unwrap_or_default();
    let or = |text: String, other: String| if text.is_empty() { other } else { text };
    Err(ClientError::Refused {
        code: or(problem.code, code),
        title: or(problem.title, header("Nats-Service-Error").unwrap_or_default()),
        detail: problem.detail,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_keeps_the_stable_code_and_falls_back_to_the_headers() {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Service-Error", "no such job");
        headers.insert("Nats-Service-Error-Code", "404");
        for (body, wanted) in [
            (
                r#"{"code":"not_found","title":"no job x","detail":"see `job list`"}"#,
                ("not_found", "no job x: see `job list`"),
            ),
            ("", ("404", "no such job")),
        ] {
            let error = read(Some(&headers), body.into()).unwrap_err();
            assert_eq!(error.to_string(), wanted.1);
            assert!(matches!(error, ClientError::Refused { code, .. } if code == wanted.0));
        }
        assert!(read(None, "{}".into()).is_ok());
    }
}
