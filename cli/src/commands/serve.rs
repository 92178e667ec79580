//! `serve`: a node.

use std::collections::BTreeSet;
use std::time::Duration;

use taskparty_executor::{Executor, Nats, RunError};
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectError, connect_when_up};
use taskparty_scheduler::Role;
use taskparty_scheduler::store::Store;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::Outcome;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::node::{self, Plan};
use crate::signals::cancel_on_signal;

/// Runs a node until SIGTERM or SIGINT.
pub(crate) async fn run(config: &Config, clock: &Clock) -> Outcome {
    let Roles { scheduler, script } = Roles::read(&config.roles)?;
    // Before anything is connected: what is not configured is said at once.
    let executor = if script { Some(config.script.executor()?) } else { None };
    if scheduler.contains(&Role::LogWriter) || scheduler.contains(&Role::Api) {
        Store::check_url(&config.store_url)
            .map_err(|error| Failure::invalid(format!("store.url: {error}")))?;
    }
    let shutdown = cancel_on_signal()?;
    let nats = match connect_when_up(&config.nats, &shutdown).await {
        Ok(nats) => nats,
        Err(ConnectError::Stopped) => return Ok(Exit::Done),
        Err(error) => return Err(error.into()),
    };
    let node = if scheduler.is_empty() {
        None
    } else {
        let plan = Plan {
            roles: scheduler,
            store_url: config.store_url.clone(),
            host: config.host.clone(),
            topology: config.topology.clone(),
        };
        Some(node::start(plan, nats.clone(), clock.clone(), shutdown.clone()).await?)
    };
    let scripts =
        executor.map(|executor| Scripts::start(executor, config, &nats, clock, &shutdown));
    let instance = node.as_ref().map(|node| node.instance().to_string());
    let instance = instance.unwrap_or_else(|| format!("the app {}", config.script.app));
    // A node listens on no port of its own in this version: all of it goes over NATS.
    eprintln!(
        "taskparty {} serves {} as {}, prefix {}, over {}",
        env!("CARGO_PKG_VERSION"),
        config.roles,
        instance,
        config.nats.prefix,
        config.nats.shown_url(),
    );
    shutdown.cancelled().await;
    eprintln!("ending: what is under way is finished first");
    let (ended, scripts) = tokio::join!(
        async {
            match node {
                Some(node) => node::ended(node).await,
                None => Ok(()),
            }
        },
        async {
            match scripts {
                Some(scripts) => scripts.ended().await,
                None => Ok(()),
            }
        },
    );
    nats.close(Duration::from_secs(3)).await;
    ended.and(scripts).map(|()| Exit::Done)
}

/// The executor of scripts, at work.
struct Scripts(AbortOnDropHandle<Result<(), RunError>>);

impl Scripts {
    /// Starts it. It ends with `shutdown`, and the whole node with it.
    fn start(
        executor: Executor,
        config: &Config,
        nats: &Nats,
        clock: &Clock,
        shutdown: &CancellationToken,
    ) -> Self {
        let executor = executor
            .nats(nats.clone())
            .host(config.host.clone())
            .version(env!("CARGO_PKG_VERSION"))
            .clock(clock.clone());
        let stop = shutdown.clone();
        let run = async move {
            let _end_all = stop.clone().drop_guard();
            executor.run(stop.cancelled()).await
        };
        Self(AbortOnDropHandle::new(tokio::spawn(run)))
    }

    /// Waits for its end, which its drain time and the scripts' grace bound.
    async fn ended(self) -> Result<(), Failure> {
        match self.0.await {
            Ok(ended) => ended.map_err(|error| Failure::could_not(error.to_string())),
            Err(error) => Err(Failure::could_not(format!("the script executor broke: {error}"))),
        }
    }
}

/// What this node does.
struct Roles {
    /// Those of the crate `taskparty-scheduler`.
    scheduler: BTreeSet<Role>,
    script: bool,
}

impl Roles {
    fn read(text: &str) -> Result<Self, Failure> {
        let mut roles = Self { scheduler: BTreeSet::new(), script: false };
        for word in text.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word {
                "scheduler" => roles.scheduler.insert(Role::Scheduler),
                "log-writer" => roles.scheduler.insert(Role::LogWriter),
                "api" => roles.scheduler.insert(Role::Api),
                "script" => std::mem::replace(&mut roles.script, true),
                _ => {
                    return Err(Failure::invalid(format!(
                        "serve.roles: {word:?} is no role; there are scheduler, log-writer, api, script"
                    )));
                }
            };
        }
        if roles.scheduler.is_empty() && !roles.script {
            return Err(Failure::invalid(
                "serve.roles: give at least one of scheduler, log-writer, api, script",
            ));
        }
        Ok(roles)
    }
}
