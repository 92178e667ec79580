//! YAML that any reader reads back as it was meant.

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::Value;

use crate::failure::Failure;

/// The fields of a spec in the order in which people write them; others follow.
const ORDER: [&str; 20] = [
    "id",
    "title",
    "description",
    "owner",
    "app",
    "handler",
    "schedule",
    "params",
    "route",
    "shards",
    "shard_params",
    "overlap",
    "misfire",
    "retry",
    "redeliveries",
    "timeout",
    "start_deadline",
    "no_executor_wait",
    "alert",
    "labels",
];

/// `data` as YAML.
pub(super) fn write<T: Serialize>(data: &T) -> Result<String, Failure> {
    let broken = |error: String| Failure::could_not(format!("cannot write YAML: {error}"));
    // By way of a JSON value, so that all three formats hold the same.
    let value = serde_json::to_value(data).map_err(|error| broken(error.to_string()))?;
    serde_saphyr::to_string(&Ordered(&value)).map_err(|error| broken(error.to_string()))
}

/// A value whose own fields, not those inside them, are in the order of a spec.
struct Ordered<'a>(&'a Value);

impl Serialize for Ordered<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let Value::Object(fields) = self.0 else { return self.0.serialize(to) };
        let known = ORDER.iter().filter_map(|field| fields.get_key_value(*field));
        let others = fields.iter().filter(|(field, _)| !ORDER.contains(&field.as_str()));
        let mut map = to.serialize_map(Some(fields.len()))?;
        for (field, value) in known.chain(others) {
            map.serialize_entry(field, value)?;
        }
        map.end()
    }
}
