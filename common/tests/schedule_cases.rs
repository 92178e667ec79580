//! The case files hold: `cases/cron.tsv` (zones, gaps, folds, refusals) and `cases/quartz.tsv`
//! (answers of Quartz itself).

#![allow(clippy::expect_used)] // helpers of tests

use chrono::{DateTime, Utc};
use taskparty_common::schedule::{Fold, Gap, Schedule, ScheduleSpec};

fn rows(file: &str) -> Vec<Vec<String>> {
    let path = format!("{}/tests/cases/{file}", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect(&path);
    let rows: Vec<Vec<String>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect();
    assert!(rows.len() > 40, "{path} has {} rows", rows.len());
    rows
}

fn instant(text: &str) -> DateTime<Utc> {
    text.parse().expect(text)
}

fn instants(text: &str) -> Vec<DateTime<Utc>> {
    text.split_whitespace().map(instant).collect()
}

#[test]
fn every_row_of_cron_tsv_holds() {
    for row in rows("cron.tsv") {
        let [expression, zone, after, gap, fold, expected] = &row[..] else { panic!("{row:?}") };
        let spec = ScheduleSpec {
            cron: vec![expression.clone()],
            timezone: Some(zone.clone()),
            gap: serde_json::from_value::<Gap>(gap.as_str().into()).expect("gap"),
            fold: serde_json::from_value::<Fold>(fold.as_str().into()).expect("fold"),
            ..ScheduleSpec::default()
        };
        let after = instant(after);
        let schedule = Schedule::new(&spec);
        let saved = schedule.and_then(|schedule| {
            schedule.check_can_fire(after, after)?;
            Ok(schedule)
        });
        match (saved, expected.as_str()) {
            (saved, "reject") => assert!(saved.is_err(), "{row:?}"),
            (Err(errors), _) => panic!("{row:?}: {errors:?}"),
            (Ok(schedule), _) => {
                let expected = instants(expected);
                let found: Vec<_> = schedule.fires(after, after).take(expected.len()).collect();
                assert_eq!(found, expected, "{row:?}");
            }
        }
    }
}

#[test]
fn every_row_of_quartz_tsv_holds() {
    for row in rows("quartz.tsv") {
        let [expression, after, expected] = &row[..] else { panic!("{row:?}") };
        let spec = ScheduleSpec { cron: vec![expression.clone()], ..ScheduleSpec::default() };
        let schedule = Schedule::new(&spec).unwrap_or_else(|errors| panic!("{row:?}: {errors:?}"));
        let after = instant(after);
        let fires = schedule.fires(after, after);
        if expected == "never" {
            assert_eq!(fires.take(1).count(), 0, "{row:?}");
            assert!(schedule.check_can_fire(after, after).is_err(), "{row:?}");
        } else {
            let expected = instants(expected);
            let found: Vec<_> = fires.take(expected.len()).collect();
            assert_eq!(found, expected, "{row:?}");
        }
    }
}
