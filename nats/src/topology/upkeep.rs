//! Keeping what was made: somebody may delete a stream or a consumer by hand while everything runs.
//!
//! *Invariant: only what the server says twice, a while apart, is not there is made again.* During an
//! election a server may not know what it will know in a moment. And a server takes a stream off its
//! list before it takes its files away: one that is made in between loses its own with them. It is
//! there from then on, for whoever asks, and answers no publish until the server is started again.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use taskparty_common::name::{App, Handler};
use tokio::time::{Instant, sleep, timeout_at};

use super::definition::{Definition, Kind};
use super::{Topology, TopologyError};

/// Between the two looks at a stream that is not there. To take away one with 500 consumers takes a
/// server 15 ms, and longer when it hardly gets a processor.
const STREAM_AGAIN: Duration = Duration::from_secs(1);

/// Between the two looks at a consumer that is not there: meanwhile nobody can keep a lease.
const CONSUMER_AGAIN: Duration = Duration::from_millis(300);

/// Something that was there once and is not now.
#[derive(Debug, Clone, PartialEq)]
pub struct Missing(Definition);

impl Missing {
    /// The stream, bucket's stream or `stream/consumer`.
    pub fn name(&self) -> &str {
        &self.0.name
    }
}

impl Topology {
    /// What is not there of all that was: the fixed streams, buckets and consumers, and the streams
    /// and consumers of the handlers, instances and priorities that [`Topology::ensure_handler`],
    /// [`Topology::ensure_instance`] and [`Topology::ensure_priority`] have made sure of. Streams before their consumers. One question
    /// a stream, one more where it has consumers.
    ///
    /// # Errors
    /// See [`TopologyError`]; during an election mostly [`TopologyError::Unanswered`].
    pub async fn missing(&self) -> Result<Vec<Missing>, TopologyError> {
        let mut expected = self.expected();
        let mut apps: BTreeMap<App, BTreeSet<Handler>> = BTreeMap::new();
        for (app, handler) in self.confirmed().iter() {
            apps.entry(app.clone()).or_default().insert(handler.clone());
        }
        let instances = self.instances().clone();
        let lines = self.lines().clone();
        let of_lines = lines.iter().map(|(app, _, _)| app);
        for app in instances.iter().map(|(app, _)| app).chain(of_lines) {
            apps.entry(app.clone()).or_default();
        }
        for (app, handlers) in apps {
            expected.push(self.expected_app(&app));
            expected.extend(handlers.iter().map(|handler| self.expected_handler(&app, handler)));
        }
        expected.extend(instances.iter().map(|(app, one)| self.expected_instance(app, one)));
        expected.extend(lines.iter().map(|(app, of, one)| self.expected_priority(app, of, *one)));
        let (consumers, streams): (Vec<_>, Vec<_>) =
            expected.into_iter().partition(|definition| definition.parts().1.is_some());
        let mut missing = self.gone(streams, STREAM_AGAIN).await?;
        let gone: BTreeSet<String> = missing.iter().map(|stream| stream.name.clone()).collect();
        let (mut unlisted, mut unheld) = (Vec::new(), Vec::new());
        let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for consumer in consumers {
            let (stream, Some(name)) = consumer.parts() else { continue };
            if gone.contains(stream) {
                unheld.push(consumer);
                continue;
            }
            if !known.contains_key(stream) {
                let names = self.0.api.consumer_names(stream, self.deadline()).await?;
                known.insert(stream.to_owned(), names.into_iter().collect());
            }
            if !known.get(stream).is_some_and(|names| names.contains(name)) {
                unlisted.push(consumer);
            }
        }
        missing.extend(self.gone(unlisted, CONSUMER_AGAIN).await?);
        missing.extend(unheld);
        Ok(missing.into_iter().map(Missing).collect())
    }

    /// Makes it again; false when someone else was faster.
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub async fn make_again(&self, missing: &Missing) -> Result<bool, TopologyError> {
        self.make_if_absent(&missing.0).await
    }

    /// Makes again what was there once and was just not there; false when it is after all. A consumer
    /// went with its stream, or the upkeep finds it missing: nobody waits for it.
    pub(super) async fn find_gone(&self, definition: &Definition) -> Result<bool, TopologyError> {
        if definition.kind != Kind::Consumer {
            sleep(STREAM_AGAIN).await;
        }
        self.make_if_absent(definition).await
    }

    /// One at a time. Whoever comes while the same is made again waits for that, and asks nothing: many
    /// fires miss one stream at once.
    async fn make_if_absent(&self, definition: &Definition) -> Result<bool, TopologyError> {
        let began = Instant::now();
        let deadline = self.deadline();
        let Ok(mut found) = timeout_at(deadline, self.0.remaking.lock()).await else {
            return Err(TopologyError::Unanswered {
                name: definition.name.clone(),
                reason: "something else is being made again".into(),
                waited: began.elapsed(),
            });
        };
        if found.get(&definition.name).is_some_and(|at| *at >= began) {
            return Ok(false);
        }
        let there = self.look(definition, deadline).await?;
        let made = if there { false } else { self.make(definition).await? };
        found.insert(definition.name.clone(), Instant::now());
        Ok(made)
    }

    /// The names of what was made again since this was last asked, in whatever way it was noticed.
    pub fn take_made_again(&self) -> Vec<String> {
        std::mem::take(&mut *self.made_again())
    }

    /// Those that are not there at either of two looks, with one `pause` for all of them between.
    async fn gone(
        &self,
        of: Vec<Definition>,
        pause: Duration,
    ) -> Result<Vec<Definition>, TopologyError> {
        let absent = self.absent(of).await?;
        if absent.is_empty() {
            return Ok(absent);
        }
        sleep(pause).await;
        self.absent(absent).await
    }

    async fn absent(&self, of: Vec<Definition>) -> Result<Vec<Definition>, TopologyError> {
        let mut absent = Vec::new();
        for definition in of {
            if !self.look(&definition, self.deadline()).await? {
                absent.push(definition);
            }
        }
        Ok(absent)
    }

    pub(super) fn deadline(&self) -> Instant {
        Instant::now() + self.0.config.deadline
    }
}
