//! What a script is told, and what it says while it runs.

use serde_json::json;
use taskparty_common::outcome::Outcome;
use taskparty_executor::script::{EnvNames, ScriptConfig};

use crate::bench::{Bench, output};
use crate::rig::assert_outcome;

#[tokio::test]
async fn a_script_knows_its_run_its_shard_and_its_params() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    bench.script("it.sh", "env | sort | grep -e ^TASKPARTY_ -e ^JOB_ > found; echo >> found\ncat");
    let params = json!({"file": "it.sh", "env": {"JOB_DAY": "1 May"}, "input": {"bills": [1, 2]}});
    let mut work = bench.rig.work("shell", params.clone());
    work["shard"] = json!({"index": 2, "total": 5, "param": "south"});
    work["attempt"] = json!(4);
    work["timeout_ms"] = json!(60_000);
    work["fire_time"] = json!("2027-01-31T09:00:00Z");
    let result = bench.rig.outcome(&work).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(output(&result), params, "the params come on standard input");
    let found = bench.written("found").await;
    let mut lines: Vec<&str> = found.lines().collect();
    let deadline = lines.iter().position(|line| line.starts_with("TASKPARTY_DEADLINE=2")).unwrap();
    lines.remove(deadline);
    let run = work["run"].as_str().unwrap();
    let expected = [
        "JOB_DAY=1 May".to_owned(),
        "TASKPARTY_ATTEMPT=4".into(),
        "TASKPARTY_FIRE_TIME=2027-01-31T09:00:00.000Z".into(),
        format!("TASKPARTY_IDEMPOTENCY_KEY={run}/0"),
        "TASKPARTY_JOB=a-job".into(),
        format!("TASKPARTY_PARAMS={params}"),
        format!("TASKPARTY_RUN={run}"),
        "TASKPARTY_SHARD_INDEX=2".into(),
        "TASKPARTY_SHARD_PARAM=south".into(),
        "TASKPARTY_SHARD_TOTAL=5".into(),
    ];
    assert_eq!(lines, expected);
    executor.stop().await;
}

#[tokio::test]
async fn the_environment_is_clean_and_large_params_come_on_stdin_only() {
    let bench = Bench::start().await;
    let config = bench.config();
    let executor = bench.run(config);
    let names = "env | cut -d= -f1 | grep -v -e ^TASKPARTY_ -e ^_$ -e ^PWD$ -e ^OLDPWD$ -e ^SHLVL$ | sort | tr '\\n' ' '";
    let found = output(&bench.shell(names, json!({})).await).as_str().unwrap().to_owned();
    let known = ["HOME", "LANG", "PATH"];
    assert!(found.split(' ').all(|name| known.contains(&name)), "{found}");
    assert!(found.contains("PATH"));
    let count = "echo \"${#TASKPARTY_PARAMS} $(wc -c)\"";
    let result = bench.shell(count, json!({"input": "x".repeat(200_000)})).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    let said = output(&result).as_str().unwrap().to_owned();
    let (variable, stdin) = said.split_once(' ').unwrap();
    assert!(variable == "0" && stdin.trim().parse::<usize>().unwrap() > 200_000, "{said}");
    let result = bench.shell("cat", json!({"stdin": "given"})).await;
    assert_eq!(output(&result), json!("given"));
    // One that reads nothing of what does not fit into the pipe.
    let result = bench.shell("echo done", json!({"stdin": "x".repeat(200_000)})).await;
    assert_eq!(output(&result), json!("done"));
    executor.stop().await;
}

#[tokio::test]
async fn the_operator_says_which_variables_a_job_may_set() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    let script = "echo \"$REGION\"";
    let result = bench.shell(script, json!({"env": {"REGION": "south"}})).await;
    assert_outcome(&result, Outcome::Failed, "bad_params");
    assert!(result.message.contains("JOB_*") && result.message.contains("REGION"));
    executor.stop().await;
    let job_env = EnvNames::new(["REGION"]).unwrap();
    let executor = bench.run(ScriptConfig { job_env, ..bench.config() });
    let result = bench.shell(script, json!({"env": {"REGION": "south"}})).await;
    assert_eq!(output(&result), json!("south"));
    executor.stop().await;
}

#[tokio::test]
async fn lines_are_in_the_log_while_the_script_runs() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    bench.script(
        "it.sh",
        "echo begun; echo careful >&2; while [ ! -e go ]; do sleep 0.05; done; echo ended",
    );
    let run = bench.rig.run("shell", json!({"file": "it.sh"})).await;
    bench.logged("begun").await;
    bench.logged("careful").await;
    assert!(bench.rig.results(run).await.is_empty(), "it still runs");
    std::fs::write(bench.folder().join("go"), "").unwrap();
    assert_outcome(&bench.rig.result(run).await, Outcome::Succeeded, "");
    bench.logged("ended").await;
    let log = bench.log().await;
    assert!(log.contains(&("info".into(), "begun".into())), "{log:?}");
    assert!(log.contains(&("warn".into(), "careful".into())), "{log:?}");
    executor.stop().await;
}

#[tokio::test]
async fn a_script_that_never_stops_writing_fills_nothing_and_ends_well() {
    let bench = Bench::start().await;
    let executor = bench.run(bench.config());
    let text =
        "head -c 100000 /dev/zero | tr '\\0' x; echo; yes 0123456789 | head -n 2000000; echo last";
    let result = bench.shell(text, json!({})).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(output(&result), json!("last"));
    executor.stop().await;
    let log = bench.log().await;
    let bytes: usize = log.iter().map(|(_, line)| line.len() + 1).sum();
    assert!(bytes < 5 << 20, "{bytes}");
    assert!(log.iter().any(|(_, line)| line.ends_with("… (cut)")));
    assert_eq!(log.iter().filter(|(_, line)| line.contains("is full at 4 MiB")).count(), 1);
}
