//! `executor.list`, `scheduler.list`: who is there.

use serde::de::DeserializeOwned;
use taskparty_nats::subject::Bucket;

use super::Api;
use super::definitions::unreadable;
use super::problem::Problem;
use super::wire::{Executors, Nothing, Page, Schedulers};

/// The live executors, by app and instance.
pub(super) async fn executors(api: &Api, _: Nothing) -> Result<Executors, Problem> {
    entries(api, Bucket::Executors).await
}

/// The live schedulers, by instance.
pub(super) async fn schedulers(api: &Api, _: Nothing) -> Result<Schedulers, Problem> {
    entries(api, Bucket::Schedulers).await
}

/// What can be read; an entry that cannot is left out, and said in the log.
async fn entries<T: DeserializeOwned>(api: &Api, which: Bucket) -> Result<Page<T>, Problem> {
    let entries = api.buckets.entries(which, ">").await.map_err(unreadable)?;
    let items = entries.iter().filter_map(|entry| match serde_json::from_slice(entry.value.as_deref()?) {
        Ok(entry) => Some(entry),
        Err(error) => {
            tracing::warn!(bucket = which.suffix(), key = %entry.key, %error, "An entry cannot be read.");
            None
        }
    });
    Ok(Page { items: items.collect(), next: None })
}
