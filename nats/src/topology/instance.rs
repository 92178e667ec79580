//! The consumers of work that is for one instance alone: made when it registers, removed when it has
//! gone and nothing is left for it.
//!
//! *Invariant: a consumer is removed only when it has nothing to deliver and nothing in hand.* One that
//! nobody removes, because no scheduler ran then, goes by itself after an hour without a pull.

use std::collections::HashSet;
use std::sync::{MutexGuard, PoisonError};

use taskparty_common::name::{App, Instance};
use tokio::time::Instant;

use super::{Definition, Topology, TopologyError, definition};

impl Topology {
    /// The consumer of the work for one instance.
    pub fn expected_instance(&self, app: &App, instance: &Instance) -> Definition {
        definition::instance(self.0.nats.names(), &self.0.config, app, instance)
    }

    /// Makes the stream of `app` and the consumer of `instance` when they are missing. Asks the
    /// server once for each; afterwards it is free.
    ///
    /// # Errors
    /// See [`TopologyError`]; nothing is remembered then.
    pub async fn ensure_instance(
        &self,
        app: &App,
        instance: &Instance,
    ) -> Result<(), TopologyError> {
        let key = (app.clone(), instance.clone());
        if self.instances().contains(&key) {
            return Ok(());
        }
        self.ensure(&self.expected_app(app)).await?;
        self.ensure(&self.expected_instance(app, instance)).await?;
        self.instances().insert(key);
        Ok(())
    }

    /// The instances whose consumers are made sure of and that `lives` says are gone: their
    /// consumers are not looked after any more from here on, and whoever has them may remove them.
    pub fn release_instances(
        &self,
        lives: impl Fn(&App, &Instance) -> bool,
    ) -> Vec<(App, Instance)> {
        let mut instances = self.instances();
        let gone: Vec<_> =
            instances.iter().filter(|(app, instance)| !lives(app, instance)).cloned().collect();
        for key in &gone {
            instances.remove(key);
            // It will be missing, and that is right.
            self.seen().remove(&self.expected_instance(&key.0, &key.1).name);
        }
        gone
    }

    /// Removes the consumer of an instance that has gone, if nothing is left for it. True when it is
    /// not there any more.
    ///
    /// # Errors
    /// See [`TopologyError`].
    pub async fn remove_instance(
        &self,
        app: &App,
        instance: &Instance,
    ) -> Result<bool, TopologyError> {
        let deadline = Instant::now() + self.0.config.deadline;
        let definition = self.expected_instance(app, instance);
        match self.0.api.left(&definition, deadline).await? {
            None => Ok(true),
            Some(0) => self.0.api.delete_consumer(&definition, deadline).await.map(|()| true),
            Some(_) => Ok(false),
        }
    }

    pub(super) fn instances(&self) -> MutexGuard<'_, HashSet<(App, Instance)>> {
        self.0.instances.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
