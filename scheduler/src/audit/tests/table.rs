//! Single cases that a random history does not hit.

use serde_json::json;
use taskparty_common::fire::FireId;
use taskparty_common::job::{Job, JobSpec, Unknown};
use taskparty_common::outcome::SkipReason;
use taskparty_common::schedule::spread_offset;

use super::model::{Went, World, at, job_id, spec};
use super::shown;
use crate::audit::*;

/// A job that is due each 10 s, and a world that knows it since long ago.
fn ten() -> World {
    let mut world = World::empty();
    world.bounds.to = at(100_000);
    world.save(&Job::new(spec("ten", 10, 0), at(-60_000), "test"), at(-59_990));
    world
}

fn run(world: &mut World, second: i64) {
    let when = at(second * 1000);
    world.run(&FireId::at(job_id("ten"), when), when, &[vec![Went::Succeeded]], 0);
}

fn kinds(report: &Report) -> Vec<(Kind, u64)> {
    report.by_kind.iter().map(|(kind, count)| (*kind, *count)).collect()
}

#[test]
fn instants_in_a_row_are_one_violation_with_their_count() {
    let mut world = ten();
    for second in [0, 10, 50, 60, 70, 80, 90] {
        run(&mut world, second);
    }
    let report = world.judge();
    assert_eq!(kinds(&report), [(Kind::InstantMissing, 3)]);
    assert_eq!(report.violations.len(), 1);
    assert_eq!(report.violations[0].place.instant, Some(at(20_000)));
    assert_eq!(report.judged.instants, 10);
}

#[test]
fn a_record_of_several_passes_over_what_has_a_record_of_its_own() {
    let mut world = ten();
    run(&mut world, 30);
    world.skip(&job_id("ten"), 0, 60_000, 6);
    for second in [70, 80, 90] {
        run(&mut world, second);
    }
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
}

#[test]
fn a_record_of_several_that_also_counts_a_run_is_one_too_many() {
    let mut world = ten();
    run(&mut world, 30);
    world.skip(&job_id("ten"), 0, 60_000, 7);
    for second in [70, 80, 90] {
        run(&mut world, second);
    }
    assert_eq!(kinds(&world.judge()), [(Kind::InstantTwice, 1)]);
}

#[test]
fn nothing_is_missing_from_before_anything_fired() {
    let mut world = ten();
    world.installation.began = Some(at(45_000));
    for second in [50, 60, 70, 80, 90] {
        run(&mut world, second);
    }
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
    assert_eq!((report.judged.instants, report.judged.instants_open), (5, 5));
}

#[test]
fn a_job_that_lags_is_missing_what_is_before_its_cursor_and_nothing_after_it() {
    let mut world = ten();
    for second in [0, 10, 30] {
        run(&mut world, second);
    }
    let since = Job::new(spec("ten", 10, 0), at(-60_000), "test").meta.since;
    let lagging = LaggingFact { job: "ten".into(), since, handled: at(39_999) };
    world.lagging = vec![lagging.clone()];
    let report = world.judge();
    assert_eq!(kinds(&report), [(Kind::InstantMissing, 1)]);
    assert_eq!(report.violations[0].place.instant, Some(at(20_000)));
    assert_eq!(report.notes_by_kind.get(&NoteKind::Lagging), Some(&1));
    assert_eq!(report.judged.instants_open, 6);
    // A cursor in another past says nothing.
    world.lagging = vec![LaggingFact { since: at(-59_000), ..lagging }];
    assert_eq!(kinds(&world.judge()), [(Kind::InstantMissing, 7)]);
}

#[test]
fn where_nothing_ever_fired_that_is_said_and_nothing_judged() {
    let mut world = ten();
    world.installation.began = None;
    let report = world.judge();
    assert!(report.is_clean());
    assert_eq!(report.notes_by_kind.get(&NoteKind::NothingFired), Some(&1));
}

#[test]
fn a_scheduler_that_lives_and_never_fires_is_found() {
    let report = ten().judge();
    assert_eq!(kinds(&report), [(Kind::InstantMissing, 10)]);
}

#[test]
fn what_nobody_had_fired_before_an_edit_is_a_note_and_what_is_missing_inside_is_not() {
    let mut world = ten();
    let job = Job::new(spec("ten", 10, 0), at(-60_000), "test");
    world.save(&job.with_spec(spec("ten", 10, 5000), at(64_000), "test"), at(64_050));
    for second in [0, 20, 65, 75, 85, 95] {
        run(&mut world, second);
    }
    let report = world.judge();
    assert_eq!(kinds(&report), [(Kind::InstantMissing, 1)]);
    assert_eq!(report.violations[0].place.instant, Some(at(10_000)));
    assert_eq!(report.notes_by_kind.get(&NoteKind::BeforeEdit), Some(&1));
}

