//! The bare messages of a run, without TaskParty: what NATS itself can do on this machine.
//!
//! A publisher takes a lock, publishes the work and a record, each confirmed; a worker pulls the
//! work, publishes that it started and its result, each confirmed, and acks; a reader pulls the
//! three records and acks them. Streams, buckets and consumers are TaskParty's own, sizes of
//! messages too; each of the three has a connection of its own and as much under way as pays.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use async_nats::HeaderMap;
use async_nats::jetstream::consumer::{PullConsumer, pull};
use bytes::Bytes;
use futures::{StreamExt, TryStreamExt};
use taskparty_common::name::{App, Handler};
use taskparty_lab::journal::Journal;
use taskparty_lab::servers::Servers;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::subject::{Bucket, LOG_WRITER, Names};
use taskparty_nats::topology::{Topology, TopologyConfig};
use tokio::time::{Instant, timeout};
use uuid::Uuid;

use crate::bed::Setting;
use crate::jobs::{APP, HANDLER};

/// Runs that are under way at the publisher, and at the worker.
const AT_ONCE: usize = 1024;

/// Bytes of the messages of a run that does nothing, as TaskParty sends them.
const LOCK: usize = 700;
const WORK: usize = 450;
const FIRED: usize = 900;
const STARTED: usize = 250;
const RESULT: usize = 450;

/// After this long with nothing it is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs a second: `runs` of them, from the first lock to the last acked record.
pub(crate) async fn rate(runs: u64, setting: &Setting, dir: &Path) -> Result<f64> {
    let journal = Journal::open(dir, setting.voice)?;
    let servers = Servers::start(&setting.shape()).await.context("starting NATS")?;
    let client = async || connect(&ConnectConfig::new(servers.url())).await;
    let (publisher, worker, reader) = (client().await?, client().await?, client().await?);
    let topology = Topology::new(client().await?, TopologyConfig::default());
    topology.create_missing().await?;
    let (app, handler) = (App::new(APP)?, Handler::new(HANDLER)?);
    topology.ensure_handler(&app, &handler).await?;
    let work = consumer(&worker, &worker.names().dispatch_stream(&app), HANDLER).await?;
    let records = consumer(&reader, &reader.names().results_stream(), LOG_WRITER).await?;
    journal.say(format!("{runs} runs of bare messages"));
    let begun = Instant::now();
    tokio::try_join!(
        publish(&publisher, &app, &handler, runs),
        work_off(&worker, work, &app, runs),
        read(records, 3 * runs),
    )?;
    Ok(runs as f64 / begun.elapsed().as_secs_f64())
}

async fn consumer(nats: &Nats, stream: &str, name: &str) -> Result<PullConsumer> {
    let consumer = nats.js().get_consumer_from_stream(name, stream).await;
    consumer.map_err(|error| anyhow::anyhow!("the consumer {name}: {error}"))
}

/// Publishes and waits for the confirmation.
async fn confirmed(nats: &Nats, subject: String, headers: HeaderMap, size: usize) -> Result<()> {
    let body = Bytes::from(vec![b'x'; size]);
    nats.js().publish_with_headers(subject, headers, body).await?.await?;
    Ok(())
}

async fn publish(nats: &Nats, app: &App, handler: &Handler, runs: u64) -> Result<()> {
    let names = nats.names();
    let one = async |number: u64| {
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", "0");
        headers.insert("Nats-TTL", "600");
        let key = names.key(Bucket::Fires, &format!("bench-{}.t.{number}", number % 1000));
        confirmed(nats, key, headers, LOCK).await?;
        let subject = names.dispatch(app, handler, Uuid::now_v7(), 0, 1);
        let mut headers = HeaderMap::new();
        headers.insert("Nats-Expected-Last-Subject-Sequence", "0");
        headers.insert("Nats-Msg-Id", subject.as_str());
        confirmed(nats, subject, headers, WORK).await?;
        confirmed(nats, names.fired(app), HeaderMap::new(), FIRED).await
    };
    futures::stream::iter(0..runs).map(one).buffer_unordered(AT_ONCE).try_collect().await
}

async fn work_off(nats: &Nats, work: PullConsumer, app: &App, runs: u64) -> Result<()> {
    let names: &Names = nats.names();
    let messages = messages(&work).await?.take(usize::try_from(runs)?);
    let one = async |message: Result<async_nats::jetstream::Message, _>| {
        let message = message.map_err(|error: pull::MessagesError| anyhow::anyhow!(error))?;
        tokio::try_join!(
            confirmed(nats, names.started(app), HeaderMap::new(), STARTED),
            confirmed(nats, names.result(app), HeaderMap::new(), RESULT),
        )?;
        message.double_ack().await.map_err(|error| anyhow::anyhow!("an ack: {error}"))
    };
    let mut done = std::pin::pin!(messages.map(one).buffer_unordered(AT_ONCE));
    loop {
        match timeout(PATIENCE, done.next()).await {
            Ok(Some(one)) => one?,
            Ok(None) => return Ok(()),
            Err(_) => bail!("no work came for {PATIENCE:?}"),
        }
    }
}

async fn read(records: PullConsumer, count: u64) -> Result<()> {
    let mut messages = std::pin::pin!(messages(&records).await?.take(usize::try_from(count)?));
    loop {
        match timeout(PATIENCE, messages.next()).await {
            Ok(Some(message)) => {
                message?.ack().await.map_err(|error| anyhow::anyhow!("an ack: {error}"))?;
            }
            Ok(None) => return Ok(()),
            Err(_) => bail!("no record came for {PATIENCE:?}"),
        }
    }
}

async fn messages(consumer: &PullConsumer) -> Result<pull::Stream> {
    Ok(consumer.stream().max_messages_per_batch(2 * AT_ONCE).messages().await?)
}
