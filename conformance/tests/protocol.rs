//! What `docs/protocol.md` shows is what the Rust types say.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use taskparty_common::dispatch::{
    Cancel, Dispatch, ExecutorEntry, MAX_MESSAGE, MAX_OUTPUT, Priorities, Progress, ResultRecord,
    Started,
};
use taskparty_common::outcome::{Code, Outcome, Trigger};

fn page() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol.md");
    std::fs::read_to_string(path).unwrap()
}

/// The examples of `kind`.
fn examples(kind: &str) -> Vec<Value> {
    let (page, fence) = (page(), format!("```json {kind}\n"));
    let blocks = page.split(&fence).skip(1);
    let texts = blocks.map(|block| block.split("```").next().unwrap());
    texts.map(|text| serde_json::from_str(text).unwrap()).collect()
}

/// Every field of an example is known, and none that is always written is missing.
fn is_whole<T: DeserializeOwned + Serialize>(kind: &str) {
    let examples = examples(kind);
    assert!(!examples.is_empty(), "there is no {kind}");
    for example in examples {
        let read: T = serde_json::from_value(example.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), example, "{kind}");
    }
}

#[test]
fn the_examples_are_what_the_types_read_and_write() {
    is_whole::<ExecutorEntry>("registry");
    is_whole::<Priorities>("priorities");
    is_whole::<Dispatch>("dispatch");
    is_whole::<Started>("started");
    is_whole::<Progress>("progress");
    is_whole::<ResultRecord>("result");
    is_whole::<Cancel>("cancel");
}

#[test]
fn every_word_and_limit_is_on_the_page() {
    let page = page();
    let words = Outcome::ALL.iter().map(|(word, _)| *word);
    let words = words.chain(Code::ALL.iter().map(|(word, _)| *word));
    for word in words.chain(Trigger::ALL.iter().map(|(word, _)| *word)) {
        assert!(page.contains(&format!("`{word}`")), "there is no `{word}`");
    }
    for limit in [MAX_MESSAGE, MAX_OUTPUT] {
        assert!(page.contains(&format!("at most {limit} bytes")), "there is no {limit}");
    }
}
