//! Telling executors in which lines work stands: of each handler, the priorities that are in use.
//!
//! An executor has no right to ask which consumers there are, and must not ask in vain: so it is told,
//! on its probe subject, and says in its entry what it looks for. *Invariant: who does not say that he
//! knows priorities is told nothing*, and who does not say that he looks is told again: what is said
//! here may get lost. Nothing is sent while no job has a priority.

use std::collections::HashMap;
use std::time::Duration;

use taskparty_common::name::{App, Handler, Instance};
use taskparty_nats::connect::Nats;
use taskparty_nats::topology::Topology;
use tokio::time::{Instant, timeout};

use crate::registry::Registry;

/// Who has not said by then that he looks is told again.
const AGAIN: Duration = Duration::from_secs(2);

/// How long it may take to send what is said.
const PATIENCE: Duration = Duration::from_secs(2);

/// Who was told of a handler's priorities a moment ago.
#[derive(Debug, Default)]
pub(crate) struct Told(HashMap<(App, Instance, Handler), Instant>);

impl Told {
    /// Tells those that do not look for all there is. True when there are none.
    pub(crate) async fn tell(
        &mut self,
        nats: &Nats,
        topology: &Topology,
        registry: &Registry,
    ) -> bool {
        self.0.retain(|_, at| at.elapsed() < AGAIN);
        let used = topology.priorities();
        let behind = registry.behind(&used);
        let all = behind.is_empty();
        for (app, instance, said) in behind {
            let key = (app, instance, said.handler.clone());
            if self.0.contains_key(&key) {
                continue;
            }
            let Ok(body) = serde_json::to_vec(&said) else { continue };
            let sent = nats.client().publish(nats.names().probe(&key.0, &key.1), body.into());
            if matches!(timeout(PATIENCE, sent).await, Ok(Ok(()))) {
                self.0.insert(key, Instant::now());
            }
        }
        all
    }
}
