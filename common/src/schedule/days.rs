//! The days of a month that a cron expression means: both day fields, compiled to bit sets.
//!
//! A month is answered as a whole, as a mask with bit *d* for day *d*, by shifting and masking.
//! *Invariant: no loop over days.* That is what bounds the search for an expression that never
//! fires.

use chrono::{Datelike, NaiveDate};

use super::cron_error::{CronError, CronErrorReason};
use super::cron_field::{CronField, Item};

/// Bits 1 to 31.
const ALL_DAYS: u32 = 0xffff_fffe;
/// Bits 0 to 6, 0 is Sunday.
const ALL_WEEKDAYS: u8 = 0x7f;
/// Days 1, 8, 15, 22 and 29.
const EVERY_SEVENTH: u32 = 1 << 1 | 1 << 8 | 1 << 15 | 1 << 22 | 1 << 29;

/// How the two day fields go together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Join {
    And,
    Or,
}

/// Both day fields.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Days {
    /// Plain days of the month, bit *d*.
    plain: u32,
    /// `nW`: the weekday nearest to day *n*.
    nearest: u32,
    /// `L-n`: *n* days before the last; bit 0 is `L`.
    before_last: u32,
    /// `L-nW`: the weekday nearest to that.
    nearest_before_last: u32,
    /// Plain weekdays, bit 0 is Sunday.
    weekdays: u8,
    /// `6L`: the last such weekday of the month.
    last_weekdays: u8,
    /// `6#3`: bit `7 × (3 − 1) + weekday`.
    nth_weekdays: u64,
    join: Join,
}

/// A month of a year.
#[derive(Debug, Clone, Copy)]
pub(super) struct MonthOfYear {
    /// 28 to 31.
    length: u32,
    /// The weekday of the first, 0 is Sunday.
    first_weekday: u32,
}

impl MonthOfYear {
    pub(super) fn new(year: i32, month: u32) -> Option<MonthOfYear> {
        let first = NaiveDate::from_ymd_opt(year, month, 1)?;
        let length = u32::from(first.num_days_in_month());
        Some(MonthOfYear { length, first_weekday: first.weekday().num_days_from_sunday() })
    }

    /// Mask of all its days.
    fn days(self) -> u32 {
        ALL_DAYS & (u32::MAX >> (31 - self.length))
    }

    /// Mask of all its days that are `weekday`.
    fn days_on(self, weekday: u32) -> u32 {
        (EVERY_SEVENTH << ((weekday + 7 - self.first_weekday) % 7)) & self.days()
    }

    /// The day from Monday to Friday that is nearest to `day`, without leaving the month.
    fn nearest_weekday(self, day: u32) -> u32 {
        match (self.first_weekday + day - 1) % 7 {
            6 if day == 1 => 3,
            6 => day - 1,
            0 if day == self.length => day - 2,
            0 => day + 1,
            _ => day,
        }
    }
}

impl Days {
    /// The two day fields of a Quartz expression, in upper case.
    pub(super) fn quartz(
        expression: &str,
        of_month: &str,
        of_week: &str,
    ) -> Result<Days, CronError> {
        let restricts = |text: &str| text != "*" && text != "?";
        if of_month == "?" && of_week == "?" {
            return Err(CronError::new(expression, CronErrorReason::NoDay));
        }
        let mut days = Days::none(Join::And);
        if restricts(of_month) {
            CronField::DayOfMonth
                .items(of_month)?
                .try_for_each(|item| days.add_day_of_month(item))?;
        } else {
            days.plain = ALL_DAYS;
        }
        if restricts(of_week) {
            CronField::DayOfWeek.items(of_week)?.try_for_each(|item| days.add_day_of_week(item))?;
        } else {
            days.weekdays = ALL_WEEKDAYS;
        }
        if restricts(of_month) && restricts(of_week) {
            return Err(CronError::new(expression, CronErrorReason::BothDaysRestricted));
        }
        Ok(days)
    }

    /// The two day fields of a Unix expression, in upper case.
    pub(super) fn unix(of_month: &str, of_week: &str) -> Result<Days, CronError> {
        let starred = of_month.starts_with('*') || of_week.starts_with('*');
        let mut days = Days::none(if starred { Join::And } else { Join::Or });
        for text in CronField::DayOfMonth.items(of_month)? {
            if looks_special(text) {
                return Err(misplaced(CronField::DayOfMonth, text));
            }
            days.add_plain_days(text)?;
        }
        for text in CronField::UnixDayOfWeek.items(of_week)? {
            if text.ends_with('L') || text.contains('#') {
                return Err(misplaced(CronField::UnixDayOfWeek, text));
            }
            days.add_weekdays(CronField::UnixDayOfWeek, text)?;
        }
        days.settle();
        Ok(days)
    }

    fn none(join: Join) -> Days {
        Days {
            plain: 0,
            nearest: 0,
            before_last: 0,
            nearest_before_last: 0,
            weekdays: 0,
            last_weekdays: 0,
            nth_weekdays: 0,
            join,
        }
    }

    /// Under OR, a field that holds every day makes every day; two expressions that mean the same
    /// must be equal.
    fn settle(&mut self) {
        if self.join == Join::Or && (self.plain == ALL_DAYS || self.weekdays == ALL_WEEKDAYS) {
            (self.plain, self.weekdays, self.join) = (ALL_DAYS, ALL_WEEKDAYS, Join::And);
        }
    }

