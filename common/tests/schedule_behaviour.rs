//! What schedules do: intervals, bounds, single moments, lists, equality.

#![allow(clippy::expect_used)] // helpers of tests

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::schedule::{
    CronExpr, Fold, Gap, Occurrence, OccurrenceKind, Schedule, ScheduleSpec, Zone, ZoneErrorReason,
    tzdata_version,
};

const DAY: u64 = 86_400;

fn instant(text: &str) -> DateTime<Utc> {
    text.parse().expect(text)
}

fn schedule(spec: ScheduleSpec) -> Schedule {
    Schedule::new(&spec).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn every(period: Duration) -> ScheduleSpec {
    ScheduleSpec { fixed_rate: Some(period), ..Default::default() }
}

fn cron(expressions: &[&str], zone: &str) -> ScheduleSpec {
    ScheduleSpec {
        cron: expressions.iter().map(ToString::to_string).collect(),
        timezone: Some(zone.into()),
        ..Default::default()
    }
}

fn fires(spec: ScheduleSpec, after: &str, count: usize) -> Vec<String> {
    let after = instant(after);
    let text = |at: DateTime<Utc>| at.format("%Y-%m-%dT%H:%M:%S%.fZ").to_string();
    schedule(spec).fires(after, after).take(count).map(text).collect()
}

fn occurrences(spec: ScheduleSpec, after: &str, count: usize) -> Vec<(String, OccurrenceKind)> {
    let after = instant(after);
    let pair = |found: Occurrence| (found.at.format("%dT%H:%MZ").to_string(), found.kind);
    schedule(spec).upcoming(after, after).take(count).map(pair).collect()
}

/// F10.
#[test]
fn a_rate_of_days_or_years_fires_then_and_nothing_earlier() {
    let created = instant("2026-01-01T00:00:00.250Z");
    for days in [30, 60, 3_653] {
        let schedule = schedule(every(Duration::from_secs(days * DAY)));
        let period = TimeDelta::days(days as i64);
        let first: Vec<_> = schedule.fires(created, created).take(3).collect();
        assert_eq!(first, [created + period, created + period * 2, created + period * 3]);
        let long_before = created - TimeDelta::days(100_000);
        assert_eq!(schedule.fires(created, long_before).next(), Some(created + period));
    }
    let longest = schedule(every(Duration::from_secs(200 * 365 * DAY)));
    assert!(longest.fires(created, DateTime::<Utc>::MAX_UTC).next().is_none());
}

/// F11.
#[test]
fn a_restart_does_not_move_a_rate() {
    let created = instant("2026-01-01T00:00:00Z");
    let restarted = instant("2026-01-01T01:00:00Z");
    let schedule = schedule(every(Duration::from_secs(7_200)));
    assert_eq!(schedule.fires(created, restarted).next(), Some(instant("2026-01-01T02:00:00Z")));
}

#[test]
fn a_rate_counts_from_its_from_which_is_the_first_fire() {
    let spec = ScheduleSpec {
        timezone: Some("Asia/Shanghai".into()),
        from: Some("2027-01-01T00:00:00".into()),
        until: Some("2026-12-31T17:00:00Z".into()),
        ..every(Duration::from_secs(1_800))
    };
    let expected = ["2026-12-31T16:00:00Z", "2026-12-31T16:30:00Z"];
    assert_eq!(fires(spec, "2026-01-01T00:00:00Z", 9), expected);
}

#[test]
fn a_fixed_delay_has_only_its_first_instant() {
    let spec =
        ScheduleSpec { fixed_delay: Some(Duration::from_secs(25 * DAY)), ..Default::default() };
    let created = instant("2026-01-01T00:00:00Z");
    let delay = schedule(spec.clone());
    assert_eq!(delay.upcoming(created, created).next(), None);
    assert_eq!(delay.first_delayed(created), Some(created));
    let from = ScheduleSpec { from: Some("2026-03-01T00:00:00Z".into()), ..spec };
    assert_eq!(schedule(from).first_delayed(created), Some(instant("2026-03-01T00:00:00Z")));
}

#[test]
fn from_is_inclusive_and_until_exclusive() {
    let spec = ScheduleSpec {
        from: Some("2026-03-01T09:00:00".into()),
        until: Some("2026-03-03T09:00:00".into()),
        ..cron(&["0 9 * * *"], "Europe/Berlin")
    };
    let expected = ["2026-03-01T08:00:00Z", "2026-03-02T08:00:00Z"];
    assert_eq!(fires(spec, "2026-01-01T00:00:00Z", 9), expected);
}

#[test]
fn a_single_moment_follows_gap_and_fold() {
    let at = |moment: &str, gap, fold| {
        let timezone = Some("America/New_York".to_owned());
        let spec =
            ScheduleSpec { at: Some(moment.into()), timezone, gap, fold, ..Default::default() };
        occurrences(spec, "2026-01-01T00:00:00Z", 9)
    };
    let (fire, skipped) = (OccurrenceKind::Fire, OccurrenceKind::Gap);
    let (in_gap, in_fold) = ("2026-03-08T02:30:00", "2026-11-01T01:30:00");
    assert_eq!(at(in_gap, Gap::Shift, Fold::Auto), [("08T07:00Z".into(), fire)]);
    assert_eq!(at(in_gap, Gap::Skip, Fold::Auto), [("08T07:00Z".into(), skipped)]);
    assert_eq!(at(in_fold, Gap::Shift, Fold::Auto), [("01T05:30Z".into(), fire)]);
    assert_eq!(at(in_fold, Gap::Shift, Fold::Last), [("01T06:30Z".into(), fire)]);
    assert_eq!(
        at("2026-11-01T01:30:00-05:00", Gap::Shift, Fold::Auto),
        [("01T06:30Z".into(), fire)]
    );
}

#[test]
fn a_list_is_a_union_and_a_real_fire_wins_over_a_moved_one() {
    let both = cron(&["0 30 2 * * ?", "0 0 3 * * ?", "30 2 * * *"], "America/New_York");
    let fire = OccurrenceKind::Fire;
    let expected =
        [("08T07:00Z".into(), fire), ("09T06:30Z".into(), fire), ("09T07:00Z".into(), fire)];
    assert_eq!(occurrences(both.clone(), "2026-03-08T00:00:00-05:00", 3), expected);
    let skip = ScheduleSpec { gap: Gap::Skip, ..both };
    assert_eq!(occurrences(skip, "2026-03-08T00:00:00-05:00", 3), expected);
}

#[test]
fn a_day_that_a_gap_empties_is_recorded_once() {
    let (fire, skipped) = (OccurrenceKind::Fire, OccurrenceKind::Gap);
    // Every ten minutes between two and three: nothing is left of that day.
    let repeating = cron(&["0 */10 2 * * ?"], "America/New_York");
    let expected = [("08T07:00Z".into(), skipped), ("09T06:00Z".into(), fire)];
    assert_eq!(occurrences(repeating, "2026-03-08T00:00:00-05:00", 2), expected);
    // The last Friday of 2011 did not happen in Apia.
    let hourly = cron(&["0 0 * ? 12 6L 2011"], "Pacific/Apia");
    assert_eq!(occurrences(hourly, "2011-12-01T00:00:00Z", 9), [("30T10:00Z".into(), skipped)]);
    let fixed = cron(&["0 0 9,17 ? 12 6L 2011"], "Pacific/Apia");
    assert_eq!(occurrences(fixed, "2011-12-01T00:00:00Z", 9), [("30T10:00Z".into(), fire)]);
}

#[test]
fn offsets_with_seconds_are_exact() {
    // Monrovia was 44 min 30 s behind until 1972-01-07, and then went forward to UTC.
    let daily = cron(&["0 0 0 * * ?"], "Africa/Monrovia");
    let expected = ["1972-01-06T00:44:30Z", "1972-01-07T00:44:30Z", "1972-01-08T00:00:00Z"];
    assert_eq!(fires(daily, "1972-01-05T12:00:00Z", 3), expected);
}

#[test]
fn instants_after_a_millisecond_are_after_it() {
    let each_second = || cron(&["* * * * * ?"], "UTC");
    assert_eq!(fires(each_second(), "2026-01-01T00:00:00.000001Z", 1), ["2026-01-01T00:00:01Z"]);
    assert_eq!(fires(each_second(), "2025-12-31T23:59:59.999999Z", 1), ["2026-01-01T00:00:00Z"]);
}

#[test]
fn expressions_are_equal_when_they_mean_the_same() {
    let same = [
        ("@daily", "0 0 * * *"),
        ("@weekly", "0 0 0 ? * SUN"),
        ("0 0 2 * * ?", "00 0 2 1-31 * *"),
        ("0 12 * * 7", "0 12 * * sun"),
        ("0 0 22-1 * * ?", "0 0 0-1,22-23 ? * 1-7"),
        ("0 0 1-31 * 5", "0 0 * * *"),
        ("0 0 0 L-0,L * ? 1970-2199", "0 0 0 L * ?"),
    ];
    for (a, b) in same {
        let [a, b] = [a, b].map(|text| CronExpr::parse(text).expect(text));
        assert_eq!(a, b);
    }
    // The first is a fixed time, the second repeats: they differ where clocks change.
    let [fixed, repeating] =
        ["0 2 * * *", "0 2-2 * * *"].map(|text| CronExpr::parse(text).expect(text));
    assert_ne!(fixed, repeating);
    assert!(fixed.is_fixed() && !repeating.is_fixed());
}

#[test]
fn schedules_are_equal_when_they_mean_the_same_and_can_be_written_back() {
    let local = ScheduleSpec {
        from: Some("2027-01-01T00:00:00".into()),
        spread: Duration::from_secs(30),
        ..cron(&["0 0 2 * * ?", "@hourly"], "asia/shanghai")
    };
    let absolute = ScheduleSpec {
        from: Some("2026-12-31T16:00:00Z".into()),
        cron: vec!["0 * * * *".into(), "0 2 * * *".into(), "@hourly".into()],
        ..local.clone()
    };
    let [local, absolute] = [local, absolute].map(schedule);
    assert_eq!(local, absolute);
    let written = local.to_spec();
    assert_eq!(written.timezone.as_deref(), Some("Asia/Shanghai"));
    assert_eq!(written.from.as_deref(), Some("2027-01-01T00:00:00"));
    assert_eq!(written.cron, ["0 0 2 * * ?", "@hourly"]);
    assert_eq!(schedule(written), local);
}

#[test]
fn only_a_cron_without_a_zone_is_worth_a_warning() {
    let without = ScheduleSpec { timezone: None, ..cron(&["@daily"], "UTC") };
    assert!(schedule(without).lacks_timezone());
    assert!(!schedule(cron(&["@daily"], "UTC")).lacks_timezone());
    assert!(!schedule(every(Duration::from_secs(1))).lacks_timezone());
}

/// N4.
#[test]
fn zones_are_iana_names_of_the_bundled_data() {
    for (name, known_as) in
        [("UTC", "UTC"), ("Etc/UTC", "Etc/UTC"), ("asia/shanghai", "Asia/Shanghai")]
    {
        assert_eq!(Zone::parse(name).expect(name).name(), known_as);
    }
    let refused = [
        ("Asia/Beijing", ZoneErrorReason::Unknown, "Asia/Shanghai"),
        ("UTC+8", ZoneErrorReason::Offset, "Etc/GMT-8"),
        ("+08:00", ZoneErrorReason::Offset, "Etc/GMT-8"),
        ("CST", ZoneErrorReason::Abbreviation, "America/Chicago"),
        ("est5edt", ZoneErrorReason::Abbreviation, "America/New_York"),
        ("New York", ZoneErrorReason::Unknown, "America/New_York"),
    ];
    for (name, reason, near) in refused {
        let error = Zone::parse(name).expect_err(name);
        assert_eq!(error.reason(), reason, "{name}");
        assert!(error.near().iter().any(|found| found == near), "{name}: {error}");
    }
    assert!(tzdata_version() >= "2026", "{}", tzdata_version());
}

#[test]
fn an_expression_is_small() {
    assert!(size_of::<CronExpr>() <= 128, "{}", size_of::<CronExpr>());
}
