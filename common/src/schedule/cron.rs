//! Cron expressions, in the Unix form (5 fields) and the Quartz form (6 or 7).
//!
//! An expression is compiled to bit sets, about 150 bytes with its text, so that a million of them
//! fit in memory. It says which *local* times match; what becomes of them in a time zone is decided
//! in `seam`.

use std::fmt;
use std::str::FromStr;

use cron::TimeUnitSpec;

use super::cron_error::{CronError, CronErrorReason};
use super::cron_field::{CronField, Item};
use super::days::Days;

/// An expression of more bytes is refused.
const LONGEST: usize = 512;

/// First and last year that an expression can name.
pub(super) const YEARS: std::ops::RangeInclusive<i32> = 1970..=2199;

/// A cron expression. Two are equal when they mean the same: `@daily` and `0 0 * * *`.
#[derive(Clone)]
pub struct CronExpr {
    /// As the user wrote it: single spaces, upper case, macros in lower case.
    text: Box<str>,
    pub(super) seconds: u64,
    pub(super) minutes: u64,
    pub(super) hours: u32,
    /// Bits 1 to 12.
    pub(super) months: u16,
    pub(super) days: Days,
    /// Bit *y − 1970*.
    pub(super) years: [u64; 4],
    fixed: bool,
}

impl CronExpr {
    /// Reads an expression.
    ///
    /// - 5 fields: `minute hour day-of-month month day-of-week`, day of week 0–7, 0 and 7 are Sunday.
    /// - 6 or 7 fields: `second minute hour day-of-month month day-of-week [year]`, day of week 1–7,
    ///   1 is Sunday; `?`, `L`, `LW`, `L-n`, `L-nW`, `nW`, `nL` and `n#k` as in Quartz, in lists too.
    /// - `@yearly @monthly @weekly @daily @hourly`.
    ///
    /// Names in any case, lists, steps, ranges that wrap (`22-2`, `FRI-MON`), `a/n` = from a on.
    ///
    /// # Errors
    /// The field, the value and the right form. An expression that is well formed but can never
    /// fire is no error here: see [`CronExpr::never_fires`].
    pub fn parse(text: &str) -> Result<CronExpr, CronError> {
        if text.len() > LONGEST {
            return Err(CronError::new(text, CronErrorReason::TooLong));
        }
        let given = text.trim();
        if given.starts_with('@') {
            let name = given.to_ascii_lowercase();
            let fields = expand_macro(&name)
                .ok_or_else(|| CronError::new(given, CronErrorReason::UnknownMacro))?;
            return Ok(CronExpr { text: name.into(), ..CronExpr::parse(fields)? });
        }
        let upper = given.to_ascii_uppercase();
        let fields: Vec<&str> = upper.split_whitespace().collect();
        let compiled = match fields[..] {
            [minute, hour, of_month, month, of_week] => {
                let times = Times::parse("0", minute, hour, month)?;
                CronExpr::new(&fields, times, Days::unix(of_month, of_week)?, ALL_YEARS)
            }
            [second, minute, hour, of_month, month, of_week] => {
                let times = Times::parse(second, minute, hour, month)?;
                CronExpr::new(&fields, times, Days::quartz(given, of_month, of_week)?, ALL_YEARS)
            }
            [second, minute, hour, of_month, month, of_week, years] => {
                let times = Times::parse(second, minute, hour, month)?;
                let days = Days::quartz(given, of_month, of_week)?;
                CronExpr::new(&fields, times, days, parse_years(years)?)
            }
            [] => return Err(CronError::new(text, CronErrorReason::Empty)),
            _ => return Err(CronError::new(given, CronErrorReason::FieldCount(fields.len()))),
        };
        Ok(compiled)
    }

    fn new(fields: &[&str], times: Times, days: Days, years: [u64; 4]) -> CronExpr {
        let Times { seconds, minutes, hours, months, fixed } = times;
        CronExpr {
            text: fields.join(" ").into(),
            seconds,
            minutes,
            hours,
            months,
            days,
            years,
            fixed,
        }
    }

