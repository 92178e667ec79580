//! How a process ends decides how its run does.

use serde_json::{Value, json};
use taskparty_common::dispatch::MAX_OUTPUT;
use taskparty_common::outcome::Outcome;
use taskparty_executor::script::{Language, ScriptConfig};

use crate::bench::{Bench, output};
use crate::rig::assert_outcome;

#[tokio::test]
async fn the_exit_code_decides() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    let result = bench.shell("echo fine", json!({})).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    for (text, message, retryable) in [
        (
            "echo the disk is full >&2; exit 3",
            "it.sh ended with exit code 3: the disk is full",
            true,
        ),
        ("exit 7", "it.sh ended with exit code 7", true),
        ("echo no such bill >&2; exit 100", "it.sh ended with exit code 100: no such bill", false),
        ("kill -SEGV $$", "it.sh was killed by signal 11 (SIGSEGV)", true),
        ("kill -KILL 0", "it.sh was killed by signal 9 (SIGKILL)", true),
    ] {
        let result = bench.shell(text, json!({})).await;
        assert_outcome(&result, Outcome::Failed, "handler_error");
        assert_eq!((result.message.as_str(), result.retryable), (message, retryable), "{text}");
        assert!(result.output.is_none());
    }
    let long = "i=0; while [ $i -lt 2000 ]; do echo line $i >&2; i=$((i+1)); done; exit 1";
    let message = bench.shell(long, json!({})).await.message;
    assert!(message.len() < 3000 && message.ends_with("line 1999"), "{message}");
    executor.stop().await;
}

#[tokio::test]
async fn the_end_of_stdout_is_the_output_as_json_where_it_is_that() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    for (text, expected) in [
        (r#"echo begin; echo '{"bills": 42}'"#, json!({"bills": 42})),
        ("printf '{\n \"bills\": 42\n}\n'", json!({"bills": 42})),
        ("echo begin; echo '42 bills'; echo", json!("42 bills")),
        ("echo 42", json!(42)),
        ("true", Value::Null),
        ("echo only an aside >&2", Value::Null),
    ] {
        let result = bench.shell(text, json!({})).await;
        assert_outcome(&result, Outcome::Succeeded, "");
        assert_eq!((output(&result), result.truncated), (expected, false), "{text}");
    }
    let result = bench.shell("head -c 3000000 /dev/zero | tr '\\0' x", json!({})).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert!(result.truncated && result.output.unwrap().get().len() <= MAX_OUTPUT);
    executor.stop().await;
}

#[tokio::test]
async fn programs_and_every_configured_language_run() {
    let bench = Bench::start().await;
    let mut config = bench.config();
    for (language, names) in [(Language::Python, "python3"), (Language::Node, "node")] {
        let paths = std::env::var_os("PATH").unwrap();
        let found = std::env::split_paths(&paths).map(|dir| dir.join(names)).find(|p| p.is_file());
        config.interpreters.extend(found.map(|path| (language, path)));
    }
    let languages = config.interpreters.clone();
    let executor = bench.run(config);
    bench.script("own.sh", "#!/bin/sh\necho \"program $1\"\n");
    bench.script(
        "it.py",
        "import json, sys\nprint(json.dumps(json.load(sys.stdin)['input'] + 1))\n",
    );
    bench.script("it.js", "console.log(JSON.stringify({args: process.argv.slice(2)}))\n");
    let work = bench.rig.work("program", json!({"file": "own.sh", "args": ["a b; exit 1"]}));
    assert_eq!(output(&bench.rig.outcome(&work).await), json!("program a b; exit 1"));
    if languages.contains_key(&Language::Python) {
        let work = bench.rig.work("python", json!({"file": "it.py", "input": 41}));
        assert_eq!(output(&bench.rig.outcome(&work).await), json!(42));
    }
    if languages.contains_key(&Language::Node) {
        let work = bench.rig.work("node", json!({"file": "it.js", "args": ["x"]}));
        assert_eq!(output(&bench.rig.outcome(&work).await), json!({"args": ["x"]}));
    }
    executor.stop().await;
}

#[tokio::test]
async fn another_exit_code_can_be_the_fatal_one() {
    let bench = Bench::start().await;
    let executor = bench.run(ScriptConfig { fatal_exit_code: 2, ..bench.config() });
    assert!(!bench.shell("exit 2", json!({})).await.retryable);
    assert!(bench.shell("exit 100", json!({})).await.retryable);
    executor.stop().await;
}
