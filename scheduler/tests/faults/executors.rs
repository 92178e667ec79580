//! Executors that die, hang, or lose the network: R1, R2, R3, R5, R14, R16.

use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use taskparty_common::outcome::{Code, RunState, SkipReason, Trigger};
use taskparty_executor::{Context, slots};
use taskparty_nats::proxy::Proxy;
use taskparty_scheduler::store::{RunDetail, RunRow};
use tokio::sync::Notify;

use crate::rig::{LEASE, Site, job, until, within};
use crate::shop::{Shop, executor};

const URL: &str = "TASKPARTY_TEST_URL";
const STARTS: &str = "TASKPARTY_TEST_STARTS";

/// What executor processes run: this test binary, asked for this one test.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a process of its own, for the tests below"]
async fn executor_process() {
    let (Ok(url), Some(starts)) = (std::env::var(URL), std::env::var_os(STARTS)) else { return };
    let note = move |ctx: &Context| {
        use std::io::Write;
        let file = std::fs::File::options().create(true).append(true).open(&starts);
        let line = format!("{} {} {}\n", ctx.run(), ctx.attempt(), ctx.delivery());
        file.unwrap().write_all(line.as_bytes()).unwrap();
    };
    let noted = note.clone();
    executor(&url)
        .host("same-host")
        .handler("long", move |ctx: Context, ms: u64| {
            note(&ctx);
            async move {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(ctx.delivery())
            }
        })
        // Takes its process down, as one does that runs out of memory.
        .handler_with("deadly", slots(1), move |ctx: Context, (): ()| {
            noted(&ctx);
            async move {
                let own = rustix::process::getpid();
                rustix::process::kill_process(own, rustix::process::Signal::KILL).unwrap();
                Ok(())
            }
        })
        .run(std::future::pending::<()>())
        .await
        .unwrap();
}

/// A process that is killed with the test.
struct Process(Child);