#[test]
fn a_fire_of_the_old_schedule_just_after_an_edit_is_open_and_one_much_later_is_wrong() {
    let mut world = ten();
    let job = Job::new(spec("ten", 10, 0), at(-60_000), "test");
    world.save(&job.with_spec(spec("ten", 10, 5000), at(29_990), "test"), at(30_020));
    for second in [0, 10, 20, 30, 35, 45, 55, 65, 75, 85, 95] {
        run(&mut world, second);
    }
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
    run(&mut world, 60);
    assert_eq!(kinds(&world.judge()), [(Kind::InstantUnexpected, 1)]);
}

#[test]
fn a_fire_during_a_pause_is_wrong() {
    let mut world = ten();
    let job = Job::new(spec("ten", 10, 0), at(-60_000), "test");
    let paused = taskparty_common::job::Paused {
        at: at(31_000),
        by: "test".into(),
        reason: String::new(),
        until: Some(at(75_000)),
    };
    world.save(&job.with_pause(Some(paused), at(31_000), "test"), at(31_020));
    for second in [0, 10, 20, 30, 80, 90] {
        run(&mut world, second);
    }
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
    run(&mut world, 50);
    assert_eq!(kinds(&world.judge()), [(Kind::InstantUnexpected, 1)]);
}

#[test]
fn an_edit_that_leaves_the_schedule_as_it_is_opens_nothing() {
    let mut world = ten();
    let job = Job::new(spec("ten", 10, 0), at(-60_000), "test");
    let mut other = spec("ten", 10, 0);
    other.title = "renamed".into();
    world.save(&job.with_spec(other, at(49_000), "test"), at(49_010));
    for second in [0, 10, 20, 30, 40, 60, 70, 80, 90] {
        run(&mut world, second);
    }
    assert_eq!(kinds(&world.judge()), [(Kind::InstantMissing, 1)]);
}

#[test]
fn where_revisions_are_gone_only_what_is_known_is_judged() {
    let mut world = ten();
    let job = Job::new(spec("ten", 7, 0), at(-60_000), "test");
    world.revisions.clear();
    world.save(&job.with_spec(spec("ten", 10, 0), at(45_000), "test"), at(45_010));
    for second in [7, 14, 21, 50, 60, 70, 90] {
        run(&mut world, second);
    }
    let report = world.judge();
    assert_eq!(kinds(&report), [(Kind::InstantMissing, 1)]);
    assert_eq!(report.notes_by_kind.get(&NoteKind::HistoryCut), Some(&1));
}

#[test]
fn a_spread_delays_what_must_be_there_and_not_what_it_is_called() {
    let mut world = World::empty();
    world.bounds.to = world.bounds.now;
    let hour = std::time::Duration::from_secs(3600);
    let late = |id: &String| spread_offset(id, hour) > hour / 2;
    let id = (0..).map(|n| format!("wide-{n}")).find(late).unwrap();
    let spec = json!({ "id": id, "app": "shop", "handler": "settle", "overlap": "allow",
        "schedule": { "fixed_rate": "10m", "from": "2027-01-15T08:00:10Z", "spread": "1h" } });
    let spec = JobSpec::from_json(&spec, Unknown::Refuse).unwrap();
    world.save(&Job::new(spec, at(-60_000), "test"), at(-59_990));
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
    assert_eq!(report.judged.instants_open, 1);
}

#[test]
fn a_local_time_that_does_not_exist_is_a_record_of_its_own() {
    let mut world = World::empty();
    let when: chrono::DateTime<chrono::Utc> = "2027-03-14T07:00:00Z".parse().unwrap();
    let day = chrono::TimeDelta::hours(30);
    world.bounds.from = when - day;
    (world.bounds.to, world.bounds.now) = (when + day, when + day);
    let schedule = json!({ "cron": "0 30 2 * * ?", "timezone": "America/New_York", "gap": "skip" });
    let spec = json!({ "id": "night", "app": "shop", "handler": "settle", "overlap": "allow", "schedule": schedule });
    let spec = JobSpec::from_json(&spec, Unknown::Refuse).unwrap();
    world.save(&Job::new(spec, at(-60_000), "test"), at(-59_990));
    let report = world.judge();
    let missing = report.by_kind.get(&Kind::InstantMissing).copied().unwrap_or(0);
    assert!(missing >= 2, "{}", shown(&report));
    let gap = report.violations.iter().find(|v| v.kind == Kind::InstantMissing);
    assert!(gap.is_some());
    // A run at the gap is wrong, a record of the gap is right.
    world.run(&FireId::at(job_id("night"), when), when, &[vec![Went::Succeeded]], 0);
    let wrong = world.judge();
    assert_eq!(wrong.by_kind.get(&Kind::InstantUnexpected), Some(&1), "{}", shown(&wrong));
    for fact in &mut world.fired {
        fact.result = taskparty_common::outcome::TriggerResult::Skipped;
        fact.skipped = Some(taskparty_common::fire::Skipped {
            reason: SkipReason::Gap,
            count: 1,
            first: when,
        });
    }
    assert_eq!(world.judge().by_kind.get(&Kind::InstantUnexpected), None);
}

