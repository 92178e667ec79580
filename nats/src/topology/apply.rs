//! Comparing what the server has with what is needed, and changing it when an operator asks.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::time::Instant;

use super::Topology;
use super::compare::{Difference, compare};
use super::definition::Definition;
use super::error::TopologyError;
use crate::subject::handler_of;

/// What was done about a difference.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Applied {
    /// The difference.
    #[serde(flatten)]
    pub difference: Difference,
    /// What became of it.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// What became of a difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum Outcome {
    /// It was missing and has been made.
    Created,
    /// The setting has been changed.
    Changed,
    /// The server does not change it; the reason is the server's own.
    Refused {
        /// Why.
        reason: String,
    },
}

/// A definition, what the server has of it, and where the two differ.
struct Compared {
    definition: Definition,
    found: Option<Value>,
    differences: Vec<Difference>,
}

impl Topology {
    /// Where the server differs from what is needed. The streams of apps that are there are looked
    /// at too, with their handlers' consumers.
    ///
    /// # Errors
    /// See [`TopologyError`]: the server could not be asked.
    pub async fn differences(&self) -> Result<Vec<Difference>, TopologyError> {
        Ok(self.compared().await?.into_iter().flat_map(|one| one.differences).collect())
    }

    /// Makes what is missing and changes what can be changed. What cannot be stays as it is, and
    /// is reported with the server's reason.
    ///
    /// # Errors
    /// See [`TopologyError`]: the server could not be asked, or refused to make something.
    pub async fn apply(&self) -> Result<Vec<Applied>, TopologyError> {
        let mut done = Vec::new();
        for mut one in self.compared().await? {
            let Some(found) = one.found.take() else {
                self.ensure(&one.definition).await?;
                done.extend(
                    one.differences
                        .into_iter()
                        .map(|difference| Applied { difference, outcome: Outcome::Created }),
                );
                continue;
            };
            if one.differences.is_empty() {
                continue;
            }
            // All at once first: some settings can only change together. One by one when that is
            // refused, to find out which of them it is.
            if self.change(&one.definition, &found, &one.differences).await?.is_none() {
                done.extend(
                    one.differences
                        .into_iter()
                        .map(|difference| Applied { difference, outcome: Outcome::Changed }),
                );
                continue;
            }
            let mut now = found;
            for difference in one.differences {
                let one_alone = std::slice::from_ref(&difference);
                let outcome = match self.change(&one.definition, &now, one_alone).await? {
                    None => {
                        now = changed(&now, one_alone);
                        Outcome::Changed
                    }
                    Some(reason) => Outcome::Refused { reason },
                };
                done.push(Applied { difference, outcome });
            }
        }
        for applied in &done {
            tracing::info!(
                name = %applied.difference.name,
                field = applied.difference.field.as_deref().unwrap_or("all"),
                outcome = ?applied.outcome,
                "topology applied"
            );
        }
        Ok(done)
    }

    /// None when it was done, else the server's reason.
    async fn change(
        &self,
        definition: &Definition,
        found: &Value,
        differences: &[Difference],
    ) -> Result<Option<String>, TopologyError> {
        let deadline = Instant::now() + self.0.config.deadline;
        match self.0.api.update(definition, &changed(found, differences), deadline).await {
            Ok(()) => Ok(None),
            Err(
                TopologyError::Refused { description, .. }
                | TopologyError::Limit { description, .. }
                | TopologyError::Peers { description, .. },
            ) => Ok(Some(description)),
            Err(error) => Err(error),
        }
    }

    async fn compared(&self) -> Result<Vec<Compared>, TopologyError> {
        let mut definitions = self.expected();
        definitions.extend(self.expected_apps().await?);
        let mut all = Vec::new();
        for definition in definitions {
            let deadline = Instant::now() + self.0.config.deadline;
            let found = self.0.api.find(&definition, deadline).await?.map(|found| found.config);
            let differences = compare(&definition, found.as_ref());
            all.push(Compared { definition, found, differences });
        }
        Ok(all)
    }

    /// The streams of apps that are there, and their handlers' consumers.
    async fn expected_apps(&self) -> Result<Vec<Definition>, TopologyError> {
        let names = self.0.nats.names();
        let deadline = Instant::now() + self.0.config.deadline;
        let mut definitions = Vec::new();
        for stream in self.0.api.stream_names(&names.dispatches(), deadline).await? {
            let Some(app) = names.app_of(&stream) else { continue };
            definitions.push(self.expected_app(&app));
            for consumer in self.0.api.consumer_names(&stream, deadline).await? {
                // Those of instances are made and removed with their registry entries and have nothing
                // to compare.
                definitions.extend(
                    handler_of(&consumer).map(|(handler, priority)| {
                        self.expected_priority(&app, &handler, priority)
                    }),
                );
            }
        }
        Ok(definitions)
    }
}

/// What the server has, with our values in it: settings that we say nothing about stay.
fn changed(found: &Value, differences: &[Difference]) -> Value {
    let mut config = found.clone();
    for difference in differences {
        let pointer = difference.field.as_deref().map(|field| field.split('.').collect::<Vec<_>>());
        let Some((last, parents)) = pointer.as_deref().and_then(<[&str]>::split_last) else {
            continue;
        };
        let mut at = &mut config;
        for parent in parents {
            at = &mut at[*parent];
        }
        at[*last] = difference.expected.clone();
    }
    config
}
