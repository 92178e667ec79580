//! Executors that write each start of a handler into a file of their own, before anything else.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use taskparty_executor::{Context, Executor, HandlerError, RunError, slots};
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::ConnectConfig;
use taskparty_scheduler::audit::StartFact;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// An executor in this process.
pub(crate) struct Shop {
    /// Its starts.
    pub(crate) file: PathBuf,
    stop: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

#[derive(Debug, Clone)]
struct Starts(Arc<Mutex<File>>);

impl Starts {
    fn note(&self, ctx: &Context) {
        let start = StartFact {
            run: ctx.run(),
            shard: ctx.shard_index(),
            attempt: ctx.attempt(),
            delivery: ctx.delivery(),
            instance: ctx.instance().clone(),
            at: Clock::system().now(),
        };
        let line = format!("{}\n", serde_json::to_string(&start).unwrap());
        self.0.lock().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

impl Shop {
    pub(crate) fn start(url: &str, file: PathBuf) -> Self {
        let starts = Starts(Arc::new(Mutex::new(File::create(&file).unwrap())));
        let [well, flaky, broken, slow] = [(); 4].map(|()| starts.clone());
        let executor = Executor::new("shop")
            .unwrap()
            .connect(ConnectConfig::new(url))
            .drain(Duration::from_secs(5))
            .handler_with("well", slots(64), move |ctx: Context, _: Value| {
                well.note(&ctx);
                async { Ok::<_, HandlerError>("done") }
            })
            .handler_with("flaky", slots(64), move |ctx: Context, _: Value| {
                flaky.note(&ctx);
                async move {
                    match ctx.attempt() {
                        1 => Err(HandlerError::retry("not yet")),
                        _ => Ok("done"),
                    }
                }
            })
            .handler_with("broken", slots(64), move |ctx: Context, _: Value| {
                broken.note(&ctx);
                async { Err::<(), _>(HandlerError::retry("never")) }
            })
            .handler_with("slow", slots(64), move |ctx: Context, _: Value| {
                slow.note(&ctx);
                async move {
                    ctx.cancelled().await;
                    Ok::<_, HandlerError>("late")
                }
            });
        let stop = CancellationToken::new();
        let task = tokio::spawn(executor.run(stop.clone().cancelled_owned()));
        Self { file, stop, task }
    }

    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }
}
