//! What the operator did not open stays closed.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;

use serde_json::json;
use taskparty_common::outcome::Outcome;
use taskparty_executor::script::{self, Language, ScriptConfig, ScriptError};

use crate::bench::{Bench, output};
use crate::rig::assert_outcome;

#[tokio::test]
async fn nothing_outside_the_folder_is_run() {
    let bench = Bench::start().await;
    std::fs::write(bench.dir.path().join("outside.sh"), "echo reached").unwrap();
    symlink("../outside.sh", bench.folder().join("link.sh")).unwrap();
    symlink("it.sh", bench.folder().join("inner.sh")).unwrap();
    bench.script("it.sh", "echo inside");
    let executor = bench.run(bench.config());
    let absolute = bench.folder().join("it.sh").display().to_string();
    for (handler, file) in [
        ("shell", "../outside.sh"),
        ("shell", "link.sh"),
        ("shell", absolute.as_str()),
        ("shell", "."),
        ("shell", "gone.sh"),
        ("program", "../outside.sh"),
        ("program", "link.sh"),
    ] {
        let result = bench.rig.outcome(&bench.rig.work(handler, json!({"file": file}))).await;
        assert_outcome(&result, Outcome::Failed, "bad_params");
        assert!(!result.retryable && result.message.starts_with("file: "), "{}", result.message);
        assert!(!result.message.contains(bench.dir.path().to_str().unwrap()) || file == absolute);
    }
    let result = bench.rig.outcome(&bench.rig.work("shell", json!({"file": "inner.sh"}))).await;
    assert_eq!(output(&result), json!("inside"));
    std::fs::write(bench.folder().join("plain"), "echo").unwrap();
    let result = bench.rig.outcome(&bench.rig.work("program", json!({"file": "plain"}))).await;
    assert_outcome(&result, Outcome::Failed, "bad_params");
    assert!(result.message.contains("executable"), "{}", result.message);
    executor.stop().await;
}

#[tokio::test]
async fn inline_texts_run_only_where_they_are_allowed_and_leave_nothing_behind() {
    let bench = Bench::start().await;
    let inline = json!({"inline": "echo \"$0 $1\"; pwd", "args": ["a"]});
    let executor = bench.run(bench.config());
    let result = bench.rig.outcome(&bench.rig.work("shell", inline.clone())).await;
    assert_outcome(&result, Outcome::Failed, "bad_params");
    assert!(result.message.contains("files of its folder only"), "{}", result.message);
    executor.stop().await;

    let config = ScriptConfig {
        folder: None,
        programs: false,
        inline: Some(bench.scratch()),
        ..bench.config()
    };
    let executor = bench.run(config);
    let result = bench.rig.outcome(&bench.rig.work("shell", inline)).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert!(output(&result).as_str().unwrap().contains("/scratch/taskparty-"));
    let result = bench.rig.outcome(&bench.rig.work("shell", json!({"file": "it.sh"}))).await;
    assert_outcome(&result, Outcome::Failed, "bad_params");
    executor.stop().await;
    assert_eq!(std::fs::read_dir(bench.scratch()).unwrap().count(), 0);
}

#[tokio::test]
async fn params_that_say_something_else_are_refused() {
    let bench = Bench::start().await;
    bench.script("it.sh", "echo ran");
    let executor = bench.run(bench.config());
    for params in [
        json!(null),
        json!({"file": "it.sh", "arguments": []}),
        json!({"file": "it.sh", "env": {"TASKPARTY_RUN": "x"}}),
        json!({"file": "it.sh", "args": ["x".repeat(200_000)]}),
    ] {
        let result = bench.rig.outcome(&bench.rig.work("shell", params)).await;
        assert_outcome(&result, Outcome::Failed, "bad_params");
    }
    executor.stop().await;
}

#[tokio::test]
async fn an_executor_that_could_run_nothing_does_not_start() {
    let bench = Bench::start().await;
    let wrong = |config: ScriptConfig| script::executor(bench.rig.app.clone(), config).unwrap_err();
    assert!(matches!(wrong(ScriptConfig::default()), ScriptError::Nothing));
    let none = ScriptConfig { folder: None, ..bench.config() };
    assert!(matches!(wrong(none), ScriptError::NoSource { what: "shell", .. }));
    let folder = Some(bench.dir.path().join("none"));
    assert!(matches!(wrong(ScriptConfig { folder, ..bench.config() }), ScriptError::Folder { .. }));
    let interpreters = BTreeMap::from([(Language::Python, "python3".into())]);
    let config = ScriptConfig { interpreters, ..bench.config() };
    assert!(matches!(wrong(config), ScriptError::Interpreter { .. }), "a path is wanted");
    let config = ScriptConfig { http: Some(script::HttpConfig::default()), ..bench.config() };
    assert!(matches!(wrong(config), ScriptError::Nothing), "no address is allowed");
}
