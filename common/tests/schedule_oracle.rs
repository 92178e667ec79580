//! Second opinions: a brute-force oracle that steps through real minutes around the transitions of
//! real zones, and `croner` where it is right.

#![allow(clippy::expect_used)] // helpers of tests

use std::collections::{BTreeMap, BTreeSet};

use chrono::{DateTime, Datelike, TimeDelta, Timelike, Utc};
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};
use proptest::prelude::*;
use proptest::sample::select;
use taskparty_common::schedule::{Fold, Gap, OccurrenceKind, Schedule, ScheduleSpec};

/// One field, as text and as the values it means.
#[derive(Debug, Clone)]
struct Field {
    text: String,
    values: BTreeSet<u32>,
    fixed: bool,
}

/// `*`, a list, a step or a range that may wrap, of `min..=max`.
fn field(min: u32, max: u32) -> impl Strategy<Value = Field> {
    let all: BTreeSet<u32> = (min..=max).collect();
    let star = Just(Field { text: "*".into(), values: all, fixed: false });
    let list = prop::collection::btree_set(min..=max, 1..4).prop_map(|values| {
        let text: Vec<String> = values.iter().map(u32::to_string).collect();
        Field { text: text.join(","), values, fixed: true }
    });
    let step = (min..=max, 1..=max.max(2) / 2).prop_map(move |(first, step)| Field {
        text: format!("{first}/{step}"),
        values: (first..=max).step_by(step as usize).collect(),
        fixed: false,
    });
    let range = (min..=max, min..=max).prop_map(move |(first, last)| Field {
        text: format!("{first}-{last}"),
        values: if first <= last {
            (first..=last).collect()
        } else {
            (first..=max).chain(min..=last).collect()
        },
        fixed: false,
    });
    prop_oneof![1 => star, 4 => list, 2 => step, 2 => range]
}

/// An expression that is likely to match near any hour of any day.
#[derive(Debug, Clone)]
struct Expression {
    minute: Field,
    hour: Field,
    weekday: Field,
}

impl Expression {
    fn any() -> impl Strategy<Value = Expression> {
        // Gaps and folds are in the night, mostly.
        let night = prop::collection::btree_set(0_u32..=3, 1..3).prop_map(|values| Field {
            text: values.iter().map(u32::to_string).collect::<Vec<_>>().join(","),
            values,
            fixed: true,
        });
        let hour = prop_oneof![night, field(0, 23)];
        (field(0, 59), hour, field(1, 7)).prop_map(|(minute, hour, weekday)| Expression {
            minute,
            hour,
            weekday,
        })
    }

    fn text(&self) -> String {
        format!("0 {} {} ? * {}", self.minute.text, self.hour.text, self.weekday.text)
    }

    fn is_fixed(&self) -> bool {
        self.minute.fixed && self.hour.fixed
    }

    /// Whether the local minute (counted like UTC minutes) matches.
    fn matches(&self, local: i64) -> bool {
        let time = DateTime::from_timestamp(local * 60, 0).expect("in range");
        self.minute.values.contains(&time.minute())
            && self.hour.values.contains(&time.hour())
            && self.weekday.values.contains(&time.weekday().number_from_sunday())
    }

    /// The occurrences in the minutes of `window`, by looking at each. `clock` gives the local minute
    /// of every minute in a wider window.
    fn by_hand(
        &self,
        clock: &BTreeMap<i64, i64>,
        window: std::ops::Range<i64>,
        gap: Gap,
        fold: Fold,
    ) -> Vec<(i64, OccurrenceKind)> {
        let mut shown: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
        for (&at, &local) in clock {
            shown.entry(local).or_default().push(at);
        }
        let mut found: BTreeMap<i64, OccurrenceKind> = BTreeMap::new();
        for (_, instants) in shown.iter().filter(|(local, _)| self.matches(**local)) {
            let wanted = match (fold, self.is_fixed()) {
                (Fold::First, _) | (Fold::Auto, true) => &instants[..1],
                (Fold::Last, _) => &instants[instants.len() - 1..],
                _ => &instants[..],
            };
            found.extend(wanted.iter().map(|&at| (at, OccurrenceKind::Fire)));
        }
        let locals = *shown.keys().next().expect("some")..*shown.keys().last().expect("some");
        for missing in locals.filter(|local| !shown.contains_key(local) && self.matches(*local)) {
            // The first minute that is past a local time that no minute shows.
            let after = clock.iter().find(|(_, local)| **local > missing).expect("an end").0;
            let kind = match (self.is_fixed(), gap) {
                (true, Gap::Shift) => OccurrenceKind::Fire,
                (true, Gap::Skip) => OccurrenceKind::Gap,
                (false, _) => {
                    let day = missing.div_euclid(1_440) * 1_440;
                    if shown.range(day..day + 1_440).any(|(local, _)| self.matches(*local)) {
                        continue;
                    }
                    OccurrenceKind::Gap
                }
            };
            found.entry(*after).or_insert(kind);
        }
        found.into_iter().filter(|(at, _)| window.contains(at)).collect()
    }
}

