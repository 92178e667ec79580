//! The consumers of work that has a priority: one for each handler and each priority that a job uses,
//! made when the first such work is sent, or when somebody finds one that another has made.
//!
//! *Invariant: nothing is removed here.* Work may stand in a line long after the last job that used
//! it: whoever knows the line tells executors to look there.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::{MutexGuard, PoisonError};

use taskparty_common::name::{App, Handler};
use taskparty_common::priority::Priority;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Definition, Topology, TopologyError, definition};
use crate::subject::handler_of;

/// A line: an app's handler, and a priority that is not the default.
pub(super) type Line = (App, Handler, Priority);

impl Topology {
    /// The consumer of the work of a handler that has this priority.
    pub fn expected_priority(
        &self,
        app: &App,
        handler: &Handler,
        priority: Priority,
    ) -> Definition {
        let work = (handler.clone(), priority);
        definition::priority(self.0.nats.names(), &self.0.config, app, &work)
    }

    /// As [`Topology::ensure_handler`], of work that has this priority.
    ///
    /// # Errors
    /// See [`TopologyError`]; nothing is remembered then.
    pub async fn ensure_priority(
        &self,
        app: &App,
        handler: &Handler,
        priority: Priority,
    ) -> Result<(), TopologyError> {
        if priority.is_default() {
            return self.ensure_handler(app, handler).await;
        }
        let line = (app.clone(), handler.clone(), priority);
        if self.lines().contains(&line) {
            return Ok(());
        }
        self.ensure(&self.expected_app(app)).await?;
        self.ensure(&self.expected_priority(app, handler, priority)).await?;
        self.know([line]);
        Ok(())
    }

    /// Finds the lines of an app that others have made. One request, two where there are many.
    ///
    /// # Errors
    /// See [`TopologyError`]: there is no such stream yet, or the server could not be asked.
    pub async fn find_lines(&self, app: &App) -> Result<(), TopologyError> {
        let stream = self.0.nats.names().dispatch_stream(app);
        let deadline = Instant::now() + self.0.config.deadline;
        let consumers = self.0.api.consumer_names(&stream, deadline).await?;
        let found = consumers.iter().filter_map(|consumer| handler_of(consumer));
        let found = found.filter(|(_, priority)| !priority.is_default());
        self.know(found.map(|(handler, priority)| (app.clone(), handler, priority)));
        Ok(())
    }

    /// The priorities, besides the default, of which there is work, or was, by handler.
    pub fn priorities(&self) -> BTreeMap<(App, Handler), BTreeSet<Priority>> {
        let mut all: BTreeMap<_, BTreeSet<Priority>> = BTreeMap::new();
        for (app, handler, priority) in self.lines().iter() {
            all.entry((app.clone(), handler.clone())).or_default().insert(*priority);
        }
        all
    }

    /// Tells when there is a line more.
    pub fn new_lines(&self) -> watch::Receiver<()> {
        self.0.new_lines.subscribe()
    }

    fn know(&self, lines: impl IntoIterator<Item = Line>) {
        let mut known = self.lines();
        let before = known.len();
        known.extend(lines);
        if known.len() > before {
            self.0.new_lines.send_replace(());
        }
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, HashSet<Line>> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
