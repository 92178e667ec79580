//! What there is to be seen of an installation.

use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use taskparty_common::fire::Fired;
use taskparty_nats::history::{Start, read};

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

/// How many lines a file has.
pub fn lines(path: &Path) -> u64 {
    let text = std::fs::read(path).unwrap_or_default();
    text.iter().filter(|byte| **byte == b'\n').count() as u64
}
