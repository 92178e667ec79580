//! Asking the service: the one way in which the command line talks to an installation.

use std::time::{Duration, Instant};

use async_nats::Request;
use async_nats::client::RequestErrorKind;
use async_nats::service::NATS_SERVICE_ERROR_CODE;
use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use taskparty_nats::connect::{Nats, connect};
use taskparty_scheduler::api::DEADLINE;
use taskparty_scheduler::api::wire::{Code, Page, Problem};

use crate::config::Config;
use crate::failure::Failure;

/// Longer than the service takes, so that its own words arrive.
const PATIENCE: Duration = Duration::from_secs(DEADLINE.as_secs() + 3);

/// How often a refusal is looked for while the answer is waited for.
const LOOK: Duration = Duration::from_millis(50);

/// A connection to an installation.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    nats: Nats,
    /// Who asks, as `user@host`.
    by: String,
}

impl Client {
    /// Connects as configured, or says why not.
    pub(crate) async fn connect(config: &Config) -> Result<Self, Failure> {
        Ok(Self { nats: connect(&config.nats).await?, by: config.who.clone() })
    }

    /// A client on a connection that is there.
    pub(crate) fn on(nats: Nats, by: String) -> Self {
        Self { nats, by }
    }

    /// Who asks.
    pub(crate) fn by(&self) -> String {
        self.by.clone()
    }

    /// Sends one request.
    pub(crate) async fn call<A: DeserializeOwned>(
        &self,
        noun: &str,
        verb: &str,
        request: &impl Serialize,
    ) -> Result<A, Failure> {
        let subject = self.nats.names().api(noun, verb);
        let began = Instant::now();
        let body = serde_json::to_vec(request).map_err(|error| internal(error.to_string()))?;
        let request = Request::new().payload(Bytes::from(body)).timeout(Some(PATIENCE));
        let message = tokio::select! {
            answer = self.nats.client().send_request(subject.clone(), request) => match answer {
                Ok(message) => message,
                Err(error) => return Err(self.failed(error.kind())),
            },
            failure = self.denied(&subject, began) => return Err(failure),
        };
        let is_problem = message
            .headers
            .as_ref()
            .is_some_and(|headers| headers.get(NATS_SERVICE_ERROR_CODE).is_some());
        if is_problem {
            let problem: Problem = serde_json::from_slice(&message.payload).unwrap_or_else(|_| {
                Problem::new(
                    Code::Internal,
                    "the service answered with an error that cannot be read",
                )
            });
            return Err(problem.into());
        }
        serde_json::from_slice(&message.payload).map_err(|error| {
            internal(format!("the answer of {subject} cannot be read ({error}): are both sides of the same version?"))
        })
    }

    /// Asks for page after page, until there are `limit` items or no more.
    pub(crate) async fn pages<Q: Serialize + Clone, T: DeserializeOwned>(
        &self,
        (noun, verb): (&str, &str),
        request: Q,
        turn: impl Fn(&mut Q, Option<String>, usize),
        (mut after, limit): (Option<String>, usize),
    ) -> Result<Page<T>, Failure> {
        let mut all = Page { items: Vec::new(), next: None };
        loop {
            let mut request = request.clone();
            turn(&mut request, after, limit - all.items.len());
            let page: Page<T> = self.call(noun, verb, &request).await?;
            all.items.extend(page.items);
            all.next = page.next;
            if all.next.is_none() || all.items.len() >= limit {
                return Ok(all);
            }
            after = all.next.clone();
        }
    }

    /// Waits until NATS has refused the request: a refusal comes beside the answer, not as one.
    async fn denied(&self, subject: &str, began: Instant) -> Failure {
        loop {
            if let Some(denied) = self.nats.events().denied_since(subject, began) {
                let detail = format!(
                    "NATS refuses this user the right {}: grant it in the server's configuration",
                    denied.action
                );
                return Problem::new(Code::Forbidden, detail).into();
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn failed(&self, kind: RequestErrorKind) -> Failure {
        let prefix = self.nats.names().prefix();
        match kind {
            RequestErrorKind::NoResponders => Failure::could_not(format!(
                "no TaskParty node answers on this NATS (prefix {prefix}): start one with `taskparty serve`, or everything with `taskparty dev`"
            )),
            RequestErrorKind::TimedOut => Failure::could_not(format!(
                "the node did not answer within {} s: look at its log; what was asked may have been done",
                PATIENCE.as_secs()
            )),
            RequestErrorKind::MaxPayloadExceeded => Problem::new(
                Code::TooLarge,
                "the request is larger than the NATS server takes (max_payload)",
            )
            .into(),
            _ => Failure::could_not("the connection to NATS broke off: try again"),
        }
    }

    /// Ends the connection.
    pub(crate) async fn close(self) {
        self.nats.close(Duration::from_secs(1)).await;
    }
}

fn internal(detail: String) -> Failure {
    Problem::new(Code::Internal, detail).into()
}
