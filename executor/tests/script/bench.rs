//! A folder of scripts, and an executor that runs them.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use taskparty_common::dispatch::ResultRecord;
use taskparty_executor::Executor;
use taskparty_executor::script::{self, Language, ScriptConfig};
use tempfile::TempDir;

use crate::rig::{Rig, Started, until};

/// A server, and a folder.
pub(crate) struct Bench {
    pub(crate) rig: Rig,
    pub(crate) dir: TempDir,
}

impl Bench {
    pub(crate) async fn start() -> Self {
        Self::on(Rig::start().await).await
    }

    pub(crate) async fn on(rig: Rig) -> Self {
        for handler in ["shell", "python", "node", "program", "http"] {
            rig.make_consumer(handler).await;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("scripts")).unwrap();
        std::fs::create_dir(dir.path().join("scratch")).unwrap();
        Self { rig, dir }
    }

    pub(crate) fn folder(&self) -> PathBuf {
        self.dir.path().join("scripts")
    }

    pub(crate) fn scratch(&self) -> PathBuf {
        self.dir.path().join("scratch")
    }

    /// Puts an executable script into the folder.
    pub(crate) fn script(&self, name: &str, text: &str) {
        let path = self.folder().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// What most tests run with: a shell for the folder, and programs.
    pub(crate) fn config(&self) -> ScriptConfig {
        ScriptConfig {
            folder: Some(self.folder()),
            interpreters: BTreeMap::from([(Language::Shell, "/bin/sh".into())]),
            programs: true,
            environment: script::inherited(
                std::env::vars_os(),
                &script::EnvNames::new([""; 0]).unwrap(),
            ),
            grace: Duration::from_secs(2),
            ..ScriptConfig::default()
        }
    }

    pub(crate) fn executor(&self, config: ScriptConfig) -> Executor {
        let executor = script::executor(self.rig.app.clone(), config).unwrap();
        executor.connect(taskparty_executor::ConnectConfig::new(self.rig.server.url()))
    }

    pub(crate) fn run(&self, config: ScriptConfig) -> Started {
        Started::run(self.executor(config))
    }

    /// Runs `text` as a shell script with these params beside its file.
    pub(crate) async fn shell(&self, text: &str, more: Value) -> ResultRecord {
        self.script("it.sh", text);
        let mut params = json!({"file": "it.sh"});
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.rig.outcome(&self.rig.work("shell", params)).await
    }

    /// The log's lines so far, with their levels.
    pub(crate) async fn log(&self) -> Vec<(String, String)> {
        let subject = format!("taskparty.log.{}.a-job", self.rig.app);
        let stored = self.rig.stored(self.rig.nats.names().logs_stream(), subject).await;
        let mut lines = Vec::new();
        for message in stored {
            let level = message.headers.unwrap().get("Taskparty-Level").unwrap().to_string();
            let text = String::from_utf8(message.payload.to_vec()).unwrap();
            lines.extend(text.split('\n').map(|line| (level.clone(), line.to_owned())));
        }
        lines
    }

    /// Waits until the log has a line with `text`.
    pub(crate) async fn logged(&self, text: &str) -> String {
        until(text, async || {
            self.log().await.into_iter().map(|(_, line)| line).find(|line| line.contains(text))
        })
        .await
    }

    /// Waits until a script has written the file, and reads it.
    pub(crate) async fn written(&self, name: &str) -> String {
        let path = self.folder().join(name);
        until(name, async || {
            std::fs::read_to_string(&path).ok().filter(|text| text.ends_with('\n'))
        })
        .await
        .trim()
        .to_owned()
    }
}

pub(crate) fn output(result: &ResultRecord) -> Value {
    result.output.as_ref().map_or(Value::Null, |output| serde_json::from_str(output.get()).unwrap())
}

/// Waits until no process has this id any more; one that has ended and was not reaped is none.
pub(crate) async fn gone(pid: &str) {
    let stat = format!("/proc/{pid}/stat");
    until("the end of a process", async || match std::fs::read_to_string(&stat) {
        Ok(text) => {
            let state = text.rsplit(") ").next().and_then(|rest| rest.chars().next());
            matches!(state, Some('Z' | 'X')).then_some(())
        }
        Err(_) => Some(()),
    })
    .await;
}
