//! The NATS service: takes requests, gives each to its function, answers.
//!
//! *Invariant: no request harms another.* How many are worked on at once is bounded, each ends
//! under a deadline, and one that panics is answered with an error like any other.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::service::endpoint::Endpoint;
use async_nats::service::{
    NATS_SERVICE_ERROR, NATS_SERVICE_ERROR_CODE, Request, Service, ServiceExt,
};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::problem::{Code, Problem};
use super::{
    Api, ApiError, apply, ask, audit, backfill, doctor, edit, jobs, live, logs, runs, topology,
    trigger,
};

/// How long one request may take.
pub const DEADLINE: Duration = Duration::from_secs(20);

/// How many requests are worked on at once.
const AT_ONCE: usize = 64;

/// How long requests may take to end when the service stops.
const DRAIN: Duration = Duration::from_secs(5);

/// The room that headers and the protocol take from the largest message.
const OVERHEAD: usize = 4 * 1024;

/// An endpoint: noun and verb.
type Name = (&'static str, &'static str);

/// Every endpoint, as noun and verb.
pub const ENDPOINTS: [(&str, &str); 20] = [
    ("job", "apply"),
    ("job", "list"),
    ("job", "get"),
    ("job", "delete"),
    ("job", "pause"),
    ("job", "resume"),
    ("job", "next"),
    ("job", "trigger"),
    ("job", "backfill"),
    ("run", "list"),
    ("run", "get"),
    ("run", "logs"),
    ("run", "cancel"),
    ("run", "retry"),
    ("executor", "list"),
    ("scheduler", "list"),
    ("topology", "show"),
    ("topology", "apply"),
    ("doctor", "run"),
    ("doctor", "audit"),
];

/// Registers the service, and answers requests in tasks of `tasks` until `shutdown`.
pub(super) async fn start(
    api: Arc<Api>,
    shutdown: CancellationToken,
    tasks: &TaskTracker,
) -> Result<(), ApiError> {
    let service = register(&api).await?;
    let mut endpoints = Vec::with_capacity(ENDPOINTS.len());
    for (noun, verb) in ENDPOINTS {
        endpoints.push((endpoint(&service, &api, noun, verb).await?, (noun, verb)));
    }
    tracing::info!(service = %api.nats.names().prefix(), "The NATS service answers.");
    tasks.spawn(serve(api, service, endpoints, shutdown));
    Ok(())
}

async fn serve(
    api: Arc<Api>,
    service: Service,
    endpoints: Vec<(Endpoint, Name)>,
    shutdown: CancellationToken,
) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let (work, loops) = (TaskTracker::new(), TaskTracker::new());
    for (endpoint, name) in endpoints {
        loops.spawn(take(
            endpoint,
            api.clone(),
            name,
            room.clone(),
            work.clone(),
            shutdown.clone(),
        ));
    }
    loops.close();
    loops.wait().await;
    let _ = service.stop().await;
    work.close();
    if timeout(DRAIN, work.wait()).await.is_err() {
        tracing::warn!(
            requests = work.len(),
            "Requests were still being answered when the time to drain ended."
        );
    }
}

async fn register(api: &Api) -> Result<Service, ApiError> {
    let prefix = api.nats.names().prefix().to_string();
    let builder = api.nats.client().service_builder();
    let builder =
        builder.description("TaskParty: jobs, runs, executors, schedulers").queue_group("api");
    builder
        .start(prefix, env!("CARGO_PKG_VERSION"))
        .await
        .map_err(|error| ApiError::Service(error.to_string()))
}

async fn endpoint(
    service: &Service,
    api: &Api,
    noun: &str,
    verb: &str,
) -> Result<Endpoint, ApiError> {
    let builder = service.endpoint_builder().name(format!("{noun}-{verb}"));
    builder
        .add(api.nats.names().api(noun, verb))
        .await
        .map_err(|error| ApiError::Service(error.to_string()))
}

async fn take(
    mut endpoint: Endpoint,
    api: Arc<Api>,
    name: Name,
    room: Arc<Semaphore>,
    work: TaskTracker,
    shutdown: CancellationToken,
) {
    loop {
        let room = room.clone().acquire_owned();
        let Some(Ok(place)) = shutdown.run_until_cancelled(room).await else { break };
        let Some(Some(request)) = shutdown.run_until_cancelled(endpoint.next()).await else {
            break;
        };
        let api = api.clone();
        work.spawn(async move {
            let answer = guarded(dispatch(&api, name, &request.message.payload)).await;
            respond(&api, name, &request, answer).await;
            drop(place);
        });
    }
    let _ = endpoint.stop().await;
}