fn zone(name: &str) -> TimeZone {
    TimeZoneDatabase::bundled().get(name).expect(name)
}

/// The local minute of each minute around the minute `at`; none where offsets have seconds.
fn clock_around(zone: &TimeZone, at: i64) -> Option<BTreeMap<i64, i64>> {
    (at - 5 * 1_440..at + 5 * 1_440)
        .map(|minute| {
            let instant = Timestamp::from_second(minute * 60).expect("in range");
            let offset = i64::from(zone.to_offset(instant).seconds());
            (offset % 60 == 0).then_some((minute, minute + offset / 60))
        })
        .collect()
}

/// Transitions of zones since 1970, in minutes: all kinds of seams, not only summer time.
fn seams() -> Vec<(String, i64)> {
    let start: Timestamp = "1970-02-01T00:00:00Z".parse().expect("start");
    let end: Timestamp = "2045-01-01T00:00:00Z".parse().expect("end");
    let database = TimeZoneDatabase::bundled();
    let names: Vec<String> = database.available().map(|name| name.to_string()).collect();
    let mut seams = Vec::new();
    for name in names.iter().filter(|name| name.contains('/')) {
        let zone = zone(name);
        let transitions = zone.following(start).take_while(|seam| seam.timestamp() < end);
        seams.extend(transitions.map(|seam| (name.clone(), seam.timestamp().as_second() / 60)));
    }
    seams
}

/// Seams that deserve to be tried every time.
const ODD_SEAMS: &[(&str, &str)] = &[
    ("Pacific/Apia", "2011-12-30T10:00:00Z"),
    ("Pacific/Kwajalein", "1993-08-21T12:00:00Z"),
    ("America/Sao_Paulo", "2018-11-04T03:00:00Z"),
    ("Africa/Casablanca", "2025-02-23T02:00:00Z"),
    ("Europe/Dublin", "2026-10-25T01:00:00Z"),
    ("Australia/Lord_Howe", "2025-10-04T15:30:00Z"),
    ("Asia/Pyongyang", "2018-05-04T15:00:00Z"),
    ("Antarctica/Troll", "2026-03-29T01:00:00Z"),
    ("America/Caracas", "2016-05-01T07:00:00Z"),
    ("Africa/Juba", "2021-01-31T21:00:00Z"),
];

fn policies() -> impl Strategy<Value = (Gap, Fold)> {
    let folds = vec![Fold::Auto, Fold::First, Fold::Last, Fold::Both];
    (select(vec![Gap::Shift, Gap::Skip]), select(folds))
}

fn schedule(cron: Vec<String>, zone: &str, gap: Gap, fold: Fold) -> Schedule {
    let spec = ScheduleSpec { cron, timezone: Some(zone.into()), gap, fold, ..Default::default() };
    Schedule::new(&spec).unwrap_or_else(|errors| panic!("{errors:?}"))
}

