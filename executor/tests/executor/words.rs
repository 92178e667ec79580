//! What a handler says while it runs: log lines and progress.

use serde_json::{Value, json};
use taskparty_common::outcome::Outcome;
use taskparty_executor::{Context, Level};

use crate::rig::{Rig, Started, assert_outcome};

#[tokio::test]
async fn log_lines_and_the_last_progress_arrive_with_their_run() {
    let rig = Rig::start().await;
    rig.make_consumer("talk").await;
    let talk = |ctx: Context, _: Value| async move {
        for n in 0..100 {
            ctx.info(format!("line {n}"));
            ctx.progress(n + 1, 100, "bills");
        }
        ctx.log(Level::Warn, "one is odd");
        Ok(())
    };
    let executor = Started::run(rig.executor().handler("talk", talk));
    let work = rig.work("talk", json!(null));
    assert_outcome(&rig.outcome(&work).await, Outcome::Succeeded, "");
    executor.stop().await;

    let names = rig.nats.names();
    let stored = rig.stored(names.logs_stream(), format!("taskparty.log.{}.a-job", rig.app)).await;
    let mut lines = Vec::new();
    for message in stored {
        let headers = message.headers.unwrap();
        let header = |name: &str| headers.get(name).unwrap().as_str().to_owned();
        assert_eq!(json!(header("Taskparty-Run")), work["run"]);
        assert_eq!(header("Taskparty-Shard") + &header("Taskparty-Attempt"), "01");
        let text = String::from_utf8(message.payload.to_vec()).unwrap();
        lines.extend(text.lines().map(|line| format!("{} {line}", header("Taskparty-Level"))));
    }
    let mut wanted: Vec<_> = (0..100).map(|n| format!("info line {n}")).collect();
    wanted.push("warn one is odd".into());
    assert_eq!(lines, wanted);

    let progress = rig.records("progress").await;
    assert!(progress.len() <= 2, "a burst is not sent step by step");
    let last = progress.last().unwrap();
    assert_eq!(
        *last,
        json!({"run": work["run"], "shard": 0, "attempt": 1, "done": 100, "total": 100, "note": "bills"})
    );
}