#[test]
fn the_same_record_again_is_a_note() {
    let mut world = ten();
    for second in 0..10 {
        run(&mut world, second * 10);
    }
    let mut again = world.fired[3].clone();
    again.result = taskparty_common::outcome::TriggerResult::Queued;
    world.fired.push(again);
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
    assert_eq!(report.notes_by_kind.get(&NoteKind::RecordRepeated), Some(&1));
}

#[test]
fn of_a_run_that_waited_for_its_turn_the_record_of_what_came_of_it_counts() {
    use taskparty_common::fire::Skipped;
    use taskparty_common::outcome::{RunState, TriggerResult};
    let mut world = ten();
    for second in 0..10 {
        run(&mut world, second * 10);
    }
    // One waits still, one was dispatched later, one was cancelled before.
    for n in 0..3 {
        let mut waits = world.fired[n].clone();
        (waits.result, waits.awaits_place) = (TriggerResult::Queued, true);
        world.fired.insert(n, waits);
    }
    let (waits, cancelled) = (world.fired[0].run, world.fired[2].run);
    world.fired.retain(|fact| fact.run != waits || fact.awaits_place);
    for fact in world.fired.iter_mut().filter(|fact| fact.run == cancelled && !fact.awaits_place) {
        fact.result = TriggerResult::Skipped;
        let first = fact.fire_time;
        fact.skipped = Some(Skipped { reason: SkipReason::Cancelled, count: 1, first });
    }
    for row in world.rows.iter_mut().filter(|row| row.run == waits || row.run == cancelled) {
        row.tries.clear();
        (row.state, row.result) = match row.run == waits {
            true => (RunState::Waiting, Some(TriggerResult::Queued)),
            false => (RunState::Cancelled, Some(TriggerResult::Skipped)),
        };
    }
    world.starts.retain(|start| start.run != waits && start.run != cancelled);
    world.results.retain(|result| result.run != waits && result.run != cancelled);
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
}

#[test]
fn a_delivery_that_nats_forgot_may_come_again_and_only_then() {
    let mut world = ten();
    for second in 0..10 {
        run(&mut world, second * 10);
    }
    let mut again = world.starts[3].clone();
    again.at = at(36_000);
    world.starts.push(again.clone());
    world.bounds.forgot = vec![at(33_000)];
    let report = world.judge();
    assert!(report.is_clean(), "{}", shown(&report));
    assert_eq!(report.notes_by_kind.get(&NoteKind::DeliveryForgotten), Some(&1));
    again.at = at(36_100);
    world.starts.push(again);
    assert_eq!(kinds(&world.judge()), [(Kind::StartTwice, 1)]);
}

#[test]
fn of_many_violations_some_of_each_kind_are_put_into_words() {
    let mut world = ten();
    world.bounds.most = 5;
    world.bounds.to = at(400_000);
    for second in 0..40 {
        run(&mut world, second * 10);
    }
    world.rows.clear();
    world.leftovers.outbox.push("decision".into());
    let report = world.judge();
    assert_eq!(kinds(&report), [(Kind::RunMissing, 40), (Kind::OutboxStuck, 1)]);
    assert!(report.violations.len() < 20);
    assert!(report.violations.iter().any(|violation| violation.kind == Kind::OutboxStuck));
}

#[test]
fn memory_has_a_bound_and_the_ledger_says_when_it_is_reached() {
    let mut world = ten();
    for second in 0..10 {
        run(&mut world, second * 10);
    }
    let mut ledger = Ledger::new(Bounds { max_runs: 5, ..world.bounds });
    world.rows.into_iter().for_each(|row| ledger.history(row));
    assert!(ledger.is_full());
}