    /// Whether seconds, minutes and hours are single values or lists: a *fixed* time. Else it
    /// *repeats*, and behaves differently where clocks change.
    pub fn is_fixed(&self) -> bool {
        self.fixed
    }

    /// Whether no day of 1970 to 2199 matches, such as `0 0 0 30 2 ?`.
    pub fn never_fires(&self) -> bool {
        self.next_local(i64::MIN).is_none()
    }

    /// The expression as it was written, in normal form.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What makes it equal to another.
    fn meaning(&self) -> impl PartialEq + '_ {
        let times = (self.seconds, self.minutes, self.hours, self.fixed);
        (times, self.months, &self.days, self.years)
    }
}

impl PartialEq for CronExpr {
    fn eq(&self, other: &CronExpr) -> bool {
        self.meaning() == other.meaning()
    }
}

impl Eq for CronExpr {}

impl FromStr for CronExpr {
    type Err = CronError;

    fn from_str(text: &str) -> Result<CronExpr, CronError> {
        CronExpr::parse(text)
    }
}

impl fmt::Display for CronExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for CronExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CronExpr({})", self.text)
    }
}

/// The expression that a macro stands for; its name in lower case.
fn expand_macro(name: &str) -> Option<&'static str> {
    Some(match name {
        "@yearly" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ => return None,
    })
}

/// The fields that are no days and no years.
struct Times {
    seconds: u64,
    minutes: u64,
    hours: u32,
    months: u16,
    fixed: bool,
}

impl Times {
    fn parse(second: &str, minute: &str, hour: &str, month: &str) -> Result<Times, CronError> {
        // Sets come from the `cron` crate; days and years, where it differs from Quartz, do not.
        let mut plain = String::with_capacity(64);
        let mut fixed = true;
        for (field, text) in
            [(CronField::Second, second), (CronField::Minute, minute), (CronField::Hour, hour)]
        {
            fixed &= write_plain(field, text, &mut plain)?;
        }
        plain.push_str("* ");
        write_plain(CronField::Month, month, &mut plain)?;
        plain.push('*');
        // Every field was checked, so this can not happen; but it is no reason to panic.
        let sets = cron::Schedule::from_str(&plain)
            .map_err(|_| CronError::new(&plain, CronErrorReason::NotAValue))?;
        Ok(Times {
            seconds: set(sets.seconds()),
            minutes: set(sets.minutes()),
            hours: set(sets.hours()) as u32,
            months: set(sets.months()) as u16,
            fixed,
        })
    }
}

/// The bit set of a field that the `cron` crate has read.
fn set(field: &impl TimeUnitSpec) -> u64 {
    field.iter().fold(0, |bits, value| bits | 1 << value)
}

/// Checks a field and writes it as the `cron` crate reads it; tells whether it holds single values
/// only.
fn write_plain(field: CronField, text: &str, plain: &mut String) -> Result<bool, CronError> {
    let mut fixed = true;
    for (at, item) in field.items(text)?.enumerate() {
        if at > 0 {
            plain.push(',');
        }
        let item = Item::parse(field, item)?;
        fixed &= item.is_single();
        item.write_plain(field, plain);
    }
    plain.push(' ');
    Ok(fixed)
}

const ALL_YEARS: [u64; 4] = [u64::MAX, u64::MAX, u64::MAX, u64::MAX >> (256 - 230)];

/// The `cron` crate ends in 2100, so years are expanded here.
fn parse_years(text: &str) -> Result<[u64; 4], CronError> {
    let mut years = [0; 4];
    for item in CronField::Year.items(text)? {
        let item = Item::parse(CronField::Year, item)?;
        for year in item.values(CronField::Year) {
            let bit = (year - 1970) as usize;
            years[bit / 64] |= 1 << (bit % 64);
        }
    }
    Ok(years)
}