fn assert_agrees(expressions: &[Expression], zone_name: &str, seam: i64, gap: Gap, fold: Fold) {
    let Some(clock) = clock_around(&zone(zone_name), seam) else { return };
    let window = seam - 2 * 1_440..seam + 2 * 1_440;
    let mut expected: BTreeMap<i64, OccurrenceKind> = BTreeMap::new();
    for expression in expressions {
        for (at, kind) in expression.by_hand(&clock, window.clone(), gap, fold) {
            let best = expected.get(&at).map_or(kind, |other| kind.min(*other));
            expected.insert(at, best);
        }
    }
    let texts: Vec<String> = expressions.iter().map(Expression::text).collect();
    let schedule = schedule(texts.clone(), zone_name, gap, fold);
    let after = DateTime::from_timestamp(window.start * 60 - 1, 0).expect("in range");
    let found: Vec<(i64, OccurrenceKind)> = schedule
        .upcoming(after, after)
        .map(|occurrence| (occurrence.at.timestamp() / 60, occurrence.kind))
        .take_while(|(at, _)| window.contains(at))
        .collect();
    let expected: Vec<(i64, OccurrenceKind)> = expected.into_iter().collect();
    assert_eq!(found, expected, "{texts:?} in {zone_name} around minute {seam}, {gap:?} {fold:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn around_any_seam_it_agrees_with_looking_at_each_minute(
        expressions in prop::collection::vec(Expression::any(), 1..3),
        seam in select(seams()),
        (gap, fold) in policies(),
    ) {
        assert_agrees(&expressions, &seam.0, seam.1, gap, fold);
    }

    #[test]
    fn around_odd_seams_it_agrees_with_looking_at_each_minute(
        expressions in prop::collection::vec(Expression::any(), 1..3),
        (zone, at) in select(ODD_SEAMS),
        (gap, fold) in policies(),
    ) {
        let at: Timestamp = at.parse().expect("a timestamp");
        assert_agrees(&expressions, zone, at.as_second() / 60, gap, fold);
    }

    /// Stretches without a match are jumped over: that must not jump over the match.
    #[test]
    fn from_years_before_it_finds_what_it_finds_from_days_before(
        (zone, seam) in select(seams()),
        (days, hour, minute) in (-1_i64..=1, "\\*|[0-9]|1[0-9]|2[0-3]", "\\*/10|[0-5][0-9]"),
        (gap, fold) in policies(),
        years in 1_i64..60,
    ) {
        let seam = DateTime::from_timestamp(seam * 60, 0).expect("in range");
        let date = seam + TimeDelta::days(days);
        let text = format!("0 {minute} {hour} {} {} ? {}", date.day(), date.month(), date.year());
        let schedule = schedule(vec![text.clone()], &zone, gap, fold);
        let (near, far) = (seam - TimeDelta::days(5), seam - TimeDelta::days(366 * years));
        let near: Vec<_> = schedule.upcoming(near, near).collect();
        let far: Vec<_> = schedule.upcoming(far, far).collect();
        prop_assert!(!near.is_empty(), "{} {}", text, zone);
        prop_assert_eq!(near, far, "{} {}", text, zone);
    }

    /// croner reads the Unix form in UTC as we do, when it has no wrapping range.
    #[test]
    fn in_utc_it_agrees_with_croner(
        minute in field(0, 59), hour in field(0, 23), day in field(1, 31),
        month in field(1, 12), weekday in field(0, 6), after in 0_i64..4_000_000_000,
    ) {
        let fields = [minute, hour, day, month, weekday];
        let wraps = |field: &Field| {
            let ends = field.text.split_once('-');
            ends.is_some_and(|(a, b)| a.parse::<u32>().ok() > b.parse::<u32>().ok())
        };
        prop_assume!(!fields.iter().any(wraps));
        // It refuses `a/n`.
        let [minute, hour, day, month, weekday] = fields.map(|field| field.text);
        let spelled = [(minute, 59), (hour, 23), (day, 31), (month, 12), (weekday, 7)]
            .map(|(text, max)| text.replace('/', &format!("-{max}/")));
        let text = spelled.join(" ");
        let ours = schedule(vec![text.clone()], "UTC", Gap::Shift, Fold::Auto);
        prop_assume!(ours.check_can_fire(DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH).is_ok());
        let theirs: croner::Cron = text.parse().expect("croner reads it");
        let after = DateTime::from_timestamp(after, 0).expect("in range");
        let ours: Vec<_> = ours.fires(after, after).take(5).collect();
        let theirs: Vec<_> = theirs.iter_after(after).take(ours.len()).collect();
        prop_assert_eq!(ours, theirs, "{}", text);
    }

    #[test]
    fn occurrences_are_strictly_increasing_and_inside_their_bounds(
        text in "[0-9]{1,2}(/[1-9])? (\\*|[0-5]) ([0-9]|\\*/7|1-3) (\\?|L|L-3W|15W|\\*) (\\*|2|10-3) (\\?|\\*)",
        zone in select(vec!["UTC", "Europe/London", "Pacific/Apia", "America/Santiago", "Africa/El_Aaiun"]),
        (gap, fold) in policies(),
        after in -10_000_000_000_000_i64..10_000_000_000_000,
        bounds in prop::option::of((0_i64..4_000_000_000, 1_i64..400_000_000)),
    ) {
        let instant = |at| DateTime::from_timestamp(at, 0).expect("in range");
        let bounds = bounds.map(|(from, length)| (instant(from), instant(from + length)));
        let spec = ScheduleSpec {
            cron: vec![text],
            timezone: Some(zone.into()),
            from: bounds.map(|(from, _)| from.to_rfc3339()),
            until: bounds.map(|(_, until)| until.to_rfc3339()),
            gap,
            fold,
            ..Default::default()
        };
        let Ok(schedule) = Schedule::new(&spec) else { return Ok(()) };
        let after = DateTime::from_timestamp_millis(after).expect("in range");
        let mut last: DateTime<Utc> = after;
        for occurrence in schedule.upcoming(after, after).take(200) {
            prop_assert!(occurrence.at > last);
            if let Some((from, until)) = bounds {
                prop_assert!((from..until).contains(&occurrence.at));
            }
            // Asking again from any point gives the same future.
            let again = schedule.upcoming(after, occurrence.at - TimeDelta::milliseconds(1)).next();
            prop_assert_eq!(again, Some(occurrence));
            last = occurrence.at;
        }
    }

    #[test]
    fn no_text_panics(text in "\\PC{0,40}", fields in "[-*/?,LW#0-9@A-Za-z ]{0,30}") {
        for text in [text, fields] {
            let spec = ScheduleSpec {
                cron: vec![text.clone()],
                timezone: Some(text.clone()),
                from: Some(text.clone()),
                at: Some(text.clone()),
                ..Default::default()
            };
            prop_assert!(Schedule::new(&spec).is_err());
            let spec = ScheduleSpec { cron: vec![text], ..Default::default() };
            if let Ok(schedule) = Schedule::new(&spec) {
                let start = DateTime::UNIX_EPOCH;
                let _ = schedule.upcoming(start, start).take(3).count();
                prop_assert_eq!(Schedule::new(&schedule.to_spec()), Ok(schedule));
            }
        }
    }
}

