//! What there is to be seen of an installation.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::fire::Fired;
use taskparty_nats::history::{Start, read};
use taskparty_nats::subject::Bucket;

use crate::site::Site;

/// How long one look at a stream may take.
const LOOK: Duration = Duration::from_secs(60);

/// Fired records that were stored since `since`.
///
/// # Errors
/// When they cannot be read.
pub async fn fired(site: &Site, since: DateTime<Utc>) -> Result<Vec<Fired>> {
    let names = site.nats.names();
    let mut all = Vec::new();
    let mut wrong = None;
    let visit = |record: taskparty_nats::history::Record| {
        for line in record.payload.split(|byte| *byte == b'\n') {
            match serde_json::from_slice(line) {
                Ok(fired) => all.push(fired),
                Err(error) => wrong = Some(error),
            }
        }
        ControlFlow::Continue(())
    };
    let (stream, subject) = (names.results_stream(), names.fired_all());
    read(site.nats.js(), &stream, &[subject], Start::Time(since), LOOK, visit).await?;
    match wrong {
        Some(error) => Err(error.into()),
        None => Ok(all),
    }
}

/// The locks that were taken since `since` and have no fired record.
///
/// # Errors
/// When they cannot be read.
pub async fn half_done(site: &Site, since: DateTime<Utc>) -> Result<BTreeSet<String>> {
    let names = site.nats.names();
    let mut locks = BTreeSet::new();
    let prefix = names.key(Bucket::Fires, "");
    let visit = |record: taskparty_nats::history::Record| {
        if let Some(key) = record.subject.strip_prefix(&prefix).filter(|_| !record.is_marker()) {
            locks.insert(key.to_owned());
        }
        ControlFlow::Continue(())
    };
    let (stream, keys) = (names.bucket_stream(Bucket::Fires), names.key(Bucket::Fires, ">"));
    read(site.nats.js(), &stream, &[keys], Start::Time(since), LOOK, visit).await?;
    // No record is older than its lock, by any server's clock.
    for fired in fired(site, since - TimeDelta::seconds(10)).await? {
        locks.remove(&fired.lock);
    }
    Ok(locks)
}

/// How many lines a file has.
pub fn lines(path: &Path) -> u64 {
    let text = std::fs::read(path).unwrap_or_default();
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}
