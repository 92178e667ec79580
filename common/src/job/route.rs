//! The fields `route` and `shards`: which executors a run goes to, and in how many pieces.

use serde_json::{Value, json};

use super::read::{Fields, nearest, string};
use super::{MAX_PARAMS, MAX_SHARDS};

/// The longest `key` of a consistent hash, in characters.
const MAX_KEY: usize = 256;

/// Which executor gets a run, or each shard of it (contract, section 3).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Route {
    /// An executor with a free slot takes it.
    #[default]
    Any,
    /// The first by instance id.
    First,
    /// The last by instance id.
    Last,
    /// One after the other.
    RoundRobin,
    /// Any of them, by chance.
    Random,
    /// Always the same one, as long as it is there.
    ConsistentHash {
        /// What is hashed; nothing: the job's id.
        key: Option<String>,
    },
    /// The one that got the fewest runs of this job.
    LeastFrequentlyUsed,
    /// The one that got a run of this job longest ago.
    LeastRecentlyUsed,
    /// The first that answers a probe.
    Failover,
    /// The first that does not run this job.
    Busyover,
    /// Every live executor, each with its own shard.
    Broadcast,
}

impl Route {
    const WORDS: [(&'static str, Self); 11] = [
        ("any", Self::Any),
        ("first", Self::First),
        ("last", Self::Last),
        ("round_robin", Self::RoundRobin),
        ("random", Self::Random),
        ("consistent_hash", Self::ConsistentHash { key: None }),
        ("least_frequently_used", Self::LeastFrequentlyUsed),
        ("least_recently_used", Self::LeastRecentlyUsed),
        ("failover", Self::Failover),
        ("busyover", Self::Busyover),
        ("broadcast", Self::Broadcast),
    ];

    /// The word for it.
    pub fn as_str(&self) -> &'static str {
        let same = |other: &Self| std::mem::discriminant(other) == std::mem::discriminant(self);
        Self::WORDS.iter().find(|(_, route)| same(route)).map_or("any", |(word, _)| word)
    }

    fn from_word(word: &str) -> Result<Self, String> {
        let found = Self::WORDS.into_iter().find(|(name, _)| *name == word);
        found.map(|(_, route)| route).ok_or_else(|| {
            let names = Self::WORDS.map(|(name, _)| name);
            let known = names.join(", ");
            match nearest(word, names.into_iter()) {
                Some(near) => format!("did you mean {near:?}? It is one of {known}"),
                None => format!("it is one of {known}"),
            }
        })
    }

    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::ConsistentHash { key: Some(key) } => json!({ "by": self.as_str(), "key": key }),
            route => json!(route.as_str()),
        }
    }
}

/// In how many pieces a run is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shards {
    /// So many; 1 is unsharded.
    Count(u32),
    /// One for each executor that is live when the run is fired.
    Executors,
}

impl Shards {
    /// The number, where it is known before the run.
    pub fn count(self) -> Option<u32> {
        match self {
            Self::Count(count) => Some(count),
            Self::Executors => None,
        }
    }

    pub(super) fn to_json(self) -> Value {
        match self {
            Self::Count(count) => json!(count),
            Self::Executors => json!("executors"),
        }
    }
}

/// Reads `route`, as a word or as `{by, key}`.
pub(super) fn read_route(fields: &mut Fields<'_>) -> Route {
    match fields.raw("route") {
        None => Route::default(),
        Some(Value::String(word)) => {
            let read = Route::from_word(word);
            read.map_err(|problem| fields.fail("route", problem)).unwrap_or_default()
        }
        Some(Value::Object(_)) => read_object(fields).unwrap_or_default(),
        Some(_) => {
            fields
                .fail("route", "write a word, as round_robin, or {by: consistent_hash, key: text}");
            Route::default()
        }
    }
}

fn read_object(fields: &mut Fields<'_>) -> Option<Route> {
    let mut inner = fields.object("route")?;
    let route = inner.read("by", |value| Route::from_word(string(value)?));
    if inner.raw("by").is_none() {
        inner.fail("by", "it is missing: write {by: consistent_hash, key: text}");
    }
    let key = inner.text("key", MAX_KEY);
    let route = match (route, key) {
        (Some(Route::ConsistentHash { .. }), Some(key)) if key.is_empty() => {
            inner.fail("key", "it is empty; without a key the job's id is hashed");
            None
        }
        (Some(Route::ConsistentHash { .. }), key) => Some(Route::ConsistentHash { key }),
        (Some(route), Some(_)) => {
            inner.fail(
                "key",
                format!("only consistent_hash has a key, {} has none", route.as_str()),
            );
            None
        }
        (route, _) => route,
    };
    inner.finish();
    route
}

/// Reads `shards`, a number or `executors`, which must go with `route`.
pub(super) fn read_shards(fields: &mut Fields<'_>, route: &Route) -> Shards {
    let read = |value: &Value| {
        if value.as_str() == Some("executors") {
            return Ok(Shards::Executors);
        }
        let count = value.as_u64().and_then(|n| u32::try_from(n).ok());
        count
            .filter(|n| (1..=MAX_SHARDS).contains(n))
            .map(Shards::Count)
            .ok_or(format!("write a whole number from 1 to {MAX_SHARDS}, or executors"))
    };
    let shards = fields.read("shards", read).unwrap_or(Shards::Count(1));
    if *route == Route::Broadcast && shards != Shards::Count(1) {
        fields.fail(
            "shards",
            "route: broadcast makes a shard for each live executor by itself; leave `shards` out",
        );
    }
    shards
}

/// Reads `shard_params`: an item for each of a fixed number of shards.
pub(super) fn read_shard_params(
    fields: &mut Fields<'_>,
    route: &Route,
    shards: Shards,
) -> Vec<Value> {
    let count = shards.count().filter(|_| *route != Route::Broadcast);
    fields
        .read("shard_params", |value| {
            let Value::Array(items) = value else {
                return Err("write a list with an item for each shard".into());
            };
            match count {
                _ if items.is_empty() => {}
                None => {
                    return Err("how many shards there will be is not known before the run: it needs `shards` to be a number".into());
                }
                Some(count) if items.len() != count as usize => {
                    return Err(format!("it has {} items for {count} shards", items.len()));
                }
                Some(_) => {}
            }
            let size = value.to_string().len();
            if size > MAX_PARAMS {
                return Err(format!("it has {size} bytes of JSON, the limit is {MAX_PARAMS}"));
            }
            Ok(items.clone())
        })
        .unwrap_or_default()
}
