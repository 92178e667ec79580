//! The executors that live, as they say themselves in the executors bucket.
//!
//! *Invariant: an entry that cannot be read is no executor*, and harms no other entry. What is
//! shown here only informs a decision: who really runs a dispatch is whoever pulls it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use taskparty_common::dispatch::{ExecutorEntry, HandlerEntry, Priorities};
use taskparty_common::name::{App, Handler, Instance};
use taskparty_common::priority::Priority;
use taskparty_nats::bucket::{Buckets, Change, Entry, Watch};
use taskparty_nats::subject::Bucket;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// How long an entry that went is remembered.
pub const REMEMBERED: Duration = Duration::from_secs(60);

/// A handler of an app.
pub type AppHandler = (App, Handler);

/// The live executors. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Registry {
    live: Arc<RwLock<Live>>,
    changes: watch::Sender<u64>,
}

#[derive(Debug)]
struct Live {
    /// By the key in the bucket.
    entries: BTreeMap<String, ExecutorEntry>,
    /// How many live executors take work for a handler, over all entries.
    takers: HashMap<AppHandler, usize>,
    /// Since when nobody takes work for a handler that somebody once took work for.
    absent: HashMap<AppHandler, Instant>,
    /// Entries that went a moment ago, and when.
    gone: HashMap<String, Instant>,
    /// Since when the bucket is watched.
    since: Instant,
    ready: bool,
}

impl Default for Registry {
    fn default() -> Self {
        let live = Live {
            entries: BTreeMap::new(),
            takers: HashMap::new(),
            absent: HashMap::new(),
            gone: HashMap::new(),
            since: Instant::now(),
            ready: false,
        };
        Self { live: Arc::new(RwLock::new(live)), changes: watch::Sender::new(0) }
    }
}

impl Registry {
    /// Watches the bucket until `shutdown`.
    pub async fn run(self, buckets: Buckets, shutdown: CancellationToken) {
        let mut watch = Watch::start(&buckets, Bucket::Executors, ">", &shutdown);
        while let Some(change) = watch.next().await {
            match change {
                Change::Entry(entry) => self.write().take_in(entry),
                Change::Ready => self.write().ready = true,
            }
            self.changes.send_modify(|count| *count += 1);
        }
    }

    /// Every live executor, the draining ones too.
    pub fn entries(&self) -> Vec<ExecutorEntry> {
        self.read().entries.values().cloned().collect()
    }

