//! What each command does: ask the service, print the answer.

mod audit;
pub(crate) mod bench;
pub(crate) mod config;
pub(crate) mod dev;
pub(crate) mod doctor;
pub(crate) mod job;
pub(crate) mod live;
pub(crate) mod run;
pub(crate) mod serve;
pub(crate) mod topology;

use std::collections::BTreeMap;
use std::future::Future;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::duration;
use taskparty_common::schedule::{Moment, MomentErrorReason, Zone};
use taskparty_scheduler::api::wire::Problem;

use crate::client::Client;
use crate::config::Config;
use crate::failure::{Exit, Failure};

/// How a command ends.
pub(crate) type Outcome = Result<Exit, Failure>;

/// Connects, lets `work` ask, and ends the connection whatever came of it.
pub(crate) async fn with_client<F: Future<Output = Outcome>>(
    config: &Config,
    work: impl FnOnce(Client) -> F,
) -> Outcome {
    let client = Client::connect(config).await?;
    let outcome = work(client.clone()).await;
    client.close().await;
    outcome
}

/// `key=value` pairs.
pub(crate) fn labels(texts: &[String]) -> Result<BTreeMap<String, String>, Failure> {
    let pair =
        |text: &String| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
            _ => Err(Problem::field("--label", Some(format!("{text:?}")), "write it as key=value")
                .into()),
        };
    texts.iter().map(pair).collect()
}

/// A time with its offset; without one it is refused, as nobody knows which zone was meant.
pub(crate) fn instant(option: &str, text: &str) -> Result<DateTime<Utc>, Failure> {
    let wrong = |problem: String| Failure::from(Problem::field(option, None, problem));
    let moment = Moment::parse(text).map_err(|error| match error.reason() {
        MomentErrorReason::Form => wrong(format!(
            "{text:?} is no time; write it as 2027-01-31T09:00:00Z, or 2027-01-31T09:00:00+08:00"
        )),
        _ => wrong(error.to_string()),
    })?;
    if moment.is_local() {
        return Err(wrong(format!(
            "{text:?} has no offset; write {text}Z for UTC, or {text}+08:00"
        )));
    }
    Ok(moment.instant_in(&Zone::UTC))
}

/// How many items are shown at most.
pub(crate) fn limit(limit: usize) -> Result<usize, Failure> {
    match limit {
        0 => Err(Problem::field("--limit", Some("0".into()), "it is 1 or more").into()),
        limit => Ok(limit),
    }
}

/// A time with its offset, or a duration from `now`.
pub(crate) fn instant_or_in(
    option: &str,
    text: &str,
    now: DateTime<Utc>,
) -> Result<DateTime<Utc>, Failure> {
    match duration::parse(text) {
        Ok(time) => TimeDelta::from_std(time)
            .ok()
            .and_then(|time| now.checked_add_signed(time))
            .ok_or_else(|| Failure::invalid(format!("{option}: {text} is too far ahead"))),
        Err(_) => instant(option, text),
    }
}
