//! One active writer, one store.

use serde_json::json;
use taskparty_common::outcome::{Outcome, RunState};
use taskparty_scheduler::log_writer::{LogWriterError, Standing};

use crate::rig::{Rig, in_state, result, spec, until};

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
