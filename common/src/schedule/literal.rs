//! The literal reading of a cron expression: which local seconds match, on a calendar without
//! zones.
//!
//! *Invariant: the search is bounded.* It walks year → month → day → time by bit sets: at most 230
//! years of 12 masks, whatever the expression.

use chrono::{Datelike, NaiveDate};

use super::cron::{CronExpr, YEARS};
use super::days::MonthOfYear;

/// Seconds of a civil day.
pub(super) const DAY: i64 = 86_400;

/// Days from the first day of year 1 (chrono counts it as 1) to 1970-01-01.
const EPOCH_DAY: i32 = 719_163;

impl CronExpr {
    /// The first local second that matches and is not before `from`.
    pub(super) fn next_local(&self, from: i64) -> Option<i64> {
        let from = from.max(0);
        let (day, second) = (from.div_euclid(DAY), from.rem_euclid(DAY));
        let date =
            NaiveDate::from_num_days_from_ce_opt(i32::try_from(day).ok()?.checked_add(EPOCH_DAY)?)?;
        if let Some(time) = self.next_time(second as u32)
            && self.matches_day(date)
        {
            return Some(day * DAY + i64::from(time));
        }
        let date = self.next_day(date.succ_opt()?)?;
        let day = i64::from(date.num_days_from_ce() - EPOCH_DAY);
        Some(day * DAY + i64::from(self.next_time(0)?))
    }

    /// The first local second inside `window` that matches.
    pub(super) fn first_in(&self, window: std::ops::Range<i64>) -> Option<i64> {
        if window.is_empty() {
            return None;
        }
        self.next_local(window.start).filter(|local| window.contains(local))
    }

    fn matches_day(&self, date: NaiveDate) -> bool {
        self.has_year(date.year())
            && self.months >> date.month() & 1 == 1
            && MonthOfYear::new(date.year(), date.month())
                .is_some_and(|month| self.days.of(month) >> date.day() & 1 == 1)
    }

    /// The first matching day from `from` on.
    fn next_day(&self, from: NaiveDate) -> Option<NaiveDate> {
        let (mut first_month, mut first_day) = (from.month(), from.day());
        for year in from.year()..=*YEARS.end() {
            if self.has_year(year) {
                for month in first_month..=12 {
                    if self.months >> month & 1 == 1 {
                        let days = self.days.of(MonthOfYear::new(year, month)?);
                        let left = days & (u32::MAX << first_day);
                        if left != 0 {
                            return NaiveDate::from_ymd_opt(year, month, left.trailing_zeros());
                        }
                    }
                    first_day = 1;
                }
            }
            (first_month, first_day) = (1, 1);
        }
        None
    }

    fn has_year(&self, year: i32) -> bool {
        let bit = year - YEARS.start();
        YEARS.contains(&year) && self.years[bit as usize / 64] >> (bit % 64) & 1 == 1
    }

    /// The first matching second of a day, at or after `from` (seconds since midnight).
    fn next_time(&self, from: u32) -> Option<u32> {
        let (hour, minute, second) = (from / 3_600, from / 60 % 60, from % 60);
        let first_minute = self.minutes.trailing_zeros();
        let first_second = self.seconds.trailing_zeros();
        let hours = u64::from(self.hours);
        if hours >> hour & 1 == 1 {
            if self.minutes >> minute & 1 == 1
                && let Some(second) = next_bit(self.seconds, second)
            {
                return Some(hour * 3_600 + minute * 60 + second);
            }
            if let Some(minute) = next_bit(self.minutes, minute + 1) {
                return Some(hour * 3_600 + minute * 60 + first_second);
            }
        }
        let hour = next_bit(hours, hour + 1)?;
        Some(hour * 3_600 + first_minute * 60 + first_second)
    }
}

/// The lowest bit of `set` from bit `from` (below 64) on.
fn next_bit(set: u64, from: u32) -> Option<u32> {
    let left = set & (u64::MAX << from);
    (left != 0).then(|| left.trailing_zeros())
}
