//! An order service that settles bills when TaskParty says so.
//!
//! `cargo run --example order_service`, beside a `taskparty dev`. It connects to `NATS_URL`, or to
//! a NATS on this machine, and ends with Ctrl-C when its running handlers have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use taskparty_executor::{ConnectConfig, Context, Executor, HandlerError, slots};

/// The job's params.
#[derive(Deserialize)]
struct Settle {
    bills: u64,
    #[serde(default)]
    fail_below_attempt: u32,
}

/// What is kept with the run.
#[derive(Serialize)]
struct Settled {
    bills: u64,
    ever: u64,
}

/// The service's own state.
#[derive(Default)]
struct Ledger {
    settled: AtomicU64,
}

async fn daily_settlement(
    ctx: Context,
    params: Settle,
    ledger: Arc<Ledger>,
) -> Result<Settled, HandlerError> {
    if ctx.attempt() < params.fail_below_attempt {
        return Err(HandlerError::retry("the bank is closed"));
    }
    ctx.info(format!("settling for {} ({})", ctx.fire_time(), ctx.idempotency_key()));
    let mine = (0..params.bills)
        .filter(|bill| bill % u64::from(ctx.shard_total()) == u64::from(ctx.shard_index()));
    let mut done = 0;
    for _bill in mine {
        tokio::time::sleep(Duration::from_millis(1)).await;
        done += 1;
        ctx.progress(done, None, "bills");
    }
    let ever = ledger.settled.fetch_add(done, Ordering::Relaxed) + done;
    Ok(Settled { bills: done, ever })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let config = ConnectConfig { url: std::env::var("NATS_URL").ok(), ..ConnectConfig::default() };
    let ledger = Arc::<Ledger>::default();
    Executor::new("order-service")?
        .connect(config)
        .version(env!("CARGO_PKG_VERSION"))
        .handler_with("dailySettlement", slots(8), move |ctx, params| {
            daily_settlement(ctx, params, ledger.clone())
        })
        .run(tokio::signal::ctrl_c())
        .await?;
    Ok(())
}
