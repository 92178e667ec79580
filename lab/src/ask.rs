//! Requests to the NATS service, asked again until somebody answers.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_nats::Request;
use futures::StreamExt;
use serde_json::{Value, json};
use taskparty_common::dispatch::SchedulerEntry;
use taskparty_nats::bucket::Entry;
use taskparty_nats::subject::Bucket;
use tokio::time::{Instant, sleep};

use crate::site::{PATIENCE, Site, wait};

/// How long one answer is waited for: an edit waits for schedulers that have gone.
const ANSWER: Duration = Duration::from_secs(12);

/// Edits that are under way at once.
const AT_ONCE: usize = 8;

impl Site {
    /// Asks, and asks again while nobody answers. For requests that may be made twice.
    ///
    /// # Errors
    /// When it is refused, or nobody answers within `patience`.
    pub async fn ask(
        &self,
        noun: &str,
        verb: &str,
        request: &Value,
        patience: Duration,
    ) -> Result<Value> {
        let subject = self.nats.names().api(noun, verb);
        let end = Instant::now() + patience;
        loop {
            let request = Request::new().payload(request.to_string().into()).timeout(Some(ANSWER));
            match self.nats.client().send_request(subject.clone(), request).await {
                Ok(answer) => {
                    let refused = answer.headers.as_ref();
                    if refused.and_then(|h| h.get("Nats-Service-Error-Code")).is_some() {
                        bail!("{subject}: {}", String::from_utf8_lossy(&answer.payload));
                    }
                    return Ok(serde_json::from_slice(&answer.payload)?);
                }
                Err(error) if Instant::now() >= end => bail!("{subject}: {error}"),
                Err(_) => sleep(Duration::from_millis(200)).await,
            }
        }
    }

    /// Saves jobs.
    ///
    /// # Errors
    /// As [`Site::ask`].
    pub async fn apply(&self, jobs: &[Value]) -> Result<()> {
        for piece in jobs.chunks(200) {
            let request = json!({ "jobs": piece, "by": "lab" });
            self.ask("job", "apply", &request, Duration::from_secs(60)).await?;
        }
        Ok(())
    }

    /// Pauses jobs; afterwards nothing of their schedules is fired any more.
    ///
    /// # Errors
    /// As [`Site::ask`]; and when not every live scheduler goes by it in time.
    pub async fn pause(&self, jobs: &[Value]) -> Result<()> {
        let ids = jobs.iter().filter_map(|job| job["id"].as_str());
        let pauses = ids.map(|id| async move {
            let request = json!({ "id": id, "by": "lab" });
            // Asked for twice it is no change, and tells nothing of who goes by it: looked at below.
            let edited = self.ask("job", "pause", &request, Duration::from_secs(60)).await?;
            edited["revision"].as_u64().with_context(|| format!("the pause of {id}: {edited}"))
        });
        let mut done = futures::stream::iter(pauses).buffer_unordered(AT_ONCE);
        let mut newest = 0;
        while let Some(revision) = done.next().await {
            newest = newest.max(revision?);
        }
        wait(&format!("schedulers that go by revision {newest}"), PATIENCE, async || {
            let live = self.buckets.entries(Bucket::Schedulers, ">").await.ok()?;
            let seen = |entry: &Entry| {
                let entry: SchedulerEntry = serde_json::from_slice(entry.value.as_ref()?).ok()?;
                Some(entry.jobs_revision >= newest)
            };
            live.iter().all(|entry| seen(entry) == Some(true)).then_some(())
        })
        .await
    }
}
