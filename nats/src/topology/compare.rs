//! What differs between a configuration as it should be and as it is. Pure.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::definition::{Definition, Kind};

/// Says nothing about how a stream works.
const IGNORED: &str = "description";

/// One setting that is not as it should be, or a thing that is missing as a whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Difference {
    /// Of what.
    pub kind: Kind,
    /// Its name; a consumer's is `<stream>/<consumer>`.
    pub name: String,
    /// The setting, with dots into nested ones; none when the thing is missing.
    pub field: Option<String>,
    /// What it should be; for a missing thing its whole configuration.
    pub expected: Value,
    /// What it is; null when it is missing or not set.
    pub found: Value,
}

/// Compares every setting that `definition` has; those that only the server has do not matter.
pub(crate) fn compare(definition: &Definition, found: Option<&Value>) -> Vec<Difference> {
    let difference = |field: Option<String>, expected: &Value, found: &Value| Difference {
        kind: definition.kind,
        name: definition.name.clone(),
        field,
        expected: expected.clone(),
        found: found.clone(),
    };
    let Some(found) = found else {
        return vec![difference(None, &definition.config, &Value::Null)];
    };
    let mut fields = Vec::new();
    walk("", &definition.config, found, &mut fields);
    fields
        .into_iter()
        .map(|(field, expected, found)| difference(Some(field), &expected, &found))
        .collect()
}

fn walk(path: &str, expected: &Value, found: &Value, into: &mut Vec<(String, Value, Value)>) {
    let empty = Map::new();
    let (Value::Object(expected), found) = (expected, found.as_object().unwrap_or(&empty)) else {
        return;
    };
    for (key, value) in expected {
        if path.is_empty() && key == IGNORED {
            continue;
        }
        let field = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        let there = found.get(key).unwrap_or(&Value::Null);
        if value.is_object() {
            walk(&field, value, there, into);
        } else if !same(value, there) {
            into.push((field, value.clone(), there.clone()));
        }
    }
}

/// The server leaves out what is false, zero or empty, and keeps subjects in its own order.
fn same(expected: &Value, found: &Value) -> bool {
    match (expected, found) {
        (Value::Bool(false), Value::Null) => true,
        (Value::Number(number), Value::Null) => number.as_i64() == Some(0),
        (Value::String(text), Value::Null) => text.is_empty(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().all(|one| b.contains(one))
        }
        _ => expected == found,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_what_we_ask_for_is_compared() {
        let definition = Definition {
            kind: Kind::Stream,
            name: "S".into(),
            config: json!({"description": "x", "subjects": ["a", "b"], "max_age": 7, "sealed": false, "limits": {"a": 1}}),
        };
        let found = json!({"subjects": ["b", "a"], "max_age": 8, "storage": "file", "limits": {"a": 2, "b": 3}});
        let fields: Vec<_> = compare(&definition, Some(&found))
            .into_iter()
            .map(|d| (d.field.unwrap(), d.found))
            .collect();
        assert_eq!(fields, [("limits.a".into(), json!(2)), ("max_age".into(), json!(8))]);
        assert_eq!(compare(&definition, None)[0].field, None);
    }
}
