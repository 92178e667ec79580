//! One active writer, one store.

use std::time::Duration;

use serde_json::json;
use taskparty_common::outcome::{Outcome, RunState};
use taskparty_scheduler::log_writer::{LogWriterConfig, LogWriterError, Standing};

use crate::rig::{Rig, in_state, result, spec, until};

/// Long for a hand-over, and short beside the ack-wait of a result.
const HAND_OVER: Duration = Duration::from_secs(15);

#[tokio::test]
async fn of_two_writers_one_is_active_and_the_other_takes_over_at_once_when_it_stops() {
    let rig = Rig::start().await;
    let first = rig.log_writer().await;
    until("the first is active", || async {
        (first.status.get().standing == Standing::Active).then_some(())
    })
    .await;
    let second = rig.log_writer().await;
    let fired = rig.fired(1, spec(json!({})));
    rig.fire(&fired).await;
    rig.end(&result(&fired, Outcome::Succeeded)).await;
    in_state(&first.store, fired.run, RunState::Succeeded).await;
    assert_eq!(second.status.get().standing, Standing::Standby);
    assert_eq!(second.status.get().batches, 0);
    first.stop().await;
    until("the second is active", || async {
        (second.status.get().standing == Standing::Active).then_some(())
    })
    .await;
    let fired = rig.fired(2, spec(json!({})));
    rig.fire(&fired).await;
    rig.end(&result(&fired, Outcome::Succeeded)).await;
    in_state(&second.store, fired.run, RunState::Succeeded).await;
    second.stop().await;
}

#[tokio::test]
async fn what_a_writer_that_stops_had_taken_is_written_by_the_next_one_at_once() {
    let rig = Rig::start().await;
    let gathers_for_long = |config: &mut LogWriterConfig| config.batch_wait = 10 * HAND_OVER;
    let first = rig.log_writer_with("history.db", Vec::new(), gathers_for_long).await.unwrap();
    let fired = rig.fired(1, spec(json!({})));
    rig.fire(&fired).await;
    rig.end(&result(&fired, Outcome::Succeeded)).await;
    rig.taken().await;
    first.stop().await;
    let second = rig.log_writer().await;
    // What is not handed back comes again after the consumer's ack-wait, 30 s.
    let written = in_state(&second.store, fired.run, RunState::Succeeded);
    tokio::time::timeout(HAND_OVER, written).await.expect("it is handed back");
    second.stop().await;
}

#[tokio::test]
async fn a_writer_that_dies_is_replaced_once_its_lease_has_lapsed() {
    let rig = Rig::start().await;
    let first = rig.log_writer().await;
    until("the first is active", || async {
        (first.status.get().standing == Standing::Active).then_some(())
    })
    .await;
    first.task.abort();
    let second = rig.log_writer().await;
    until("the second is active", || async {
        (second.status.get().standing == Standing::Active).then_some(())
    })
    .await;
    second.stop().await;
}

#[tokio::test]
async fn a_writer_that_cannot_renew_stops_writing_by_itself() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    until("it is active", || async {
        (writer.status.get().standing == Standing::Active).then_some(())
    })
    .await;
    rig.server.pause().unwrap();
    until("it stops", || async {
        (writer.status.get().standing == Standing::Standby).then_some(())
    })
    .await;
    rig.server.resume().unwrap();
    until("it is active again", || async {
        (writer.status.get().standing == Standing::Active).then_some(())
    })
    .await;
    writer.stop().await;
}

#[tokio::test]
async fn a_writer_with_another_store_refuses_to_begin_and_says_what_to_do() {
    let rig = Rig::start().await;
    let first = rig.log_writer().await;
    let refused = rig.log_writer_on("other.db", Vec::new()).await.err().unwrap();
    let LogWriterError::OtherStore { found, .. } = &refused else { panic!("{refused}") };
    assert_eq!(*found, first.store.id().to_string());
    assert!(
        refused.to_string().contains("nats kv del taskparty_cursors log-writer-store"),
        "{refused}"
    );
    first.stop().await;
    // The same store again is welcome.
    rig.log_writer().await.stop().await;
}
