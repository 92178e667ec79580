use chrono::{DateTime, TimeDelta};
use futures::FutureExt;
use sqlx::AssertSqlSafe;
use taskparty_common::name::{App, Handler, Instance, JobId};
use taskparty_common::outcome::{Code, Outcome, RunState, Trigger, TriggerResult};

use super::*;

fn at(ms: i64) -> DateTime<chrono::Utc> {
    DateTime::from_timestamp_millis(1_700_000_000_000 + ms).unwrap()
}

/// Run number `n`, fired at `n` seconds; its state follows from `n`.
fn run(n: u32) -> Run {
    let fire_time = at(i64::from(n) * 1000);
    let ms = u128::try_from(fire_time.timestamp_millis()).unwrap();
    let state = match n % 10 {
        0 => RunState::Failed,
        1 => RunState::Running,
        _ => RunState::Succeeded,
    };
    let fired = FiredPart {
        handler: Handler::new("daily").unwrap(),
        lock: format!("job.t.{n}"),
        revision: 1,
        since: at(0),
        definition: [7; 16],
        owner: Instance::new("s1").unwrap(),
        trigger: if n.is_multiple_of(3) { Trigger::Manual } else { Trigger::Schedule },
        result: TriggerResult::Dispatched,
        message: "words".into(),
        skipped: None,
        fire_time,
        fired_at: fire_time,
        start_by: Some(at(3_600_000)),
        shards: 1,
        params: Some(r#"{"a":1}"#.into()),
    };
    let attempt = Attempt {
        outcome: state.is_terminal().then_some(Outcome::Succeeded),
        code: Some(Code::HandlerError),
        message: "日本語 \u{0} and more".into(),
        output: Some("[1,2]".into()),
        truncated: true,
        retryable: false,
        instance: Some(Instance::new("e1").unwrap()),
        delivery: Some(u64::from(n)),
        due_at: Some(at(1)),
        dispatched_at: Some(at(2)),
        start_by: Some(at(3)),
        started_at: Some(at(4)),
        ended_at: Some(at(5)),
        progress: Some(ProgressPart { done: 1, total: Some(2), note: "half".into() }),
        notes: vec![Note {
            instance: Instance::new("e2").unwrap(),
            delivery: 2,
            outcome: Outcome::Failed,
            code: None,
            finished_at: at(6),
        }],
        check_at: (!state.is_terminal()).then_some(at(7)),
        ending: Some(Ending {
            outcome: Outcome::Lost,
            code: Some(Code::ExecutorLost),
            message: "gone".into(),
            removed: true,
            then: Then::Move,
        }),
        target: Some(Instance::new("e1").unwrap()),
        pinned: n.is_multiple_of(2),
        moved: n.is_multiple_of(3),
        ..Attempt::new(state)
    };
    Run {
        planned: None,
        id: Uuid::from_u128((ms << 80) | u128::from(n)),
        job: JobId::new(if n.is_multiple_of(2) { "even" } else { "odd" }).unwrap(),
        app: App::new(if n < 50 { "orders" } else { "bills" }).unwrap(),
        state,
        fired: Some(fired),
        code: Some(Code::HandlerError),
        started_at: Some(at(4)),
        ended_at: Some(at(5)),
        cancel: n.is_multiple_of(7).then(|| CancelPart { at: at(8), by: "alice".into() }),
        round: n % 3,
        attempts: [((0, 1), Box::new(attempt))].into(),
    }
}

async fn save(store: &Store, runs: Vec<Run>) {
    let definition = Definition {
        digest: [7; 16],
        job: JobId::new("even").unwrap(),
        revision: 1,
        spec: "{}".into(),
    };
    store
        .write(move |mut tx| {
            async move {
                tx.save_definitions(&[definition]).await?;
                tx.save_runs(&runs.iter().collect::<Vec<_>>()).await?;
                let attempts: Vec<_> = runs
                    .iter()
                    .flat_map(|run| {
                        run.attempts.iter().map(|(key, attempt)| (run.id, *key, attempt.as_ref()))
                    })
                    .collect();
                tx.save_attempts(&attempts).await
            }
            .boxed()
        })
        .await
        .unwrap();
}

async fn store() -> (Store, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", dir.path().join("history.db").display());
    (Store::open(&url).await.unwrap(), dir)
}

async fn load(store: &Store, ids: Vec<Uuid>) -> std::collections::HashMap<Uuid, Run> {
    store.write(move |mut tx| async move { tx.runs(&ids).await }.boxed()).await.unwrap()
}

#[tokio::test]
async fn a_run_is_read_back_as_it_was_written() {
    let (store, _dir) = store().await;
    let runs: Vec<Run> = (0..100).map(run).collect();
    save(&store, runs.clone()).await;
    let loaded = load(&store, runs.iter().map(|run| run.id).collect()).await;
    for run in runs {
        assert_eq!(loaded.get(&run.id), Some(&run));
    }
}

#[tokio::test]
async fn a_run_is_cut_to_what_is_read_back() {
    let (store, _dir) = store().await;
    let mut fine = run(3);
    let at = at(9) + chrono::TimeDelta::nanoseconds(987_654);
    let attempt = fine.attempts.get_mut(&(0, 1)).unwrap();
    (attempt.check_at, attempt.started_at, attempt.delivery) = (Some(at), Some(at), Some(u64::MAX));
    let fired = fine.fired.as_mut().unwrap();
    (fired.since, fired.fired_at, fired.start_by, fired.revision) = (at, at, Some(at), u64::MAX);
    fine.started_at = Some(at);
    save(&store, vec![fine.clone()]).await;
    let loaded = load(&store, vec![fine.id]).await.remove(&fine.id).unwrap();
    assert_ne!(loaded, fine);
    fine.cut_as_stored();
    assert_eq!(loaded, fine);
}

#[tokio::test]
async fn what_has_ended_is_never_written_over() {
    let (store, _dir) = store().await;
    let ended = run(2);
    save(&store, vec![ended.clone()]).await;
    let mut other = ended.clone();
    other.state = RunState::Running;
    if let Some(attempt) = other.attempts.get_mut(&(0, 1)) {
        attempt.outcome = Some(Outcome::Failed);
        attempt.state = RunState::Failed;
    }
    save(&store, vec![other]).await;
    assert_eq!(load(&store, vec![ended.id]).await.get(&ended.id), Some(&ended));
}

#[tokio::test]
async fn a_transaction_that_nobody_waits_for_any_more_is_carried_out() {
    let (store, _dir) = store().await;
    let ended = run(2);
    let writing = save(&store, vec![ended.clone()]);
    // Polled once, then dropped.
    assert!(writing.now_or_never().is_none());
    // The one writer takes the next only when that one is done.
    assert!(load(&store, vec![ended.id]).await.contains_key(&ended.id));
}

#[tokio::test]
async fn lists_are_filtered_newest_first_and_paged_without_gaps() {
    let (store, _dir) = store().await;
    save(&store, (0..100).map(run).collect()).await;
    let all = |filter: RunFilter| {
        let store = store.clone();
        async move {
            let mut filter = RunFilter { limit: Some(7), ..filter };
            let mut numbers = Vec::new();
            loop {
                let page = store.runs(&filter).await.unwrap();
                assert!(page.items.len() <= 7);
                numbers.extend(
                    page.items.iter().map(|row| (row.fire_time.unwrap() - at(0)).num_seconds()),
                );
                let Some(next) = page.next else { return numbers };
                filter.after = Some(next.parse().unwrap());
            }
        }
    };
    let newest_first =
        |keep: &dyn Fn(i64) -> bool| -> Vec<i64> { (0..100).rev().filter(|n| keep(*n)).collect() };
    assert_eq!(all(RunFilter::default()).await, newest_first(&|_| true));
    let even = RunFilter { job: JobId::new("even").ok(), ..RunFilter::default() };
    assert_eq!(all(even.clone()).await, newest_first(&|n| n % 2 == 0));
    let states = vec![RunState::Failed, RunState::Running];
    let open = RunFilter { states: states.clone(), ..RunFilter::default() };
    assert_eq!(all(open).await, newest_first(&|n| n % 10 < 2));
    let narrow = RunFilter {
        states,
        app: App::new("bills").ok(),
        trigger: Some(Trigger::Manual),
        since: Some(at(20_000)),
        until: Some(at(90_000)),
        ..even
    };
    let wanted = newest_first(&|n| n % 10 == 0 && n % 3 == 0 && (50..90).contains(&n));
    assert_eq!(all(narrow).await, wanted);
}

#[tokio::test]
async fn a_run_is_shown_with_all_that_is_known_and_times_in_utc() {
    let (store, _dir) = store().await;
    let run = run(0);
    save(&store, vec![run.clone()]).await;
    let id = run.id;
    let alert = AlertPart {
        id: "an-alert".into(),
        kind: "failed",
        job: Some(run.job.clone()),
        run: Some(id),
        state: Some(RunState::Failed),
        code: None,
        message: "it failed".into(),
        attempts: 1,
        fire_time: Some(at(0)),
        at: at(0),
    };
    let decisions =
        vec![Decision::Alert(alert), Decision::Retry { run: id, shard: 0, attempt: 2, due: at(9) }];
    store.write(move |mut tx| async move { tx.decide(&decisions).await }.boxed()).await.unwrap();
    let shown = serde_json::to_value(store.run(id).await.unwrap().unwrap()).unwrap();
    assert_eq!(shown["run"], id.to_string());
    assert_eq!(shown["fire_time"], "2023-11-14T22:13:20Z");
    assert_eq!(shown["params"]["a"], 1);
    assert_eq!(shown["tries"][0]["output"], serde_json::json!([1, 2]));
    assert_eq!(shown["tries"][0]["notes"][0]["outcome"], "failed");
    assert_eq!(shown["alerts"][0]["message"], "it failed");
    assert_eq!(shown["pending"].as_array().map(Vec::len), Some(2));
    assert!(store.run(Uuid::nil()).await.unwrap().is_none());

    let postings = store.postings(at(0), 10).await.unwrap();
    let retry = postings.iter().find(|posting| posting.kind == OutboxKind::Retry).unwrap();
    assert_eq!((retry.attempt, retry.definition.as_deref()), (2, Some("{}")));
    let put_off = |id: String, until| {
        store.write(move |mut tx| async move { tx.put_off(&id, until).await }.boxed())
    };
    put_off(retry.id.clone(), at(0) + TimeDelta::seconds(5)).await.unwrap();
    assert_eq!(store.postings(at(0), 10).await.unwrap().len(), 1);
    assert_eq!(store.postings(at(5_000), 10).await.unwrap().len(), 2);
}

#[tokio::test]
async fn no_list_and_no_question_of_the_sweep_walks_or_sorts_all_runs() {
    let (store, _dir) = store().await;
    let filters = [
        RunFilter::default(),
        RunFilter { job: JobId::new("even").ok(), ..RunFilter::default() },
        RunFilter { app: App::new("orders").ok(), ..RunFilter::default() },
        RunFilter { states: vec![RunState::Failed], ..RunFilter::default() },
    ];
    let mut questions: Vec<String> = filters.iter().map(list::list).collect();
    questions.push(list::OF_KEY.into());
    questions.push(watch::to_check_sql());
    questions.push(watch::stranded_sql(3));
    questions.push(watch::TARGETS.to_owned());
    questions.push(watch::to_stop_sql());
    // What has a beginning does not walk what was before it.
    let bounded = [watch::last_of_chain_sql(), watch::last_ends_sql()];
    questions.extend(bounded.iter().cloned());
    questions.push(watch::in_state_sql("scheduled", "id <"));
    for sql in questions {
        let rows = sqlx::query_as::<_, (i64, i64, i64, String)>(AssertSqlSafe(format!(
            "EXPLAIN QUERY PLAN {sql}"
        )))
        .fetch_all(store.readers())
        .await
        .unwrap();
        // What reads a table reads a stretch of an index, in order: nothing sorts beside it.
        let tables = [" runs ", " attempts ", " a ", " r "];
        let reads = |step: &str| tables.iter().any(|table| step.contains(table));
        for (_, parent, _, step) in rows.iter().filter(|row| reads(&row.3)) {
            assert!(step.starts_with("SEARCH"), "{step}: {sql}");
            assert!(step.contains("id>?") || !bounded.contains(&sql), "{step}: {sql}");
            let sorted = rows.iter().any(|row| row.1 == *parent && row.3.contains("TEMP B-TREE"));
            assert!(!sorted, "{step} is sorted: {sql}");
        }
    }
}