    /// The live executors that take work for the handler, in the order of their ids.
    pub fn candidates(&self, app: &App, handler: &Handler) -> Vec<Instance> {
        let live = self.read();
        let takers = live.of(app, handler).filter(|(entry, _)| !entry.draining);
        let mut all: Vec<Instance> = takers.map(|(entry, _)| entry.instance.clone()).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Whether there is an executor that takes work for the handler, and each that does looks for it
    /// where work of a priority stands.
    pub fn knows_priorities(&self, app: &App, handler: &Handler) -> bool {
        let live = self.read();
        let mut takers = live.of(app, handler).filter(|(entry, _)| !entry.draining).peekable();
        takers.peek().is_some() && takers.all(|(_, work)| work.priorities.is_some())
    }

    /// Whether there is an executor that takes work for the handler, and none of those that are there
    /// looks for it where work of a priority stands.
    pub fn ignores_priorities(&self, app: &App, handler: &Handler) -> bool {
        let known = self.read().of(app, handler).any(|(_, work)| work.priorities.is_some());
        !known && self.has(app, handler)
    }

    /// The priorities, besides the default, whose work somebody says he looks for, by handler.
    pub fn priorities(&self) -> BTreeMap<AppHandler, BTreeSet<Priority>> {
        let mut all: BTreeMap<AppHandler, BTreeSet<Priority>> = BTreeMap::new();
        for entry in self.read().entries.values() {
            for (handler, work) in &entry.handlers {
                let said = work.priorities.iter().flatten().filter(|one| !one.is_default());
                for one in said {
                    all.entry((entry.app.clone(), handler.clone())).or_default().insert(*one);
                }
            }
        }
        all
    }

    /// Those that know priorities and do not look for work of all that are in use, with what each has
    /// to be told.
    pub fn behind(
        &self,
        used: &BTreeMap<AppHandler, BTreeSet<Priority>>,
    ) -> Vec<(App, Instance, Priorities)> {
        let live = self.read();
        let mut behind = Vec::new();
        for ((app, handler), used) in used {
            for (entry, work) in live.of(app, handler) {
                let Some(known) = &work.priorities else { continue };
                let missing = used.iter().filter(|one| !known.contains(one));
                let priorities: Vec<Priority> = missing.copied().collect();
                if !priorities.is_empty() {
                    let said = Priorities { handler: handler.clone(), priorities };
                    behind.push((app.clone(), entry.instance.clone(), said));
                }
            }
        }
        behind
    }

    /// Whether this executor is there, draining or not.
    pub fn lives(&self, app: &App, instance: &Instance) -> bool {
        self.read().entries.contains_key(&format!("{app}.{instance}"))
    }

    /// For how long this executor has been gone; since the beginning of the watch, or for
    /// [`REMEMBERED`] at least, if it was not seen before. None while it is there.
    pub fn gone_for(&self, app: &App, instance: &Instance) -> Option<Duration> {
        let live = self.read();
        let key = format!("{app}.{instance}");
        let since = live.gone.get(&key).copied().unwrap_or(live.since);
        (!live.entries.contains_key(&key)).then(|| since.elapsed())
    }

    /// Every executor that is there, draining or not.
    pub fn instances(&self) -> BTreeSet<(App, Instance)> {
        let live = self.read();
        live.entries.values().map(|entry| (entry.app.clone(), entry.instance.clone())).collect()
    }

    /// Whether a live executor takes work for the handler.
    pub fn has(&self, app: &App, handler: &Handler) -> bool {
        self.read().takers.contains_key(&(app.clone(), handler.clone()))
    }

    /// Since when no live executor takes work for the handler: since the beginning of the watch
    /// if none ever did; nothing while one does.
    pub fn absent_since(&self, app: &App, handler: &Handler) -> Option<Instant> {
        let live = self.read();
        let key = (app.clone(), handler.clone());
        let absent = live.absent.get(&key).copied().unwrap_or(live.since);
        (!live.takers.contains_key(&key)).then_some(absent)
    }

    /// The handlers that live executors take work for.
    pub fn handlers(&self) -> BTreeSet<AppHandler> {
        self.read().takers.keys().cloned().collect()
    }

    /// Tells of each change.
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Whether everything that was in the bucket at the beginning is known.
    pub fn is_ready(&self) -> bool {
        self.read().ready
    }

    /// Waits until [`Registry::is_ready`].
    pub async fn ready(&self) {
        let mut changes = self.changed();
        while !self.is_ready() {
            if changes.changed().await.is_err() {
                return;
            }
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, Live> {
        self.live.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Live> {
        self.live.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Live {
    /// The executors that have the handler, draining or not.
    fn of(
        &self,
        app: &App,
        handler: &Handler,
    ) -> impl Iterator<Item = (&ExecutorEntry, &HandlerEntry)> {
        let first = format!("{app}.");
        let from = self.entries.range(first.clone()..);
        let of_app = from.take_while(move |(key, _)| key.starts_with(&first));
        of_app
            .map(|(_, entry)| entry)
            .filter(move |entry| entry.app == *app)
            .filter_map(move |entry| Some((entry, entry.handlers.get(handler)?)))
    }

    fn take_in(&mut self, entry: Entry) {
        let was = self.entries.remove(&*entry.key);
        if was.is_some() && entry.value.is_none() {
            self.gone.retain(|_, since| since.elapsed() < REMEMBERED);
            self.gone.insert(entry.key.to_string(), Instant::now());
        }
        let is = entry.value.and_then(|value| {
            let read = serde_json::from_slice::<ExecutorEntry>(&value);
            read.inspect_err(|error| {
                tracing::warn!(key = %entry.key, %error, "An executor's entry cannot be read; it is ignored.");
            })
            .ok()
        });
        for key in is.iter().flat_map(work_of) {
            *self.takers.entry(key).or_default() += 1;
        }
        for key in was.iter().flat_map(work_of) {
            if let Some(count) = self.takers.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    self.takers.remove(&key);
                    self.absent.insert(key, Instant::now());
                }
            }
        }
        if let Some(is) = is {
            self.gone.remove(&*entry.key);
            self.entries.insert(entry.key.to_string(), is);
        }
    }
}

/// The handlers that an executor takes work for.
fn work_of(entry: &ExecutorEntry) -> impl Iterator<Item = AppHandler> {
    let handlers = if entry.draining { None } else { Some(entry.handlers.keys()) };
    handlers.into_iter().flatten().map(|handler| (entry.app.clone(), handler.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use chrono::DateTime;
    use serde_json::json;

    fn put(registry: &Registry, key: &str, value: Option<serde_json::Value>) {
        let value = value.map(|value| value.to_string().into());
        let created = DateTime::UNIX_EPOCH;
        registry.write().take_in(Entry { key: key.into(), revision: 1, value, created });
    }

    fn executor(instance: &str, draining: bool) -> Option<serde_json::Value> {
        Some(json!({ "v": 1, "app": "shop", "instance": instance, "draining": draining,
            "handlers": { "settle": { "slots": 4 } }, "started_at": "2026-01-01T00:00:00Z" }))
    }

    #[test]
    fn priorities_are_known_when_each_executor_knows_them() {
        let registry = Registry::default();
        let (app, handler) = (App::new("shop").unwrap(), Handler::new("settle").unwrap());
        let newer = |instance: &str, draining: bool, priorities: &[u32]| {
            let mut entry = executor(instance, draining).unwrap();
            entry["handlers"]["settle"]["priorities"] = json!(priorities);
            Some(entry)
        };
        let both = || {
            let (known, ignored) = (
                registry.knows_priorities(&app, &handler),
                registry.ignores_priorities(&app, &handler),
            );
            (known, ignored)
        };
        assert_eq!(both(), (false, false), "nobody is there");
        put(&registry, "shop.a", newer("a", false, &[]));
        assert_eq!(both(), (true, false));
        put(&registry, "shop.old", executor("old", false));
        assert_eq!(both(), (false, false), "one looks for it, and one does not");
        put(&registry, "shop.a", newer("a", true, &[]));
        assert_eq!(both(), (false, false), "who drains still has some in hand");
        put(&registry, "shop.a", None);
        assert_eq!(both(), (false, true));
        put(&registry, "shop.old", executor("old", true));
        assert_eq!(both(), (false, false), "nobody takes work");

        put(&registry, "shop.b", newer("b", false, &[9]));
        let [first, last] = [0, 9].map(|number| Priority::new(number).unwrap());
        let shown = registry.priorities();
        assert_eq!(shown, BTreeMap::from([((app.clone(), handler.clone()), [last].into())]));
        let used = BTreeMap::from([((app.clone(), handler.clone()), [first, last].into())]);
        let told = Priorities { handler: handler.clone(), priorities: vec![first] };
        assert_eq!(registry.behind(&used), [(app.clone(), Instance::new("b").unwrap(), told)]);
        put(&registry, "shop.b", newer("b", false, &[0, 9]));
        assert_eq!(registry.behind(&used), []);
    }

    #[test]
    fn a_handler_is_there_while_one_executor_takes_work_for_it() {
        let registry = Registry::default();
        let (app, handler) = (App::new("shop").unwrap(), Handler::new("settle").unwrap());
        let start = registry.absent_since(&app, &handler).unwrap();
        put(&registry, "shop.a", executor("a", false));
        put(&registry, "shop.a", executor("a", false));
        put(&registry, "shop.b", executor("b", false));
        assert!(registry.has(&app, &handler));
        let ids = |registry: &Registry| -> Vec<String> {
            registry.candidates(&app, &handler).iter().map(ToString::to_string).collect()
        };
        put(&registry, "shop-2.a", executor("a", false));
        assert_eq!(ids(&registry), ["a", "b"]);
        put(&registry, "shop-2.a", None);
        put(&registry, "shop.a", executor("a", true));
        assert_eq!(ids(&registry), ["b"], "who drains takes no work");
        assert_eq!(registry.absent_since(&app, &handler), None);
        let b = Instance::new("b").unwrap();
        assert_eq!(registry.gone_for(&app, &b), None);
        put(&registry, "shop.b", None);
        assert!(registry.gone_for(&app, &b).unwrap() < start.elapsed(), "since it went");
        assert!(!registry.has(&app, &handler));
        assert!(registry.absent_since(&app, &handler).unwrap() > start);
        assert_eq!(registry.entries().len(), 1);
        put(&registry, "shop.c", Some(json!({ "nonsense": true })));
        assert_eq!(registry.entries().len(), 1);
    }
}
