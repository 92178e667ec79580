//! `topology.show`, `topology.apply`: streams, buckets and consumers, expected against found.

use std::collections::{BTreeMap, BTreeSet};

use taskparty_common::name::{App, Handler, Instance};
use taskparty_common::priority::Priority;
use taskparty_nats::history::{ReadError, consumer_info};
use taskparty_nats::subject::{of_priority, on_instance};
use taskparty_nats::topology::{Definition, Difference, Outcome, TopologyError};

use super::definitions::unreadable;
use super::problem::{Code, Problem};
use super::wire::{Nothing, Page, Topology, TopologyItem};
use super::{Api, live};

/// A state: a job names it and nobody runs it yet; the scheduler makes it with the first fire, or
/// when an executor comes.
pub(super) const LATER: &str = "later";

/// What is expected, and where the server differs.
pub(super) async fn show(api: &Api, _: Nothing) -> Result<Topology, Problem> {
    let work = Work::known(api).await?;
    let mut items = Items::expected(api, &work);
    for difference in api.topology.differences().await.map_err(problem)? {
        let missing = difference.field.is_none();
        items.add(&difference, if missing { "missing" } else { "different" }, None);
    }
    for absent in work.absent(api).await? {
        let state = if work.live.contains(&absent.whose) { "missing" } else { LATER };
        items.set(api, &absent, state);
    }
    Ok(items.page())
}

/// Makes what is missing and changes what can be changed.
pub(super) async fn apply(api: &Api, _: Nothing) -> Result<Topology, Problem> {
    let work = Work::known(api).await?;
    let mut items = Items::expected(api, &work);
    for absent in work.absent(api).await? {
        // It may have been there before, and been deleted by somebody.
        api.topology.forget(absent.whose.app());
        let made = match &absent.whose {
            Whose::Handler(app, handler, priority) => {
                api.topology.ensure_priority(app, handler, *priority).await
            }
            Whose::Instance(app, instance) => api.topology.ensure_instance(app, instance).await,
        };
        made.map_err(problem)?;
        items.set(api, &absent, "created");
    }
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

/// Whose work a consumer has.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Whose {
    Handler(App, Handler, Priority),
    Instance(App, Instance),
}

impl Whose {
    fn app(&self) -> &App {
        match self {
            Self::Handler(app, _, _) | Self::Instance(app, _) => app,
        }
    }

    /// The consumer, as it should be.
    fn consumer(&self, api: &Api) -> Definition {
        match self {
            Self::Handler(app, handler, priority) => {
                api.topology.expected_priority(app, handler, *priority)
            }
            Self::Instance(app, instance) => api.topology.expected_instance(app, instance),
        }
    }
}

/// The handlers that somebody runs, or that a job names; and the live executors.
struct Work {
    named: BTreeSet<Whose>,
    /// Those that are live: the scheduler has made their consumers by now.
    live: BTreeSet<Whose>,
}

impl Work {
    async fn known(api: &Api) -> Result<Self, Problem> {
        let executors = live::executors(api, Nothing {}).await?.items;
        let mut live = BTreeSet::new();
        for entry in executors {
            let app = entry.app;
            for (name, work) in entry.handlers {
                let all =
                    [Priority::default()].into_iter().chain(work.priorities.into_iter().flatten());
                live.extend(all.map(|one| Whose::Handler(app.clone(), name.clone(), one)));
            }
            live.insert(Whose::Instance(app, entry.instance));
        }
        let mut named = live.clone();
        for stored in api.definitions.all().await?.into_values() {
            // A broken definition names nothing that is sure.
            if let Some(Ok(job)) = stored.job() {
                let spec = job.spec;
                for priority in [Priority::default(), spec.priority] {
                    named.insert(Whose::Handler(spec.app.clone(), spec.handler.clone(), priority));
                }
            }
        }
        Ok(Self { named, live })
    }

    /// Those whose consumer is not there.
    async fn absent(&self, api: &Api) -> Result<Vec<Absent>, Problem> {
        let mut absent = Vec::new();
        for whose in &self.named {
            let name = api.nats.names().dispatch_stream(whose.app());
            let consumer = match whose {
                Whose::Handler(_, handler, priority) => of_priority(handler, *priority),
                Whose::Instance(_, instance) => on_instance(instance),
            };
            let what = match consumer_info(api.nats.js(), &name, &consumer).await {
                Ok(Some(_)) => continue,
                Ok(None) => Part::Consumer,
                Err(ReadError::NoStream(_)) => Part::StreamToo,
                Err(error) => return Err(unreadable(error)),
            };
            absent.push(Absent { whose: whose.clone(), what });
        }
        Ok(absent)
    }
}

/// A consumer that is not there.
struct Absent {
    whose: Whose,
    what: Part,
}

/// What is not there.
#[derive(PartialEq, Eq)]
enum Part {
    Consumer,
    StreamToo,
}

/// The things by name, in the order in which they are made.
struct Items {
    order: Vec<String>,
    items: BTreeMap<String, TopologyItem>,
}

impl Items {
    fn expected(api: &Api, work: &Work) -> Self {
        let mut items = Self { order: Vec::new(), items: BTreeMap::new() };
        for definition in api.topology.expected() {
            items.get(&definition.kind.to_string(), &definition.name);
        }
        for whose in &work.named {
            let stream = api.topology.expected_app(whose.app());
            items.get(&stream.kind.to_string(), &stream.name);
            let consumer = whose.consumer(api);
            items.get(&consumer.kind.to_string(), &consumer.name);
        }
        items
    }

    /// What is not there is in `state`.
    fn set(&mut self, api: &Api, absent: &Absent, state: &str) {
        let consumer = absent.whose.consumer(api);
        self.get(&consumer.kind.to_string(), &consumer.name).state = state.into();
        if absent.what == Part::StreamToo {
            let stream = api.topology.expected_app(absent.whose.app());
            self.get(&stream.kind.to_string(), &stream.name).state = state.into();
        }
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
