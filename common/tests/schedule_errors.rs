//! What users read when they get a schedule wrong: the likeliest mistakes.

#![allow(clippy::expect_used)] // helpers of tests

use std::time::Duration;

use chrono::{DateTime, Utc};
use insta::assert_snapshot;
use taskparty_common::schedule::{Schedule, ScheduleSpec};

fn errors(spec: ScheduleSpec) -> String {
    let now: DateTime<Utc> = "2026-06-01T00:00:00Z".parse().expect("now");
    let checked = Schedule::new(&spec).and_then(|schedule| schedule.check_can_fire(now, now));
    let errors = checked.expect_err("it is a mistake");
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn cron(expressions: &[&str]) -> ScheduleSpec {
    ScheduleSpec {
        cron: expressions.iter().map(ToString::to_string).collect(),
        ..Default::default()
    }
}

fn zone(name: &str) -> ScheduleSpec {
    ScheduleSpec { timezone: Some(name.into()), ..cron(&["@daily"]) }
}

#[test]
fn a_wrong_cron_expression_is_explained() {
    assert_snapshot!(errors(cron(&[""])), @r#"cron: "" is empty; write 5 fields (minute hour day-of-month month day-of-week) or 6 to 7 (second first, optional year last)"#);
    assert_snapshot!(errors(cron(&["* * * *"])), @r#"cron: "* * * *" has 4 fields; write 5 (minute hour day-of-month month day-of-week) or 6 to 7 (second first, optional year last)"#);
    assert_snapshot!(errors(cron(&["0 0 24 * * ?"])), @r#"cron: hour: "24" is out of range; write 0 to 23, as in 2, 9,18, 22-2 or */6"#);
    assert_snapshot!(errors(cron(&["0 0 2 * * MONDAY"])), @r#"cron: day-of-week: "MONDAY" is not a value; write 1 to 7 (1 is Sunday) or SUN to SAT, as in MON-FRI; also 6L (the last Friday) or 6#3 (the third)"#);
    assert_snapshot!(errors(cron(&["0 0 2 ? * 0"])), @r#"cron: day-of-week: "0" is out of range; write 1 to 7 (1 is Sunday) or SUN to SAT, as in MON-FRI; also 6L (the last Friday) or 6#3 (the third)"#);
    assert_snapshot!(errors(cron(&["*/90 * * * *"])), @r#"cron: minute: "*/90" has a bad step; a step is from 1 to 59, as in */2 (for a longer one use fixed_rate)"#);
    assert_snapshot!(errors(cron(&["0 2 ? * 1"])), @r#"cron: day-of-month: "?" is misplaced; ? stands alone in a day field of an expression with 6 or 7 fields, write *"#);
    assert_snapshot!(errors(cron(&["0 0 2 1 1 ? 1969"])), @r#"cron: year: "1969" is out of range; write 1970 to 2199, as in 2027, 2026-2030 or 2026/2"#);
    assert_snapshot!(errors(cron(&["0 0 2 1 * 2"])), @r#"cron: "0 0 2 1 * 2" restricts both day-of-month and day-of-week; put ? into one of them"#);
    assert_snapshot!(errors(cron(&["0 0 2 ? * ?"])), @r#"cron: "0 0 2 ? * ?" has ? in both day fields; put * into one of them for every day"#);
    assert_snapshot!(errors(cron(&["0 0 2 ? * 6#6"])), @r#"cron: day-of-week: "6#6" is no weekday of a month; write # with 1 to 5, as in 6#3 (the third Friday)"#);
    assert_snapshot!(errors(cron(&["0 0 2 W * ?"])), @r#"cron: day-of-month: "W" is not understood; write L, L-3, LW, L-3W or 15W, in an expression with 6 or 7 fields"#);
    assert_snapshot!(errors(cron(&["0 2 L * *"])), @r#"cron: day-of-month: "L" is not understood; write L, L-3, LW, L-3W or 15W, in an expression with 6 or 7 fields"#);
    assert_snapshot!(errors(cron(&["0,,30 2 * * *"])), @r#"cron: minute: "0,,30" has an empty place; write 0 to 59, as in 30, 0,30, 10-20 or */5, lists with single commas"#);
    assert_snapshot!(errors(cron(&["@midnight"])), @r#"cron: "@midnight" is not known; write @yearly, @monthly, @weekly, @daily or @hourly"#);
    assert_snapshot!(errors(cron(&["0 0 0 30 2 ?"])), @r#"cron: "0 0 0 30 2 ?" can never fire: no such day in any of its months and years (1970 to 2199)"#);
    assert_snapshot!(errors(cron(&["0 0 0 * * ? 2020-2025"])), @r#"cron: "0 0 0 * * ? 2020-2025" can not fire any more: its years are past"#);
    assert_snapshot!(errors(cron(&["@daily", "0 61 * * * ?", "0 0 0 * * ? 2030-2026"])), @r#"
    cron[1]: minute: "61" is out of range; write 0 to 59, as in 30, 0,30, 10-20 or */5
    cron[2]: year: "2030-2026" is a range that goes back; years do not wrap, write 2026-2030
    "#);
}

#[test]
fn a_wrong_zone_is_explained_with_near_names() {
    assert_snapshot!(errors(zone("Asia/Beijing")), @r#"timezone: "Asia/Beijing" is not an IANA time zone; did you mean Asia/Shanghai?"#);
    assert_snapshot!(errors(zone("UTC+8")), @r#"timezone: "UTC+8" is an offset, not a zone: it does not say when the clocks change; did you mean Asia/Shanghai or Etc/GMT-8?"#);
    assert_snapshot!(errors(zone("CST")), @r#"timezone: "CST" is an abbreviation: it means different zones in different places, or only half of a year; did you mean Asia/Shanghai, America/Chicago or America/Havana?"#);
    assert_snapshot!(errors(zone("EST")), @r#"timezone: "EST" is an abbreviation: it means different zones in different places, or only half of a year; did you mean America/New_York or America/Panama?"#);
    assert_snapshot!(errors(zone("Asia/Shangai")), @r#"timezone: "Asia/Shangai" is not an IANA time zone; did you mean Asia/Shanghai?"#);
    assert_snapshot!(errors(zone("America/Berlin")), @r#"timezone: "America/Berlin" is not an IANA time zone; did you mean Europe/Berlin?"#);
    assert_snapshot!(errors(zone("")), @r#"timezone: "" is not an IANA time zone; write a name like Asia/Shanghai or Europe/Berlin, or UTC"#);
}

#[test]
fn other_fields_are_explained_and_all_mistakes_come_at_once() {
    assert_snapshot!(errors(ScheduleSpec::default()), @r#"needs exactly one of cron, fixed_rate, fixed_delay and at; it has 0"#);
    let spec = ScheduleSpec { fixed_rate: Some(Duration::ZERO), ..cron(&["@daily"]) };
    assert_snapshot!(errors(spec), @r#"
    needs exactly one of cron, fixed_rate, fixed_delay and at; it has 2
    fixed_rate: 0s is no interval; write 1ms to 200 years, in whole milliseconds, as in 30s or 1h30m
    "#);
    let spec = ScheduleSpec {
        from: Some("01/02/2027".into()),
        until: Some("2027-01-01T00:00:00.0005Z".into()),
        spread: Duration::from_secs(90_000),
        ..zone("Europe/Belin")
    };
    assert_snapshot!(errors(spec), @r#"
    timezone: "Europe/Belin" is not an IANA time zone; did you mean Europe/Berlin?
    from: "01/02/2027" is not a date and time; write 2027-01-31T09:00:00 (in the schedule's timezone) or 2027-01-31T09:00:00+08:00
    until: "2027-01-01T00:00:00.0005Z" is finer than a millisecond
    spread: 1d1h is no spread; write 0s to 24h, in whole milliseconds, as in 30s
    "#);
    let spec = ScheduleSpec {
        from: Some("2027-01-01T00:00:00".into()),
        until: Some("2026-12-31T23:00:00-01:00".into()),
        ..cron(&["@daily"])
    };
    assert_snapshot!(errors(spec), @r#"until: "2026-12-31T23:00:00-01:00" is not after from, so it would never fire; until is exclusive"#);
    let spec = ScheduleSpec { until: Some("2026-06-01T00:00:01Z".into()), ..cron(&["@daily"]) };
    assert_snapshot!(errors(spec), @r#"until: "2026-06-01T00:00:01Z" is too early: there is no fire between now and then"#);
    let spec = ScheduleSpec { at: Some("2026-05-31T23:59:59Z".into()), ..Default::default() };
    assert_snapshot!(errors(spec), @r#"at: "2026-05-31T23:59:59Z" is past; write a moment to come"#);
}
