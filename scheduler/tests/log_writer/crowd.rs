//! Much at once: a run's records come apart, in messages of many lines.

use std::time::Duration;

use serde_json::json;
use taskparty_common::fire::Fired;
use taskparty_common::outcome::{Outcome, RunState};
use taskparty_nats::publish::Draft;
use taskparty_scheduler::log_writer::LogWriterConfig;
use taskparty_scheduler::store::Store;
use tokio::time::timeout;

use crate::rig::{Rig, in_state, result, spec};

/// Runs that have both their records.
const RUNS: u32 = 600;

/// Lines of a message.
const JOINED: usize = 7;

/// Long for a hand-over, and short beside the ack-wait of a result.
const HAND_OVER: Duration = Duration::from_secs(15);

/// Lines that a writer takes at once, about: fewer than there are fired records.
const BATCH: usize = 250;

/// Publishes lines in messages of several.
async fn publish(rig: &Rig, subject: &str, lines: Vec<String>) {
    for lines in lines.chunks(JOINED) {
        rig.publisher.publish(Draft::new(subject, lines.join("\n"))).await.unwrap();
    }
}

/// All fired records, then all results, the last first; and a fired record whose result never comes.
async fn crowd(rig: &Rig) -> (Vec<Fired>, Fired) {
    let fired: Vec<Fired> = (0..=RUNS).map(|n| rig.fired(n, spec(json!({})))).collect();
    let lines = fired.iter().map(|fired| serde_json::to_string(fired).unwrap());
    publish(rig, &rig.nats.names().fired(&fired[0].app), lines.collect()).await;
    let (lone, whole) = fired.split_first().unwrap();
    let results = whole.iter().rev().map(|fired| result(fired, Outcome::Succeeded));
    let results = results.map(|result| serde_json::to_string(&result).unwrap());
    publish(rig, &rig.nats.names().result(&lone.app), results.collect()).await;
    (whole.to_vec(), lone.clone())
}

async fn all_are_there(store: &Store, whole: &[Fired], lone: &Fired) {
    in_state(store, lone.run, RunState::Dispatched).await;
    assert_eq!(store.count(RunState::Succeeded).await.unwrap(), u64::from(RUNS));
    for fired in whole {
        let run = store.run(fired.run).await.unwrap().unwrap();
        assert_eq!(
            (run.attempt_rows.len(), run.attempt_rows[0].dispatched_at.is_some()),
            (1, true)
        );
    }
}

#[tokio::test]
async fn in_a_crowd_each_run_is_written_and_every_message_acked() {
    let rig = Rig::start().await;
    let (whole, lone) = crowd(&rig).await;
    let small = |config: &mut LogWriterConfig| config.batch_events = BATCH;
    let writer = rig.log_writer_with("history.db", Vec::new(), small).await.unwrap();
    rig.all_processed().await;
    assert_eq!(writer.status.get().events, u64::from(2 * RUNS + 1), "each line counts once");
    all_are_there(&writer.store, &whole, &lone).await;
    writer.stop().await;
}

#[tokio::test]
async fn what_waits_for_its_other_half_is_handed_back_when_a_writer_stops() {
    let rig = Rig::start().await;
    for round in 0.. {
        let fired: Vec<Fired> =
            (0..RUNS).map(|n| rig.fired(round * RUNS + n, spec(json!({})))).collect();
        let lines = fired.iter().map(|fired| serde_json::to_string(fired).unwrap());
        publish(&rig, &rig.nats.names().fired(&fired[0].app), lines.collect()).await;
        let writer = rig.log_writer().await;
        rig.taken().await;
        writer.stop().await;
        // A stop that took longer than anything waits finds nothing.
        if rig.unprocessed().await > 0 {
            break;
        }
        assert!(round < 10, "nothing ever waited");
    }
    let second = rig.log_writer().await;
    // What is not handed back comes again after the consumer's ack-wait, 30 s.
    let written = timeout(HAND_OVER, rig.all_processed());
    written.await.expect("it is handed back");
    assert!(second.store.count(RunState::Dispatched).await.unwrap() >= u64::from(RUNS));
    second.stop().await;
}
