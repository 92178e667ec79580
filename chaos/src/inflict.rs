//! Makes go wrong what the plan says, and right again.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use rustix::process::Signal;
use taskparty_lab::seat::Seat;
use taskparty_lab::site::Site;
use taskparty_nats::proxy::{Direction, Proxy};
use taskparty_nats::subject::Bucket;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::plan::{Cut, Fault, Lane, Step, Target};

/// How long a graceful end may take: with NATS away it takes what a node allows itself.
const END: Duration = Duration::from_secs(40);

/// What was done of a lane.
#[derive(Debug, Default)]
pub struct Done {
    /// How many faults there were.
    pub faults: usize,
    /// When a node of NATS ended or stood still, when it went on, and when it was in step again: what
    /// it led and had not told the others is forgotten, such as that a message was delivered, or
    /// acked; and in the moment in which it goes on it may take itself for the leader still.
    pub forgot: Vec<DateTime<Utc>>,
}

/// Follows a lane to its end, or until `stop`.
pub async fn follow(site: Arc<Site>, lane: Lane, stop: CancellationToken) -> Done {
    let mut due = Instant::now();
    let mut done = Done::default();
    for step in &lane.steps {
        due += step.wait;
        let waited = stop.run_until_cancelled(tokio::time::sleep_until(due)).await;
        if waited.is_none() {
            break;
        }
        let seconds = step.lasts.as_secs_f64();
        site.journal.say(format!("  {}: {} ({seconds:.1} s)", lane.target, step.fault));
        done.faults += 1;
        let outcome = match seat(&site, lane.target) {
            Some(seat) => of_process(&site, seat, step, &stop).await,
            None => on_nats(&site, step, &stop, &mut done.forgot).await,
        };
        if let Err(error) = outcome {
            site.journal.say(format!("  {}: {error:#}", lane.target));
        }
        due += step.lasts;
    }
    done
}

fn seat(site: &Site, target: Target) -> Option<&Seat> {
    match target {
        Target::Scheduler(number) => site.schedulers().nth(number),
        Target::Executor(number) => site.executors.get(number),
        Target::Nats => None,
    }
}

/// Waits for the time that a fault lasts; less when all is to be healed.
async fn last(step: &Step, stop: &CancellationToken) {
    stop.run_until_cancelled(sleep(step.lasts)).await;
}

async fn of_process(site: &Site, seat: &Seat, step: &Step, stop: &CancellationToken) -> Result<()> {
    match step.fault {
        Fault::Kill => {
            seat.kill().await;
            last(step, stop).await;
            seat.start().await
        }
        Fault::Restart => {
            let ended = seat.stop(END).await;
            last(step, stop).await;
            seat.start().await?;
            ended
        }
        Fault::Freeze => {
            seat.signal(Signal::STOP).await;
            last(step, stop).await;
            seat.signal(Signal::CONT).await;
            Ok(())
        }
        Fault::CutOff(cut) => {
            seat.proxies.iter().for_each(|proxy| sever(proxy, cut));
            last(step, stop).await;
            seat.proxies.iter().for_each(|proxy| mend(proxy, cut));
            Ok(())
        }
        Fault::CutFrom(node, cut) => {
            let Some(proxy) = seat.proxies.get(node) else { return Ok(()) };
            sever(proxy, cut);
            last(step, stop).await;
            mend(proxy, cut);
            Ok(())
        }
        Fault::Slow(ms) => {
            seat.proxies.iter().for_each(|proxy| proxy.delay(Duration::from_millis(ms)));
            last(step, stop).await;
            seat.proxies.iter().for_each(Proxy::heal);
            Ok(())
        }
        Fault::Forget => forget(site, seat).await,
        _ => Ok(()),
    }
}

fn sever(proxy: &Proxy, cut: Cut) {
    match cut {
        Cut::Refused => proxy.refuse(),
        Cut::Out => proxy.hold(Direction::ToServer),
        Cut::In => proxy.hold(Direction::ToClient),
    }
}

/// What was held back on its way out arrives late; what was held back on its way in is lost.
fn mend(proxy: &Proxy, cut: Cut) {
    if cut == Cut::In {
        proxy.cut();
    }
    proxy.heal();
}

async fn forget(site: &Site, seat: &Seat) -> Result<()> {
    for entry in site.buckets.entries(Bucket::Schedulers, ">").await? {
        let of_seat = entry.key.strip_prefix(seat.name.as_str());
        if of_seat.is_some_and(|rest| rest.starts_with('-')) {
            site.buckets.delete(Bucket::Schedulers, &entry.key).await?;
        }
    }
    Ok(())
}

async fn on_nats(
    site: &Site,
    step: &Step,
    stop: &CancellationToken,
    forgot: &mut Vec<DateTime<Utc>>,
) -> Result<()> {
    let mut servers = site.servers.lock().await;
    let clock = site.journal.clock();
    forgot.push(clock.now());
    let keep = |servers: &taskparty_lab::servers::Servers, node| {
        servers.keep_log(node, &site.dir).map(drop)
    };
    let outcome = match step.fault {
        Fault::KillNode(node) => {
            servers.node(node).kill();
            keep(&servers, node)?;
            last(step, stop).await;
            forgot.push(clock.now());
            servers.restart(node).await
        }
        Fault::RestartNode(node) => {
            servers.node(node).stop().await;
            keep(&servers, node)?;
            last(step, stop).await;
            forgot.push(clock.now());
            servers.restart(node).await
        }
        Fault::FreezeNode(node) => {
            servers.node(node).pause()?;
            last(step, stop).await;
            forgot.push(clock.now());
            servers.node(node).resume()?;
            servers.in_step().await
        }
        Fault::RestartAllNodes => {
            for node in 0..servers.nodes().len() {
                servers.node(node).stop().await;
                keep(&servers, node)?;
            }
            forgot.push(clock.now());
            servers.restart_all().await
        }
        _ => Ok(()),
    };
    forgot.push(clock.now());
    outcome
}

/// Makes everything right: all processes run, all ways are open, NATS is in step.
///
/// # Errors
/// When something does not come back.
pub async fn heal(site: &Site) -> Result<()> {
    for seat in site.seats() {
        seat.proxies.iter().for_each(Proxy::heal);
        seat.signal(Signal::CONT).await;
        seat.start().await?;
    }
    site.servers.lock().await.in_step().await
}
