//! What is different between two specs, field by field, for people who look before they apply.

use serde_json::{Map, Value};
use taskparty_common::job::JobSpec;

use super::wire::FieldDiff;

/// A longer value is cut: a difference is to be read by a person.
const LONGEST: usize = 400;

/// The fields in which `after` differs from `before`. A field that is absent has its default.
pub(super) fn diff(before: Option<&JobSpec>, after: &JobSpec) -> Vec<FieldDiff> {
    let before = before.map(JobSpec::to_json).unwrap_or_default();
    let mut found = Vec::new();
    compare("", &before, &after.to_json(), &mut found);
    found
}

fn compare(path: &str, before: &Value, after: &Value, found: &mut Vec<FieldDiff>) {
    if before == after {
        return;
    }
    let nothing = Map::new();
    // Params are the user's own: they are one value.
    let objects = match (before, after) {
        _ if path == "params" || path == "shard_params" => None,
        (Value::Object(a), Value::Object(b)) => Some((a, b)),
        (Value::Null, Value::Object(b)) if path.is_empty() => Some((&nothing, b)),
        _ => None,
    };
    let Some((a, b)) = objects else {
        found.push(FieldDiff { field: path.into(), before: shown(before), after: shown(after) });
        return;
    };
    let mut fields: Vec<&String> =
        b.keys().chain(a.keys().filter(|field| !b.contains_key(*field))).collect();
    fields.dedup();
    for field in fields {
        let path = if path.is_empty() { field.clone() } else { format!("{path}.{field}") };
        compare(
            &path,
            a.get(field).unwrap_or(&Value::Null),
            b.get(field).unwrap_or(&Value::Null),
            found,
        );
    }
}

fn shown(value: &Value) -> Option<Value> {
    if value.is_null() {
        return None;
    }
    let text = value.to_string();
    if text.len() <= LONGEST {
        return Some(value.clone());
    }
    let start: String = text.chars().take(LONGEST).collect();
    Some(Value::String(format!("{start}... ({} bytes)", text.len())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use taskparty_common::job::Unknown;

    use super::*;

    fn spec(value: Value) -> JobSpec {
        JobSpec::from_json(&value, Unknown::Refuse).unwrap()
    }

    #[test]
    fn a_difference_names_the_field_and_both_values() {
        let before = spec(json!({"id": "a", "app": "b", "handler": "c", "overlap": "allow",
            "retry": {"max": 1}, "params": {"x": 1}, "timeout": "60s"}));
        let after = spec(json!({"id": "a", "app": "b", "handler": "c", "overlap": "allow",
            "retry": {"max": 2}, "params": {"x": 2}, "timeout": "1m"}));
        let found = diff(Some(&before), &after);
        let fields: Vec<&str> = found.iter().map(|diff| diff.field.as_str()).collect();
        assert_eq!(fields, ["params", "retry.max"]);
        assert_eq!(
            (found[1].before.clone(), found[1].after.clone()),
            (Some(json!(1)), Some(json!(2)))
        );
        assert!(diff(Some(&after), &after).is_empty());
    }
}