#[test]
fn searches_for_what_never_comes_end_in_every_zone() {
    let zones: Vec<String> =
        TimeZoneDatabase::bundled().available().map(|name| name.to_string()).collect();
    for zone in zones.iter().filter(|name| name.contains('/')) {
        for impossible in
            ["0 0 0 30 2 ?", "* * * 31W 2 ?", "0 0 0 29 2 ? 2100", "* * * ? 2 1#5 2199"]
        {
            let schedule = schedule(vec![impossible.into()], zone, Gap::Skip, Fold::Last);
            for after in
                ["-250000-01-01", "1969-12-01", "2026-01-01", "2199-12-31", "+250000-01-01"]
            {
                let after: DateTime<Utc> = after
                    .parse::<chrono::NaiveDate>()
                    .expect(after)
                    .and_time(Default::default())
                    .and_utc();
                assert_eq!(schedule.upcoming(after, after).next(), None, "{impossible} {zone}");
            }
        }
    }
}

#[test]
fn every_second_of_the_last_year_can_be_reached_and_no_more() {
    for zone in ["UTC", "America/New_York", "Pacific/Kiritimati"] {
        let schedule = schedule(vec!["59 59 23 31 12 ? 2199".into()], zone, Gap::Shift, Fold::Auto);
        let after: DateTime<Utc> = "2026-01-01T00:00:00Z".parse().expect("an instant");
        assert_eq!(schedule.upcoming(after, after).count(), 1, "{zone}");
    }
}
