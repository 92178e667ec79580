//! `serve`: a node.

use std::collections::BTreeSet;
use std::time::Duration;

use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectError, connect_when_up};
use taskparty_scheduler::Role;

use super::Outcome;
use crate::config::Config;
use crate::failure::{Exit, Failure};
use crate::node::{self, Plan};
use crate::signals::cancel_on_signal;

/// Runs a node until SIGTERM or SIGINT.
pub(crate) async fn run(config: &Config, clock: &Clock) -> Outcome {
    let roles = roles(&config.roles)?;
    let shutdown = cancel_on_signal()?;
    let nats = match connect_when_up(&config.nats, &shutdown).await {
        Ok(nats) => nats,
        Err(ConnectError::Stopped) => return Ok(Exit::Done),
        Err(error) => return Err(error.into()),
    };
    let plan = Plan {
        roles,
        store_url: config.store_url.clone(),
        host: config.host.clone(),
        lease: config.lease,
    };
    let node = node::start(plan, nats.clone(), clock.clone(), shutdown.clone()).await?;
    // A node listens on no port of its own in this version: all of it goes over NATS.
    eprintln!(
        "taskparty {} serves {} as {}, prefix {}, over {}",
        env!("CARGO_PKG_VERSION"),
        config.roles,
        node.instance(),
        config.nats.prefix,
        config.nats.shown_url(),
    );
    shutdown.cancelled().await;
    eprintln!("ending: what is under way is finished first");
    node::ended(node).await?;
    nats.close(Duration::from_secs(3)).await;
    Ok(Exit::Done)
}

fn roles(text: &str) -> Result<BTreeSet<Role>, Failure> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let roles: Result<BTreeSet<Role>, Failure> = words
        .map(|word| match word {
            "scheduler" => Ok(Role::Scheduler),
            "log-writer" => Ok(Role::LogWriter),
            "api" => Ok(Role::Api),
            "script" => Err(Failure::not_yet("the role script")),
            _ => Err(Failure::invalid(format!(
                "serve.roles: {word:?} is no role; there are scheduler, log-writer, api"
            ))),
        })
        .collect();
    match roles {
        Ok(roles) if roles.is_empty() => {
            Err(Failure::invalid("serve.roles: give at least one of scheduler, log-writer, api"))
        }
        roles => roles,
    }
}
