//! One field of a cron expression: its range, its names, and its items, checked.
//!
//! A checked field is handed to the `cron` crate to be expanded, in the plain form that the crate
//! gets right. What it lacks (ranges that wrap, Sunday as 0 or 7, years to 2199, steps after a
//! name) is rewritten here before.

use std::fmt;

use super::cron_error::{CronError, CronErrorReason};

/// The fields of a cron expression, in the order of Quartz.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CronField {
    /// 0–59; not in five fields.
    Second,
    /// 0–59.
    Minute,
    /// 0–23.
    Hour,
    /// 1–31.
    DayOfMonth,
    /// 1–12 or JAN–DEC.
    Month,
    /// Quartz: 1–7 or SUN–SAT, 1 is Sunday.
    DayOfWeek,
    /// Unix: 0–7 or SUN–SAT, 0 and 7 are Sunday.
    UnixDayOfWeek,
    /// 1970–2199.
    Year,
}

const MONTHS: [&str; 12] =
    ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: [&str; 7] = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

impl CronField {
    /// Smallest and largest number.
    pub(super) fn range(self) -> (u32, u32) {
        match self {
            CronField::Second | CronField::Minute => (0, 59),
            CronField::Hour => (0, 23),
            CronField::DayOfMonth => (1, 31),
            CronField::Month => (1, 12),
            CronField::DayOfWeek => (1, 7),
            CronField::UnixDayOfWeek => (0, 7),
            CronField::Year => (1970, 2199),
        }
    }

    /// A longer step would leave one value only, and is a mistake: `*/90` minutes.
    pub(super) fn largest_step(self) -> u32 {
        match self {
            CronField::Year => 229,
            other => other.range().1,
        }
    }

    /// The right form, for error messages.
    pub(super) fn form(self) -> &'static str {
        match self {
            CronField::Second | CronField::Minute => "0 to 59, as in 30, 0,30, 10-20 or */5",
            CronField::Hour => "0 to 23, as in 2, 9,18, 22-2 or */6",
            CronField::DayOfMonth => {
                "1 to 31, as in 15, 1,15 or 1-7; with 6 fields also L, LW, L-3 or 15W"
            }
            CronField::Month => "1 to 12 or JAN to DEC, as in 1, JAN,JUL or 4-9",
            CronField::DayOfWeek => {
                "1 to 7 (1 is Sunday) or SUN to SAT, as in MON-FRI; also 6L (the last Friday) or 6#3 \
                 (the third)"
            }
            CronField::UnixDayOfWeek => "0 to 7 (0 and 7 are Sunday) or SUN to SAT, as in MON-FRI",
            CronField::Year => "1970 to 2199, as in 2027, 2026-2030 or 2026/2",
        }
    }

    /// The numbers after which a range that wraps begins again.
    fn cycle(self) -> u32 {
        match self {
            CronField::UnixDayOfWeek => 7,
            other => other.range().1 - other.range().0 + 1,
        }
    }

    fn names(self) -> (&'static [&'static str], u32) {
        match self {
            CronField::Month => (&MONTHS, 1),
            CronField::DayOfWeek => (&WEEKDAYS, 1),
            CronField::UnixDayOfWeek => (&WEEKDAYS, 0),
            _ => (&[], 0),
        }
    }

    /// The items of a list.
    pub(super) fn items(self, text: &str) -> Result<impl Iterator<Item = &str>, CronError> {
        if text.split(',').any(str::is_empty) {
            return Err(CronError::in_field(self, text, CronErrorReason::EmptyItem));
        }
        Ok(text.split(','))
    }

    /// The number that `text` means: digits, or a name of this field in any case.
    pub(super) fn value(self, text: &str) -> Result<u32, CronError> {
        let (names, first) = self.names();
        if let Some(at) = names.iter().position(|name| name.eq_ignore_ascii_case(text)) {
            return Ok(first + at as u32);
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(CronError::in_field(self, text, CronErrorReason::NotAValue));
        }
        let (min, max) = self.range();
        match text.parse() {
            Ok(number) if (min..=max).contains(&number) => Ok(number),
            _ => Err(CronError::in_field(self, text, CronErrorReason::OutOfRange)),
        }
    }
}

impl fmt::Display for CronField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CronField::Second => "second",
            CronField::Minute => "minute",
            CronField::Hour => "hour",
            CronField::DayOfMonth => "day-of-month",
            CronField::Month => "month",
            CronField::DayOfWeek | CronField::UnixDayOfWeek => "day-of-week",
            CronField::Year => "year",
        })
    }
}

/// One item of a field's list: from `first` to `last`, each `step`. `last < first` wraps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    first: u32,
    last: u32,
    step: u32,
    /// A single value, as opposed to a range or a step that happens to hold one.
    single: bool,
}

impl Item {
    /// Reads `*`, `a`, `a-b`, `*/n`, `a/n` or `a-b/n`.
    pub(super) fn parse(field: CronField, text: &str) -> Result<Item, CronError> {
        let fail = |reason| CronError::in_field(field, text, reason);
        if text.contains('?') {
            return Err(fail(CronErrorReason::MisplacedQuestionMark));
        }
        let (body, step) = match text.split_once('/') {
            Some((body, step)) => {
                let good = 1..=field.largest_step();
                let is_number = !step.is_empty() && step.bytes().all(|byte| byte.is_ascii_digit());
                let step = step.parse().ok().filter(|step| is_number && good.contains(step));
                (body, Some(step.ok_or_else(|| fail(CronErrorReason::BadStep))?))
            }
            None => (text, None),
        };
        let (min, max) = field.range();
        let (first, last, single) = if body == "*" {
            (min, max, false)
        } else if let Some((first, last)) = body.split_once('-') {
            (field.value(first)?, field.value(last)?, false)
        } else {
            let value = field.value(body)?;
            (value, if step.is_some() { max } else { value }, step.is_none())
        };
        if field == CronField::Year && last < first {
            return Err(fail(CronErrorReason::RangeBackwards));
        }
        Ok(Item { first, last, step: step.unwrap_or(1), single })
    }

    /// Whether it is a single value: a field of such items only is *fixed*.
    pub(super) fn is_single(&self) -> bool {
        self.single
    }

    /// All values, in the order in which the range runs.
    pub(super) fn values(&self, field: CronField) -> impl Iterator<Item = u32> + use<> {
        let (min, cycle) = (field.range().0, field.cycle());
        let wraps = self.last < self.first;
        let end = if wraps { self.last + cycle } else { self.last };
        (self.first..=end)
            .step_by(self.step as usize)
            .map(move |value| if wraps && value >= min + cycle { value - cycle } else { value })
    }

    /// Writes the item the way the `cron` crate reads it right.
    pub(super) fn write_plain(&self, field: CronField, plain: &mut String) {
        use fmt::Write;
        let Item { first, last, step, single } = *self;
        // Writing into a string can not fail.
        let _ = if single {
            write!(plain, "{first}")
        } else if (first, last, step) == (field.range().0, field.range().1, 1) {
            plain.write_char('*')
        } else if first <= last {
            write!(plain, "{first}-{last}/{step}")
        } else {
            let values: Vec<String> = self.values(field).map(|value| value.to_string()).collect();
            plain.write_str(&values.join(","))
        };
    }
}
