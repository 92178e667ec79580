//! Executors of the app `shop`, in this process, which write down each start of a handler before
//! anything else.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use taskparty_executor::{Context, Executor, HandlerError, RunError, slots};
use taskparty_nats::clock::Clock;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use crate::rig::{Site, config, within};

/// A handler was called.
#[derive(Debug, Clone)]
pub(crate) struct Start {
    pub(crate) run: Uuid,
    pub(crate) attempt: u32,
    pub(crate) delivery: u64,
    pub(crate) at: DateTime<Utc>,
}

/// Every start of a handler, of all executors of a test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    starts: Arc<Mutex<Vec<Start>>>,
    forgotten: Arc<Mutex<Vec<DateTime<Utc>>>>,
}

impl Ledger {
    /// From now on NATS may have forgotten what it has just delivered.
    pub(crate) fn nats_forgets(&self) {
        self.forgotten.lock().unwrap().push(Clock::system().now());
    }

    /// When NATS may have forgotten.
    pub(crate) fn forgotten(&self) -> Vec<DateTime<Utc>> {
        self.forgotten.lock().unwrap().clone()
    }

    pub(crate) fn note(&self, ctx: &Context) {
        self.starts.lock().unwrap().push(Start {
            run: ctx.run(),
            attempt: ctx.attempt(),
            delivery: ctx.delivery(),
            at: Clock::system().now(),
        });
    }

    pub(crate) fn starts(&self) -> Vec<Start> {
        self.starts.lock().unwrap().clone()
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.lock().unwrap().len()
    }

    /// The starts by attempt.
    pub(crate) fn by_attempt(&self) -> BTreeMap<(Uuid, u32), Vec<Start>> {
        let mut all: BTreeMap<(Uuid, u32), Vec<Start>> = BTreeMap::new();
        for start in self.starts() {
            all.entry((start.run, start.attempt)).or_default().push(start);
        }
        all
    }
}

/// An executor in this process.
pub(crate) struct Shop {
    stop: CancellationToken,
    task: JoinHandle<Result<(), RunError>>,
}

impl Shop {
    /// An executor with the usual handlers.
    pub(crate) fn open(site: &Site) -> Self {
        Self::open_at(site, &site.url())
    }

    pub(crate) fn open_at(site: &Site, url: &str) -> Self {
        Self::run(usual(site, url))
    }

    pub(crate) fn run(executor: Executor) -> Self {
        let stop = CancellationToken::new();
        let task = tokio::spawn(executor.run(stop.clone().cancelled_owned()));
        Self { stop, task }
    }

    pub(crate) async fn close(self) {
        self.stop.cancel();
        within("the executor's end", self.task).await.unwrap().unwrap();
    }
}

/// The executor of the shop, connected to `url`, without handlers.
pub(crate) fn executor(url: &str) -> Executor {
    Executor::new("shop").unwrap().connect(config(url)).drain(Duration::from_secs(5))
}

fn usual(site: &Site, url: &str) -> Executor {
    let (settle, work, fail) = (site.ledger.clone(), site.ledger.clone(), site.ledger.clone());
    executor(url)
        .handler_with("settle", slots(64), move |ctx: Context, _: Value| {
            settle.note(&ctx);
            async move { Ok(()) }
        })
        // Takes as many milliseconds as its params say.
        .handler_with("work", slots(64), move |ctx: Context, ms: u64| {
            work.note(&ctx);
            async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(ctx.delivery())
            }
        })
        // Fails up to the attempt that its params say.
        .handler_with("fail", slots(256), move |ctx: Context, times: u32| {
            fail.note(&ctx);
            async move {
                match ctx.attempt() {
                    attempt if attempt <= times => {
                        Err(HandlerError::retry(format!("attempt {attempt} fails")))
                    }
                    attempt => Ok(attempt),
                }
            }
        })
}
