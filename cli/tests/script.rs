//! `serve --roles script`, as an operator configures it.

#![allow(clippy::unwrap_used, reason = "a test that meets an error has failed")]

mod support;

use std::os::unix::process::CommandExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use support::{Desk, Rig};

const CONFIG: &str = r#"
[script]
folder = "scripts"
slots = 2
env = ["ZONE_NAME"]

[script.interpreters]
shell = "/bin/sh"

[script.http]
allow = ["127.0.0.1"]
secrets = ["API_TOKEN"]
"#;

/// A node, killed with the test.
struct Node(Child);

impl Node {
    fn start(desk: &Desk, args: &[&str]) -> Self {
        let mut command = desk.command(args).into_std();
        command.env("ZONE_NAME", "east").env("API_TOKEN", "s3cret").process_group(0);
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    async fn stop(mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        let ended = tokio::task::spawn_blocking(move || self.0.wait().unwrap().code());
        ended.await.unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_runs_a_file_of_the_folder() {
    let rig = Rig::start().await;
    rig.desk.file("taskparty.toml", CONFIG);
    rig.desk.file("scripts/settle.sh", "echo \"$ZONE_NAME $1\"; cat >/dev/null; exit 100");
    rig.desk.file(
        "scripts/fine.sh",
        "echo \"shard $TASKPARTY_SHARD_INDEX of $TASKPARTY_SHARD_TOTAL in $ZONE_NAME\"",
    );
    let job = |id: &str, file: &str| {
        format!(
            "id: {id}\napp: scripts\nhandler: shell\noverlap: allow\nretry: {{max: 5}}\nparams: {{file: {file}, args: [now]}}\n"
        )
    };
    let jobs = [job("fine", "fine.sh"), job("fatal", "settle.sh")].join("---\n");
    rig.desk.file("jobs.yaml", &jobs);
    let node = Node::start(&rig.desk, &["serve", "--roles", "script"]);
    rig.run(&["job", "apply", "-f", "jobs.yaml"]).await.exits(0);
    rig.run(&["job", "trigger", "fine", "--key", "one"]).await.exits(0);
    rig.run(&["job", "trigger", "fatal", "--key", "one"]).await.exits(0);
    let run = ended(&rig, "fine").await;
    assert_eq!(run["state"], "succeeded", "{run:#}");
    let run = rig.run(&["run", "get", run["run"].as_str().unwrap(), "-o", "json"]).await.exits(0);
    assert!(run.stdout.contains("shard 0 of 1 in east"), "{run:#?}");
    let run = ended(&rig, "fatal").await;
    assert_eq!(run["state"], "failed", "{run:#}");
    let run = rig.run(&["run", "get", run["run"].as_str().unwrap(), "-o", "json"]).await.exits(0);
    assert!(run.stdout.contains("settle.sh ended with exit code 100"), "{run:#?}");
    let live = rig.run(&["executor", "list", "-o", "json"]).await.exits(0).json();
    let handlers = &live["items"][0]["handlers"];
    assert!(
        handlers.to_string().contains("shell") && handlers.to_string().contains("http"),
        "{live:#}"
    );
    assert!(!handlers.to_string().contains("python"), "{live:#}");
    assert_eq!(node.stop().await, Some(0));
    rig.stop().await;
}

/// The only run of `job`, once it has ended.
async fn ended(rig: &Rig, job: &str) -> serde_json::Value {
    let end = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let runs = rig.run(&["run", "list", "--job", job, "-o", "json"]).await.exits(0).json();
        let run = runs["items"][0].clone();
        if ["succeeded", "failed"].contains(&run["state"].as_str().unwrap_or_default()) {
            return run;
        }
        assert!(tokio::time::Instant::now() < end, "{job} did not end: {runs:#}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn what_is_missing_is_said_before_anything_starts() {
    let desk = Desk::new();
    let serve = ["serve", "--roles", "script"];
    let ran = desk.run(&serve).await.exits(2).says("script.folder").says("script.http.allow");
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{ran:#?}");
    desk.file("taskparty.toml", CONFIG);
    desk.run(&serve).await.exits(2).says("script.http.secrets").says("API_TOKEN");
    let config = desk.run(&["config", "-o", "json"]).await.exits(0);
    for shown in
        ["script.folder", "\"scripts\"", "script.interpreters.shell", "script.grace", "\"5s\""]
    {
        assert!(config.stdout.contains(shown), "{shown}: {config:#?}");
    }
    desk.file(
        "taskparty.toml",
        "[script]\nfolder = \"none\"\n[script.interpreters]\nshell = \"/bin/sh\"",
    );
    desk.run(&serve).await.exits(2).says("none: this is no folder");
    desk.file("taskparty.toml", "[script]\ninterpreter = \"/bin/sh\"");
    desk.run(&serve).await.exits(2).says("there is no such setting");
}