/// The answer, whatever happens on the way.
async fn guarded(work: impl Future<Output = Result<Vec<u8>, Problem>>) -> Result<Vec<u8>, Problem> {
    match timeout(DEADLINE, AssertUnwindSafe(work).catch_unwind()).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => {
            tracing::error!("A request made the service panic; its answer says so.");
            Err(Problem::new(
                Code::Internal,
                "the request made the service panic: please report it",
            ))
        }
        Err(_) => {
            let detail = format!(
                "it took longer than {} s; it may have been done in part, look before you repeat it",
                DEADLINE.as_secs()
            );
            Err(Problem::unavailable(detail))
        }
    }
}

async fn dispatch(api: &Api, name: (&str, &str), body: &[u8]) -> Result<Vec<u8>, Problem> {
    match name {
        ("job", "apply") => call(body, |request| apply::apply(api, request)).await,
        ("job", "list") => call(body, |request| jobs::list(api, request)).await,
        ("job", "get") => call(body, |request| jobs::get(api, request)).await,
        ("job", "delete") => call(body, |request| edit::delete(api, request)).await,
        ("job", "pause") => call(body, |request| edit::pause(api, request)).await,
        ("job", "resume") => call(body, |request| edit::resume(api, request)).await,
        ("job", "next") => call(body, |request| jobs::next(api, request)).await,
        ("job", "trigger") => call(body, |request| trigger::trigger(api, request)).await,
        ("job", "backfill") => call(body, |request| backfill::backfill(api, request)).await,
        ("run", "list") => call(body, |request| runs::list(api, request)).await,
        ("run", "get") => call(body, |request| runs::get(api, request)).await,
        ("run", "logs") => call(body, |request| logs::logs(api, request)).await,
        ("run", "cancel") => call(body, |request| ask::cancel(api, request)).await,
        ("run", "retry") => call(body, |request| ask::retry(api, request)).await,
        ("executor", "list") => call(body, |request| live::executors(api, request)).await,
        ("scheduler", "list") => call(body, |request| live::schedulers(api, request)).await,
        ("topology", "show") => call(body, |request| topology::show(api, request)).await,
        ("topology", "apply") => call(body, |request| topology::apply(api, request)).await,
        ("doctor", "run") => call(body, |request| doctor::run(api, request)).await,
        ("doctor", "audit") => call(body, |request| audit::audit(api, request)).await,
        _ => Err(Problem::new(Code::NotFound, "there is no such endpoint")),
    }
}

/// Reads the request, strictly, and writes the answer.
async fn call<Q: DeserializeOwned, A: Serialize, F: Future<Output = Result<A, Problem>>>(
    body: &[u8],
    work: impl FnOnce(Q) -> F,
) -> Result<Vec<u8>, Problem> {
    let body = if body.trim_ascii().is_empty() { b"{}" } else { body.trim_ascii() };
    // Serde would take a list for an object, field by field.
    if !body.starts_with(b"{") {
        return Err(Problem::invalid(
            "the request is no JSON object; send {} where nothing is to be said",
        ));
    }
    let request = serde_json::from_slice(body)
        .map_err(|error| Problem::invalid(format!("the request cannot be read: {error}")))?;
    let answer = work(request).await?;
    serde_json::to_vec(&answer).map_err(|error| Problem::new(Code::Internal, error.to_string()))
}

async fn respond(
    api: &Api,
    name: (&str, &str),
    request: &Request,
    answer: Result<Vec<u8>, Problem>,
) {
    let most = api.nats.server().max_payload.saturating_sub(OVERHEAD);
    let answer = answer.and_then(|body| {
        if body.len() <= most {
            return Ok(body);
        }
        let detail = format!(
            "the answer has {} bytes, NATS takes {most}; ask for less with `limit`",
            body.len()
        );
        Err(Problem::new(Code::TooLarge, detail))
    });
    let mut headers = HeaderMap::new();
    let body = match answer {
        Ok(body) => body,
        Err(problem) => {
            tracing::debug!(noun = name.0, verb = name.1, code = problem.code.as_str(), %problem, "A request ended with a problem.");
            headers.insert(NATS_SERVICE_ERROR, problem.line().as_str());
            headers.insert(NATS_SERVICE_ERROR_CODE, problem.code.status().to_string().as_str());
            fitting(problem, most)
        }
    };
    if let Err(error) = request.respond_with_headers(Ok(Bytes::from(body)), headers).await {
        tracing::debug!(noun = name.0, verb = name.1, %error, "An answer could not be sent.");
    }
}

/// The document, without its fields where they are too many for a message.
fn fitting(mut problem: Problem, most: usize) -> Vec<u8> {
    let mut body = serde_json::to_vec(&problem).unwrap_or_default();
    if body.len() > most {
        problem.errors.truncate(20);
        problem.detail = problem.detail.chars().take(4_000).collect();
        body = serde_json::to_vec(&problem).unwrap_or_default();
    }
    body
}
