//! The Rust SDK with the handlers that every language's executor has here.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use taskparty_executor::{ConnectConfig, Context, Executor, HandlerError, slots};
use tokio::signal::unix::{SignalKind, signal};

async fn echo(ctx: Context, params: Value) -> Result<Value, HandlerError> {
    ctx.info("echo");
    let shard = json!({
        "index": ctx.shard_index(), "total": ctx.shard_total(), "param": ctx.shard_param::<Value>()?,
    });
    Ok(json!({
        "params": params, "key": ctx.idempotency_key(), "shard": shard,
        "attempt": ctx.attempt(), "delivery": ctx.delivery(),
    }))
}

#[derive(Deserialize)]
struct Sleep {
    ms: u64,
}

async fn sleep(ctx: Context, params: Sleep) -> Result<Value, HandlerError> {
    tokio::time::sleep(Duration::from_millis(params.ms)).await;
    Ok(json!({ "delivery": ctx.delivery() }))
}

async fn fail(_: Context, params: Value) -> Result<(), HandlerError> {
    Err(HandlerError::retry(format!("cannot do it: {}", text(&params))))
}

async fn fatal(_: Context, params: Value) -> Result<(), HandlerError> {
    Err(HandlerError::fatal(format!("never: {}", text(&params))))
}

async fn panic(_: Context, _: Value) -> Result<(), HandlerError> {
    panic!("a fault")
}

/// Blocks its thread, so that dropping its future does not stop it.
#[allow(clippy::disallowed_methods, reason = "blocking is what it is for")]
async fn deaf(_: Context, params: Sleep) -> Result<(), HandlerError> {
    std::thread::sleep(Duration::from_millis(params.ms));
    Ok(())
}

fn text(params: &Value) -> String {
    params.as_str().map_or_else(|| params.to_string(), str::to_owned)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).init();
    let setting = |name: &str| std::env::var(name);
    let mut terminate = signal(SignalKind::terminate())?;
    Executor::new(&setting("TASKPARTY_APP")?)?
        .connect(ConnectConfig::new(setting("NATS_URL")?))
        .drain(Duration::from_secs_f64(setting("TASKPARTY_DRAIN")?.parse()?))
        .version(env!("CARGO_PKG_VERSION"))
        .handler_with("echo", slots(4), echo)
        .handler_with("sleep", slots(2), sleep)
        .handler_with("fail", slots(1), fail)
        .handler_with("fatal", slots(1), fatal)
        .handler_with("panic", slots(1), panic)
        .handler_with("deaf", slots(1), deaf)
        .run(terminate.recv())
        .await?;
    Ok(())
}
