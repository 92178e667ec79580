//! The demo: two executors of an order-service, and four jobs that show what happens.
//!
//! It uses what any service uses: the SDK, the API, nothing else. When everything has been seen
//! once it says whether all was well, and it looks into the file of bills to be able to say it.

mod bills;
mod jobs;
mod service;
mod watch;

use std::path::Path;
use std::time::Duration;

use taskparty_executor::Executor;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::Nats;
use taskparty_scheduler::api::wire::{
    AppliedAll, Apply, Executors, Nothing, TriggerJob, Triggered,
};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::events::Event;
use crate::failure::Failure;
use crate::output::Output;
use bills::Bills;
pub(crate) use watch::Summary;
use watch::Watch;

/// How many instances of the service there are.
const INSTANCES: usize = 2;

/// When everything should have been seen.
const DEADLINE: Duration = Duration::from_secs(120);

/// How long the executors may take to be there.
const START: Duration = Duration::from_secs(20);

/// How long their handlers may go on at the end.
const DRAIN: Duration = Duration::from_secs(5);

/// A running demo.
#[derive(Debug)]
pub(crate) struct Demo {
    bills: Bills,
    executors: TaskTracker,
    shutdown: CancellationToken,
    watch: Watch,
    deadline: Instant,
}

impl Demo {
    /// Makes the bills, starts the executors, applies the jobs, and triggers what would not fire
    /// by itself at once.
    pub(crate) async fn start(
        nats: Nats,
        by: String,
        folder: &Path,
        output: Output,
        clock: Clock,
    ) -> Result<Self, Failure> {
        let bills = Bills::generate(&folder.join("bills.db"), output).await?;
        let client = Client::on(nats.clone(), by);
        let demo = Self {
            executors: TaskTracker::new(),
            shutdown: CancellationToken::new(),
            watch: Watch::default(),
            deadline: Instant::now() + DEADLINE,
            bills,
        };
        for number in 1..=INSTANCES {
            demo.spawn(service::executor(number, nats.clone(), demo.bills.clone(), clock.clone())?);
        }
        wait_for_executors(&client).await?;
        output.note("two executors of order-service are live");
        let request = Apply { jobs: jobs::all(), by: client.by(), ..Apply::default() };
        let applied: AppliedAll = client.call("job", "apply", &request).await?;
        for result in &applied.results {
            output.note(&format!("job {} {}", result.id, result.change.as_str()));
        }
        for id in jobs::TRIGGERED {
            let request = TriggerJob { id: id.into(), by: client.by(), ..TriggerJob::default() };
            let _: Triggered = client.call("job", "trigger", &request).await?;
        }
        Ok(demo)
    }

    fn spawn(&self, executor: Executor) {
        let shutdown = self.shutdown.clone();
        self.executors.spawn(async move {
            if let Err(error) = executor.run(shutdown.cancelled_owned()).await {
                tracing::error!(%error, "An executor of the demo has ended.");
            }
        });
    }

    /// Takes note of an event.
    pub(crate) fn seen(&mut self, event: &Event) {
        self.watch.seen(event);
    }

    /// Ends when the demo should have been over and no summary has been given.
    pub(crate) async fn overdue(&self) {
        if self.watch.is_over() {
            std::future::pending::<()>().await;
        }
        sleep_until(self.deadline).await;
    }

    /// The summary, once: when everything has been seen, or when it has taken too long.
    pub(crate) async fn summary(&mut self) -> Option<Summary> {
        let late = Instant::now() >= self.deadline;
        if self.watch.is_over() || !(self.watch.is_complete() || late) {
            return None;
        }
        let checked = self.bills.check().await;
        Some(self.watch.sum_up(checked))
    }

    /// Stops the executors, which finish what they do.
    pub(crate) async fn stop(self) {
        self.shutdown.cancel();
        self.executors.close();
        if tokio::time::timeout(DRAIN * 3, self.executors.wait()).await.is_err() {
            tracing::warn!("The demo's executors did not end in time.");
        }
        self.bills.close().await;
    }
}

async fn wait_for_executors(client: &Client) -> Result<(), Failure> {
    let end = Instant::now() + START;
    loop {
        let found: Executors = client.call("executor", "list", &Nothing {}).await?;
        let live =
            found.items.iter().filter(|executor| executor.app.as_str() == service::APP).count();
        if live >= INSTANCES {
            return Ok(());
        }
        if Instant::now() >= end {
            return Err(Failure::could_not(format!(
                "only {live} of {INSTANCES} executors of the demo came up"
            )));
        }
        sleep(Duration::from_millis(50)).await;
    }
}
