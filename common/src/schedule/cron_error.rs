//! What can be wrong with a cron expression, said so that the user can mend it.

use std::fmt;

use super::cron_field::CronField;

/// Why a text is not a cron expression, or can never fire.
///
/// The text names the field, the value and the right form. Long values are cut.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct CronError {
    pub(super) field: Option<CronField>,
    pub(super) value: String,
    pub(super) reason: CronErrorReason,
}

impl CronError {
    pub(super) fn new(value: &str, reason: CronErrorReason) -> CronError {
        let value = match value.char_indices().nth(60) {
            Some((cut, _)) => format!("{}…", &value[..cut]),
            None => value.to_owned(),
        };
        CronError { field: None, value, reason }
    }

    pub(super) fn in_field(field: CronField, value: &str, reason: CronErrorReason) -> CronError {
        CronError { field: Some(field), ..CronError::new(value, reason) }
    }

    /// The kind of mistake.
    pub fn reason(&self) -> &CronErrorReason {
        &self.reason
    }

    /// The field with the mistake; none when it is about the expression as a whole.
    pub fn field(&self) -> Option<CronField> {
        self.field
    }
}

impl fmt::Display for CronError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = &self.value;
        match self.field {
            Some(field) => write!(f, "{field}: {value:?} {}", Explained(&self.reason, Some(field))),
            None => write!(f, "{value:?} {}", Explained(&self.reason, None)),
        }
    }
}

/// The kinds of mistake in a cron expression.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CronErrorReason {
    /// Nothing in it.
    Empty,
    /// Longer than 512 bytes.
    TooLong,
    /// Not 5, 6 or 7 fields.
    FieldCount(usize),
    /// `@something` that is not known.
    UnknownMacro,
    /// Neither a number nor a name of this field.
    NotAValue,
    /// A number outside of the field's range.
    OutOfRange,
    /// A step that is zero, no number, or beyond the largest value of the field.
    BadStep,
    /// A year range that goes back.
    RangeBackwards,
    /// An item of a list with nothing in it.
    EmptyItem,
    /// `?` outside of the day fields, or in five fields.
    MisplacedQuestionMark,
    /// `L`, `W` or `#` where it has no meaning.
    MisplacedSpecial,
    /// `#` with something else than 1–5.
    BadOrdinal,
    /// Both day fields say something.
    BothDaysRestricted,
    /// `?` in both day fields.
    NoDay,
    /// No such day in any of its months and years.
    NeverFires,
    /// The last instant is in the past.
    InThePast,
}

/// A reason in words, for the field it is about.
struct Explained<'a>(&'a CronErrorReason, Option<CronField>);

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = self.1.map_or("", CronField::form);
        match self.0 {
            CronErrorReason::Empty => f.write_str(
                "is empty; write 5 fields (minute hour day-of-month month day-of-week) or 6 to 7 \
                 (second first, optional year last)",
            ),
            CronErrorReason::TooLong => f.write_str("is longer than 512 characters"),
            CronErrorReason::FieldCount(count) => write!(
                f,
                "has {count} field{}; write 5 (minute hour day-of-month month day-of-week) or 6 to 7 \
                 (second first, optional year last)",
                if *count == 1 { "" } else { "s" }
            ),
            CronErrorReason::UnknownMacro => {
                f.write_str("is not known; write @yearly, @monthly, @weekly, @daily or @hourly")
            }
            CronErrorReason::NotAValue => write!(f, "is not a value; write {form}"),
            CronErrorReason::OutOfRange => write!(f, "is out of range; write {form}"),
            CronErrorReason::BadStep => match self.1 {
                Some(field) => write!(
                    f,
                    "has a bad step; a step is from 1 to {}, as in */2 (for a longer one use \
                     fixed_rate)",
                    field.largest_step()
                ),
                None => f.write_str("has a bad step"),
            },
            CronErrorReason::RangeBackwards => {
                f.write_str("is a range that goes back; years do not wrap, write 2026-2030")
            }
            CronErrorReason::EmptyItem => {
                write!(f, "has an empty place; write {form}, lists with single commas")
            }
            CronErrorReason::MisplacedQuestionMark => f.write_str(
                "is misplaced; ? stands alone in a day field of an expression with 6 or 7 fields, \
                 write *",
            ),
            CronErrorReason::MisplacedSpecial => match self.1 {
                Some(CronField::DayOfMonth) => f.write_str(
                    "is not understood; write L, L-3, LW, L-3W or 15W, in an expression with 6 or 7 \
                     fields",
                ),
                _ => f.write_str(
                    "is not understood; write 6L (the last Friday) or 6#3 (the third Friday), in an \
                     expression with 6 or 7 fields",
                ),
            },
            CronErrorReason::BadOrdinal => {
                f.write_str("is no weekday of a month; write # with 1 to 5, as in 6#3 (the third Friday)")
            }
            CronErrorReason::BothDaysRestricted => f.write_str(
                "restricts both day-of-month and day-of-week; put ? into one of them",
            ),
            CronErrorReason::NoDay => {
                f.write_str("has ? in both day fields; put * into one of them for every day")
            }
            CronErrorReason::NeverFires => f.write_str(
                "can never fire: no such day in any of its months and years (1970 to 2199)",
            ),
            CronErrorReason::InThePast => f.write_str("can not fire any more: its years are past"),
        }
    }
}
