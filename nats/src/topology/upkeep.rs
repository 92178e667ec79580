//! Keeping what was made: somebody may delete a stream or a consumer by hand while everything runs.
//!
//! *Invariant: only what the server says twice is not there is made again*: during an election a
//! server may not know what it will know in a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use taskparty_common::name::{App, Handler};
use tokio::time::{Instant, sleep};

use super::definition::Definition;
use super::{Topology, TopologyError};

/// Between the two looks at something that is not there.
const LOOK_AGAIN: Duration = Duration::from_millis(300);

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
        let mut missing = Vec::new();
        let mut gone = BTreeSet::new();
        for stream in streams {
            if !self.is_there(&stream).await? {
                gone.insert(stream.name.clone());
                missing.push(Missing(stream));
            }
        }
        let mut known: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for consumer in consumers {
            let (stream, Some(name)) = consumer.parts() else { continue };
            if !gone.contains(stream) && !known.contains_key(stream) {
                let names = self.0.api.consumer_names(stream, self.deadline()).await?;
                known.insert(stream.to_owned(), names.into_iter().collect());
            }
            let listed = known.get(stream).is_some_and(|names| names.contains(name));
            if !listed && (gone.contains(stream) || !self.is_there(&consumer).await?) {
                missing.push(Missing(consumer));
            }
        }
        Ok(missing)
    }

    /// Makes it again; false when someone else was faster.
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub async fn make_again(&self, missing: &Missing) -> Result<bool, TopologyError> {
        self.ensure(&missing.0).await
    }

    /// The names of what was made again since this was last asked, in whatever way it was noticed.
    pub fn take_made_again(&self) -> Vec<String> {
        std::mem::take(&mut *self.made_again())
    }

    async fn is_there(&self, definition: &Definition) -> Result<bool, TopologyError> {
        if self.look(definition, self.deadline()).await? {
            return Ok(true);
        }
        sleep(LOOK_AGAIN).await;
        self.look(definition, self.deadline()).await
    }

    fn deadline(&self) -> Instant {
        Instant::now() + self.0.config.deadline
    }
}