impl Process {
    fn start(site: &Site) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "executors::executor_process", "--ignored", "--nocapture"]);
        command.env(URL, site.url()).env(STARTS, starts_file(site));
        Self(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn has_died(&mut self) -> bool {
        self.0.try_wait().unwrap().is_some()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn starts_file(site: &Site) -> std::path::PathBuf {
    site.dir.path().join("starts")
}

fn starts(site: &Site) -> Vec<String> {
    let text = std::fs::read_to_string(starts_file(site)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

impl Site {
    /// A job that is due once, in a moment.
    async fn once(&self, id: &str, handler: &str, mut more: Value) {
        let due = self.clock.now() + TimeDelta::milliseconds(500);
        more["schedule"] =
            json!({ "at": due.to_rfc3339_opts(chrono::SecondsFormat::Millis, true) });
        self.save(job(id, handler, more)).await;
    }

    /// The only run, in a state such as this.
    async fn only_run(&self, wanted: impl Fn(&RunDetail) -> bool) -> RunDetail {
        until("the run", async || {
            let runs = self.runs_now().await?;
            let run = self.store().await.run(*runs.keys().next()?).await.ok()??;
            wanted(&run).then_some(run)
        })
        .await
    }
}

fn ended(run: &RunDetail) -> bool {
    run.run.state.is_terminal()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_run_of_a_killed_executor_goes_to_the_one_that_is_started_in_its_place() {
    let site = Site::single().await;
    let node = site.node().await;
    let mut first = Process::start(&site);
    site.once("long", "long", json!({ "params": 2_500 })).await;
    site.only_run(|run| run.run.state == RunState::Running).await;
    first.kill();
    let killed = tokio::time::Instant::now();
    let _second = Process::start(&site);
    let run = site.only_run(ended).await;
    println!(
        "# R1: ended {:?} after the kill; the lease is {LEASE:?}, the run 2.5 s",
        killed.elapsed()
    );
    assert_eq!(run.run.state, RunState::Succeeded);
    assert_eq!(run.attempt_rows.len(), 1, "another delivery is no retry");
    assert_eq!(starts(&site), [format!("{} 1 1", run.run.run), format!("{} 1 2", run.run.run)]);
    node.stop().await;
}

impl Site {
    /// All runs of a job, once they are as `wanted`.
    async fn runs_of(&self, job: &str, wanted: impl Fn(&[RunRow]) -> bool) -> Vec<RunRow> {
        until(&format!("the runs of {job}"), async || {
            let runs = self.runs_now().await?.into_values();
            let runs: Vec<RunRow> = runs.filter(|run| run.job.as_str() == job).collect();
            wanted(&runs).then_some(runs)
        })
        .await
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_executor_blocks_no_job_that_may_not_overlap_itself() {
    let site = Site::single().await;
    let node = site.node().await;
    let mut first = Process::start(&site);
    let jobs = [("skip", 0), ("skip", 2), ("queue", 0), ("queue", 2)];
    let id = |(overlap, redeliveries): (&str, u32)| format!("{overlap}-{redeliveries}");
    for (overlap, redeliveries) in jobs {
        let more = json!({
            "schedule": { "fixed_rate": "1s" }, "params": 1_500, "overlap": overlap,
            "redeliveries": redeliveries,
        });
        site.save(job(&id((overlap, redeliveries)), "long", more)).await;
    }
    let running = |runs: &[RunRow]| runs.iter().any(|run| run.state == RunState::Running);
    for of in jobs {
        site.runs_of(&id(of), running).await;
    }
    let killed = site.clock.now();
    first.kill();
    let second = Process::start(&site);
    for (overlap, redeliveries) in jobs {
        let job = id((overlap, redeliveries));
        // Of instants after the kill, and one after the other.
        let again = |runs: &[RunRow]| {
            let after = |run: &&RunRow| {
                run.state == RunState::Succeeded && run.fire_time.is_some_and(|at| at > killed)
            };
            runs.iter().filter(after).count() >= 2
        };
        let mut runs = site.runs_of(&job, again).await;
        let left_out = runs.iter().any(|run| run.skip_reason == Some(SkipReason::Overlap));
        assert_eq!(left_out, overlap == "skip", "{job}: {runs:#?}");
        let lost = runs.iter().filter(|run| run.state == RunState::Lost).count();
        assert_eq!(lost, usize::from(redeliveries == 0), "{job}: {runs:#?}");
        runs.retain(|run| run.started_at.is_some());
        runs.sort_by_key(|run| run.started_at);
        for pair in runs.windows(2) {
            assert!(pair[0].ended_at <= pair[1].started_at, "two of {job} at once: {pair:#?}");
        }
        let next = runs.iter().find(|run| run.fire_time.is_some_and(|at| at > killed));
        let waited = next.and_then(|run| run.started_at).map(|at| (at - killed).num_milliseconds());
        println!(
            "# R5: {job}: the next started {waited:?} ms after the kill; the lease is {LEASE:?}"
        );
    }
    drop(second);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_executor_never_comes_back_gives_its_place_back_and_the_next_executor_has_work()
{
    let site = Site::single().await;
    let node = site.node().await;
    let mut only = Process::start(&site);
    let more = json!({
        "schedule": { "fixed_rate": "1s" }, "params": 900, "overlap": "skip", "timeout": "1s",
        "no_executor_wait": "1s",
    });
    site.save(job("alone", "long", more)).await;
    site.runs_of("alone", |runs| runs.iter().any(|run| run.state == RunState::Running)).await;
    only.kill();
    site.runs_of("alone", |runs| runs.iter().any(|run| run.state == RunState::Lost)).await;
    let since = site.clock.now();
    let _next = Process::start(&site);
    let after = |run: &RunRow| {
        run.state == RunState::Succeeded && run.fire_time.is_some_and(|at| at > since)
    };
    site.runs_of("alone", |runs| runs.iter().any(after)).await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_executor_that_was_cut_off_for_longer_than_its_lease_changes_nothing_afterwards() {
    let site = Site::single().await;
    let node = site.node().await;
    let proxy = Proxy::start(site.address()).await.unwrap();
    let (begun, dropped) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (begun, dropped) = (begun.clone(), dropped.clone());
        let (now, most, ledger) = (now.clone(), most.clone(), site.ledger.clone());
        move |ctx: Context, (): ()| {
            ledger.note(&ctx);
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            let inside = Inside(now.clone(), dropped.clone());
            let begun = begun.clone();
            async move {
                let _inside = inside;
                begun.notify_one();
                if ctx.delivery() == 1 {
                    std::future::pending::<()>().await;
                }
                Ok(ctx.delivery())
            }
        }
    };
    let cut_off = Shop::run(executor(&proxy.url()).handler("work", handler.clone()));
    site.once("work", "work", json!({})).await;
    within("the start", begun.notified()).await;
    let other = Shop::run(executor(&site.url()).handler("work", handler));
    proxy.refuse();
    within("the end of the old handler", dropped.notified()).await;
    let run = site.only_run(ended).await;
    assert_eq!((run.run.state, run.attempt_rows[0].delivery), (RunState::Succeeded, Some(2)));
    proxy.heal();
    // It is back when it drains in order, and has said all that it had to say.
    cut_off.close().await;
    other.close().await;
    let judged = site.settled().await;
    judged.say("R2");
    let after = site.store().await.run(run.run.run).await.unwrap().unwrap();
    assert_eq!(after.attempt_rows[0].notes, [], "no late report");
    assert_eq!(site.results().await.len(), 1);
    assert_eq!(most.load(Ordering::SeqCst), 1, "two held one lease");
    node.stop().await;
}

/// Counts handlers that run, and tells of an end.
struct Inside(Arc<AtomicUsize>, Arc<Notify>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
        self.1.notify_one();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_ignores_its_timeout_is_timed_out_and_the_next_attempt_decides() {
    let site = Site::single().await;
    let node = site.node().await;
    let ledger = site.ledger.clone();
    // It blocks its thread: nothing can stop it before it returns success.
    let stubborn = move |ctx: Context, (): ()| {
        ledger.note(&ctx);
        async move {
            let time = if ctx.attempt() == 1 { 3_000 } else { 200 };
            tokio::task::block_in_place(|| std::thread::sleep(Duration::from_millis(time)));
            Ok(ctx.attempt())
        }
    };
    let shop = Shop::run(executor(&site.url()).handler("stubborn", stubborn));
    let more = json!({ "timeout": "1s", "retry": { "max": 1, "initial": "100ms" } });
    site.once("stubborn", "stubborn", more).await;
    let run = site.only_run(ended).await;
    let outcomes: Vec<_> = run.attempt_rows.iter().map(|row| (row.state, row.code)).collect();
    assert_eq!(outcomes, [(RunState::TimedOut, Some(Code::Timeout)), (RunState::Succeeded, None)]);
    // Attempt 1 has returned by the time its executor has drained.
    shop.close().await;
    let run = site.only_run(ended).await;
    assert_eq!((run.run.state, run.attempt_rows[0].notes.len()), (RunState::Succeeded, 0));
    assert_eq!(run.attempt_rows[1].output.as_ref().unwrap().get(), "2");
    assert_eq!(site.results().await.len(), 2);
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_runs_that_fail_together_are_tried_again_spread_and_never_early() {
    let site = Site::single().await;
    let node = site.node().await;
    let shop = Shop::open(&site);
    let due = site.clock.now() + TimeDelta::seconds(4);
    let more = json!({
        "params": 1, "retry": { "max": 1, "initial": "4s", "jitter": 0.5 },
        "schedule": { "at": due.to_rfc3339_opts(chrono::SecondsFormat::Millis, true) },
    });
    let save = |n| site.save(job(&format!("fail-{n}"), "fail", more.clone()));
    futures::future::join_all((0..1000).map(save)).await;
    let judged = until("a thousand runs", async || {
        let judged = site.settled().await;
        (judged.runs.len() == 1000).then_some(judged)
    })
    .await;
    judged.all_succeeded();
    let mut late = Vec::new();
    let mut due: Vec<DateTime<Utc>> = Vec::new();
    for run in judged.runs.keys() {
        let run = site.store().await.run(*run).await.unwrap().unwrap();
        assert_eq!(run.attempt_rows.len(), 2, "{run:#?}");
        let row = &run.attempt_rows[1];
        let (promised, started) = (row.due_at.unwrap(), row.started_at.unwrap());
        assert!(started >= promised, "early: {row:#?}");
        late.push(started - promised);
        due.push(promised);
    }
    due.sort_unstable();
    late.sort_unstable();
    let spread = due[999] - due[0];
    assert!(spread >= TimeDelta::milliseconds(1_500), "{spread}");
    let busiest = due.windows(100).map(|window| window[99] - window[0]).min().unwrap();
    assert!(busiest >= TimeDelta::milliseconds(100), "a hundred within {busiest}");
    println!(
        "# R14: due over {} ms; late p50 {} ms, max {} ms",
        spread.num_milliseconds(),
        late[500].num_milliseconds(),
        late[999].num_milliseconds()
    );
    shop.close().await;
    node.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadly_handler_takes_down_three_executors_of_six_and_is_lost() {
    let site = Site::single().await;
    let node = site.node().await;
    let mut processes: Vec<_> = (0..6).map(|_| Process::start(&site)).collect();
    until("six executors", async || (node.node.registry().entries().len() == 6).then_some(()))
        .await;
    let more = json!({ "redeliveries": 2, "retry": { "max": 1, "initial": "1d" } });
    site.once("deadly", "deadly", more).await;
    let first_ended =
        |run: &RunDetail| run.attempt_rows.first().is_some_and(|row| row.outcome.is_some());
    let run = site.only_run(first_ended).await;
    let first = &run.attempt_rows[0];
    assert_eq!((first.state, first.code), (RunState::Lost, Some(Code::ExecutorLost)), "{run:#?}");
    assert_eq!((run.run.state, run.attempt_rows.len()), (RunState::Retrying, 2), "{run:#?}");
    assert_eq!(run.run.trigger, Some(Trigger::Schedule));
    let died = processes.iter_mut().filter_map(|process| process.has_died().then_some(())).count();
    assert_eq!((died, starts(&site).len()), (3, 3));
    assert_eq!(site.work_left().await, 0);
    println!("# R16: {} ({died} of 6 died)", first.message);
    node.stop().await;
}
