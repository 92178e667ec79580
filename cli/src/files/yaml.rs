//! YAML 1.2 to JSON values: `on`, `yes` and `no` are texts, a key is there once, aliases end.

use serde::Deserialize;
use serde_json::Value;
use serde_saphyr::budget::Budget;
use serde_saphyr::options::DuplicateKeyPolicy;
use serde_saphyr::{Options, Spanned};

/// Room for some ten thousand jobs in a file.
const MOST_NODES: usize = 2_000_000;

/// One job as it was written, and where.
#[derive(Debug)]
pub(super) struct Document {
    /// Where in the file, as `:12` or ` (document 2)`.
    pub(super) place: String,
    pub(super) value: Value,
}

/// A file with a list of jobs.
#[derive(Deserialize)]
struct List {
    jobs: Vec<Spanned<Value>>,
}

fn options() -> Options {
    let mut budget = Budget::default();
    (budget.max_nodes, budget.max_events) = (MOST_NODES, 2 * MOST_NODES);
    serde_saphyr::options! {
        budget: Some(budget),
        duplicate_keys: DuplicateKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
    }
}

/// All jobs of a file; what holds nothing is left out.
pub(super) fn documents(text: &str) -> Result<Vec<Document>, String> {
    let parsed: Vec<Spanned<Value>> = serde_saphyr::from_multiple_with_options(text, options())
        .map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    let single = parsed.len() == 1;
    for (index, document) in parsed.into_iter().enumerate() {
        let line = document.defined.line();
        let place =
            if single { format!(":{line}") } else { format!(":{line} (document {})", index + 1) };
        match document.value {
            Value::Null => {}
            Value::Object(map) if map.contains_key("jobs") && !map.contains_key("id") => {
                found.extend(list(text, single, map, &place)?);
            }
            Value::Array(_) => {
                return Err(format!("{place}: this is a list; write it under `jobs:`"));
            }
            value => found.push(Document { place, value }),
        }
    }
    Ok(found)
}

fn list(
    text: &str,
    single: bool,
    map: serde_json::Map<String, Value>,
    place: &str,
) -> Result<Vec<Document>, String> {
    if let Some(other) = map.keys().find(|key| *key != "jobs") {
        return Err(format!("{place}: {other}: there is no such field beside `jobs:`"));
    }
    let Some(Value::Array(items)) = map.get("jobs") else {
        return Err(format!("{place}: jobs: write a list of jobs"));
    };
    // Read again for the lines, where that is possible.
    let lines = if single {
        serde_saphyr::from_str_with_options::<List>(text, options()).ok()
    } else {
        None
    };
    let lines: Vec<u64> =
        lines.iter().flat_map(|list| &list.jobs).map(|job| job.defined.line()).collect();
    let documents = items.iter().enumerate().map(|(index, value)| Document {
        place: lines
            .get(index)
            .map_or(format!("{place}, job {}", index + 1), |line| format!(":{line}")),
        value: value.clone(),
    });
    Ok(documents.collect())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn values(text: &str) -> Vec<Value> {
        documents(text).unwrap().into_iter().map(|document| document.value).collect()
    }

    #[test]
    fn words_of_yaml_1_1_are_texts() {
        let found = values("on: yes\nno: [off, y, n, true, null]\ntime: 12:30:00\noctal: 010");
        let expected =
            json!({"on": "yes", "no": ["off", "y", "n", true, null], "time": "12:30:00"});
        for (key, value) in expected.as_object().unwrap() {
            assert_eq!(&found[0][key], value, "{key}");
        }
    }

    #[test]
    fn several_documents_and_a_list_are_several_jobs_with_their_lines() {
        let found = documents("id: a\n---\n---\nid: b\n").unwrap();
        assert_eq!(found.len(), 2);
        assert!(found[1].place.contains("document"), "{found:?}");
        let found = documents("jobs:\n  - id: a\n    app: x\n  - id: b\n").unwrap();
        assert_eq!((found[0].place.as_str(), found[1].place.as_str()), (":2", ":4"));
        assert_eq!(values("{\"jobs\": [{\"id\": \"a\"}]}"), [json!({"id": "a"})]);
        assert!(documents("").unwrap().is_empty() && documents("# nothing\n").unwrap().is_empty());
    }

    #[test]
    fn what_is_ambiguous_or_endless_is_refused() {
        assert!(documents("id: a\nid: b").unwrap_err().contains("duplicate"));
        assert!(documents("- id: a").unwrap_err().contains("under `jobs:`"));
        assert!(documents("jobs: []\nother: 1").unwrap_err().contains("other"));
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for level in 1..12 {
            let before = format!("*a{}", level - 1);
            bomb.push_str(&format!("a{level}: &a{level} [{}]\n", [before.as_str(); 10].join(",")));
        }
        assert!(documents(&bomb).is_err());
        assert!(documents(&format!("a: {}1{}", "[".repeat(200), "]".repeat(200))).is_err());
    }
}