    /// An item of a Quartz day-of-month field.
    fn add_day_of_month(&mut self, text: &str) -> Result<(), CronError> {
        let field = CronField::DayOfMonth;
        let (body, nearest) = match text.strip_suffix('W') {
            Some(body) => (body, true),
            None => (text, false),
        };
        if let Some(tail) = body.strip_prefix('L') {
            let before = match tail.strip_prefix('-') {
                _ if tail.is_empty() => 0,
                Some("0") => 0,
                // The last day is the 31st at most, so 30 days before it is the first.
                Some(number) => field
                    .value(number)
                    .ok()
                    .filter(|&n| n <= 30)
                    .ok_or_else(|| misplaced(field, text))?,
                None => return Err(misplaced(field, text)),
            };
            let set = if nearest { &mut self.nearest_before_last } else { &mut self.before_last };
            *set |= 1 << before;
            Ok(())
        } else if nearest {
            let day = match body.bytes().all(|byte| byte.is_ascii_digit()) && !body.is_empty() {
                true => field.value(body)?,
                false => return Err(misplaced(field, text)),
            };
            self.nearest |= 1 << day;
            Ok(())
        } else if looks_special(text) {
            Err(misplaced(field, text))
        } else {
            self.add_plain_days(text)
        }
    }

    fn add_plain_days(&mut self, text: &str) -> Result<(), CronError> {
        let item = Item::parse(CronField::DayOfMonth, text)?;
        self.plain |= item.values(CronField::DayOfMonth).fold(0, |bits, day| bits | 1 << day);
        Ok(())
    }

    /// An item of a Quartz day-of-week field. A lone `L` is Saturday, as in Quartz.
    fn add_day_of_week(&mut self, text: &str) -> Result<(), CronError> {
        let field = CronField::DayOfWeek;
        if text == "L" {
            self.weekdays |= 1 << 6;
        } else if let Some(weekday) = text.strip_suffix('L') {
            let weekday = field.value(weekday).map_err(|_| misplaced(field, text))?;
            self.last_weekdays |= 1 << (weekday - 1);
        } else if let Some((weekday, nth)) = text.split_once('#') {
            let weekday = field.value(weekday)?;
            let nth = match nth.as_bytes() {
                [digit @ b'1'..=b'5'] => u32::from(digit - b'0'),
                _ => return Err(CronError::in_field(field, text, CronErrorReason::BadOrdinal)),
            };
            self.nth_weekdays |= 1 << (7 * (nth - 1) + weekday - 1);
        } else {
            self.add_weekdays(field, text)?;
        }
        Ok(())
    }

    fn add_weekdays(&mut self, field: CronField, text: &str) -> Result<(), CronError> {
        let item = Item::parse(field, text)?;
        // Quartz counts from 1, Unix from 0, and its 7 is Sunday again.
        let sunday = if field == CronField::DayOfWeek { 1 } else { 0 };
        for value in item.values(field) {
            self.weekdays |= 1 << ((value - sunday) % 7);
        }
        Ok(())
    }

    /// The days of `month`, bit *d* for day *d*.
    pub(super) fn of(&self, month: MonthOfYear) -> u32 {
        let of_month = self.days_of_month(month);
        let of_week = self.days_of_week(month);
        match self.join {
            Join::And => of_month & of_week,
            Join::Or => of_month | of_week,
        }
    }

    fn days_of_month(&self, month: MonthOfYear) -> u32 {
        let mut days = self.plain & month.days();
        for day in bits(self.nearest & month.days()) {
            days |= 1 << month.nearest_weekday(day);
        }
        for before in bits(self.before_last).filter(|&before| before < month.length) {
            days |= 1 << (month.length - before);
        }
        for before in bits(self.nearest_before_last).filter(|&before| before < month.length) {
            days |= 1 << month.nearest_weekday(month.length - before);
        }
        days
    }

    fn days_of_week(&self, month: MonthOfYear) -> u32 {
        if self.weekdays == ALL_WEEKDAYS {
            return month.days();
        }
        let mut days = bits(u32::from(self.weekdays)).fold(0, |days, on| days | month.days_on(on));
        for weekday in bits(u32::from(self.last_weekdays)) {
            days |= 1 << (31 - month.days_on(weekday).leading_zeros());
        }
        if self.nth_weekdays != 0 {
            for nth in 0..5 {
                // The nth week of days is 7·nth + 1 to 7·nth + 7.
                let week = (0x7f_u32 << 1).checked_shl(7 * nth).unwrap_or(0);
                for weekday in bits((self.nth_weekdays >> (7 * nth)) as u32 & 0x7f) {
                    days |= month.days_on(weekday) & week;
                }
            }
        }
        days
    }
}

fn misplaced(field: CronField, text: &str) -> CronError {
    CronError::in_field(field, text, CronErrorReason::MisplacedSpecial)
}

/// Whether it tries to be one of Quartz's special days of the month.
fn looks_special(text: &str) -> bool {
    text.contains(['L', 'W', '#'])
        && text.trim_matches(|c: char| c.is_ascii_digit() || "LW#-".contains(c)).is_empty()
}

/// The numbers of the bits that are set, ascending.
fn bits(mut set: u32) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (set != 0).then(|| set.trailing_zeros())?;
        set &= set - 1;
        Some(bit)
    })
}
