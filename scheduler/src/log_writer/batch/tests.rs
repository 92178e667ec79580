use bytes::Bytes;
use chrono::TimeDelta;
use proptest::prelude::*;
use taskparty_common::outcome::{RunState, TriggerResult};

use super::*;
use crate::log_writer::transition::tests::ask::cancel;
use crate::log_writer::transition::tests::orders::shuffled;
use crate::log_writer::transition::tests::{app, fired, run_id, started};

/// An event that the server stored at an instant with nanoseconds, as it always does.
fn line(seq: u64, event: Event) -> Line {
    let at = DateTime::UNIX_EPOCH + TimeDelta::nanoseconds(1_000_123_456 * seq.cast_signed());
    Line { seq, line: 0, subject: "test".into(), app: app(), at, raw: Bytes::new(), event }
}

async fn stored(store: &Store) -> Option<Run> {
    let mut runs =
        store.write(|mut tx| async move { tx.runs(&[run_id()]).await }.boxed()).await.unwrap();
    runs.remove(&run_id())
}

/// The run after these batches, by a writer that keeps what it wrote, and by one that reads it anew.
async fn written(batches: Vec<Vec<Line>>) -> [Option<Run>; 2] {
    let dir = tempfile::tempdir().unwrap();
    let url = |name: &str| format!("sqlite:{}", dir.path().join(name).display());
    let stores =
        [Store::open(&url("keeps")).await.unwrap(), Store::open(&url("reads")).await.unwrap()];
    let writer = |store: &Store| Writer::new(store.clone(), Duration::from_secs(30));
    let keeps = writer(&stores[0]);
    for lines in batches {
        writer(&stores[1]).write(&Batch::new(lines.clone(), Vec::new())).await.unwrap();
        keeps.write(&Batch::new(lines, Vec::new())).await.unwrap();
        let kept = keeps.unfinished().unwrap().take(&run_id());
        if let Some(kept) = kept {
            assert_eq!(Some(&kept), stored(&stores[0]).await.as_ref());
            keeps.unfinished().unwrap().keep(kept);
        }
    }
    [stored(&stores[0]).await, stored(&stores[1]).await]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn what_is_kept_is_what_is_stored_and_reading_it_again_changes_nothing(
        (_, events) in shuffled(), sizes in prop::collection::vec(1_usize..4, 40)
    ) {
        let mut lines: Vec<Line> = (1..).zip(events).map(|(seq, event)| line(seq, event)).collect();
        let mut batches = Vec::new();
        for size in sizes {
            batches.push(lines.drain(..size.min(lines.len())).collect());
        }
        batches.push(lines);
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let [kept, read] = runtime.block_on(written(batches));
        prop_assert!(kept.is_some());
        prop_assert_eq!(kept, read);
    }
}

#[tokio::test]
async fn what_another_wrote_is_not_written_over_by_what_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("history.db").display());
    let [ours, theirs] = [Store::open(&url).await.unwrap(), Store::open(&url).await.unwrap()];
    let writer = Writer::new(ours.clone(), Duration::from_secs(30));
    let events = [fired(1, TriggerResult::Dispatched), cancel(), started(0, 1, 1)];
    let mut batches =
        (1..).zip(events).map(|(seq, event)| Batch::new(vec![line(seq, event)], Vec::new()));
    writer.write(&batches.next().unwrap()).await.unwrap();
    assert!(writer.unfinished().unwrap().has(&run_id()));
    Writer::new(theirs, Duration::from_secs(30)).write(&batches.next().unwrap()).await.unwrap();
    let asked = stored(&ours).await.unwrap().cancel;
    assert!(asked.is_some());
    writer.write(&batches.next().unwrap()).await.unwrap();
    let run = stored(&ours).await.unwrap();
    assert_eq!((run.cancel, run.state), (asked, RunState::Running));
}
