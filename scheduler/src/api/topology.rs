//! `topology.show`, `topology.apply`: streams, buckets and consumers, expected against found.

use std::collections::BTreeMap;

use taskparty_nats::topology::{Difference, Outcome, TopologyError};

use super::Api;
use super::problem::{Code, Problem};
use super::wire::{Nothing, Page, Topology, TopologyItem};

/// What is expected, and where the server differs.
pub(super) async fn show(api: &Api, _: Nothing) -> Result<Topology, Problem> {
    let mut items = Items::expected(api);
    for difference in api.topology.differences().await.map_err(problem)? {
        let missing = difference.field.is_none();
        items.add(&difference, if missing { "missing" } else { "different" }, None);
    }
    Ok(items.page())
}

/// Makes what is missing and changes what can be changed.
pub(super) async fn apply(api: &Api, _: Nothing) -> Result<Topology, Problem> {
    let mut items = Items::expected(api);
    for applied in api.topology.apply().await.map_err(problem)? {
        match &applied.outcome {
            Outcome::Created => items.add(&applied.difference, "created", None),
            Outcome::Changed => items.add(&applied.difference, "changed", None),
            Outcome::Refused { reason } => {
                items.add(&applied.difference, "different", Some(reason))
            }
        }
    }
    Ok(items.page())
}

/// The things by name, in the order in which they are made.
struct Items {
    order: Vec<String>,
    items: BTreeMap<String, TopologyItem>,
}

impl Items {
    fn expected(api: &Api) -> Self {
        let mut items = Self { order: Vec::new(), items: BTreeMap::new() };
        for definition in api.topology.expected() {
            items.get(&definition.kind.to_string(), &definition.name);
        }
        items
    }

    fn get(&mut self, kind: &str, name: &str) -> &mut TopologyItem {
        if !self.items.contains_key(name) {
            self.order.push(name.to_owned());
        }
        self.items.entry(name.to_owned()).or_insert_with(|| TopologyItem {
            kind: kind.into(),
            name: name.into(),
            state: "ok".into(),
            differences: Vec::new(),
        })
    }

    fn add(&mut self, difference: &Difference, state: &str, refused: Option<&str>) {
        let item = self.get(&difference.kind.to_string(), &difference.name);
        // A setting that could not be changed stands out over those that were.
        if item.state != "different" {
            item.state = state.into();
        }
        if let Some(field) = &difference.field {
            let mut text =
                format!("{field}: expected {}, found {}", difference.expected, difference.found);
            if let Some(reason) = refused {
                text.push_str(&format!(" (the server does not change it: {reason})"));
            }
            item.differences.push(text);
        }
    }

    fn page(mut self) -> Topology {
        let items = self.order.iter().filter_map(|name| self.items.remove(name)).collect();
        Page { items, next: None }
    }
}

pub(super) fn problem(error: TopologyError) -> Problem {
    Problem::new(Code::Unavailable, error.to_string())
}
