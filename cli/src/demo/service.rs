//! The order-service: what a real service would embed, with the handlers of the demo.

use serde::Serialize;
use serde_json::Value;
use taskparty_executor::{Context, Executor, HandlerError, slots};
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::Nats;

use super::bills::Bills;
use crate::failure::Failure;

/// The service's name.
pub(super) const APP: &str = "order-service";

/// Attempts of the flaky import that fail.
const FAILURES: u32 = 2;

/// Room for half of the shards, so that both instances have some to do.
const SHARD_SLOTS: u32 = 2;

/// What a shard of the reconciliation gives back.
#[derive(Debug, Serialize)]
struct Settled {
    bills: u64,
    cents: u64,
}

/// One instance of the service.
pub(super) fn executor(
    number: usize,
    nats: Nats,
    bills: Bills,
    clock: Clock,
) -> Result<Executor, Failure> {
    let executor = Executor::new(APP).map_err(|error| Failure::could_not(error.to_string()))?;
    Ok(executor
        .nats(nats)
        .clock(clock)
        .host(format!("{APP}-{number}"))
        .version(env!("CARGO_PKG_VERSION"))
        .drain(super::DRAIN)
        .handler("heartbeat", heartbeat)
        .handler("flakyImport", flaky_import)
        .handler("alwaysFails", always_fails)
        .handler_with("reconcileBills", slots(SHARD_SLOTS), move |ctx, params| {
            reconcile(ctx, params, bills.clone())
        }))
}

async fn heartbeat(ctx: Context, _: Value) -> Result<String, HandlerError> {
    ctx.info("still here");
    Ok(format!("due {}", ctx.fire_time()))
}

async fn flaky_import(ctx: Context, _: Value) -> Result<String, HandlerError> {
    if ctx.attempt() <= FAILURES {
        ctx.warn(format!("attempt {} finds no connection", ctx.attempt()));
        return Err(HandlerError::retry("the supplier's server does not answer"));
    }
    ctx.info("imported");
    Ok(format!("imported at attempt {}", ctx.attempt()))
}

async fn always_fails(_: Context, _: Value) -> Result<(), HandlerError> {
    Err(HandlerError::retry("the ledger is locked"))
}

/// Settles the bills of one shard, batch by batch. A batch is settled as a whole or not at all,
/// and what is settled is left out: so a retry goes on where the attempt before has stopped.
async fn reconcile(ctx: Context, _: Value, bills: Bills) -> Result<Settled, HandlerError> {
    let (shard, total) = (ctx.shard_index(), ctx.shard_total());
    let of_shard = bills.of_shard(shard, total);
    let mut settled = Settled { bills: 0, cents: 0 };
    loop {
        let (count, cents) = bills.settle_batch(shard, total).await.map_err(HandlerError::retry)?;
        if count == 0 {
            break;
        }
        settled.bills += count;
        settled.cents += cents;
        ctx.progress(settled.bills, of_shard, "bills settled");
    }
    ctx.info(format!("shard {shard} of {total}: {} bills, {} cents", settled.bills, settled.cents));
    Ok(settled)
}
