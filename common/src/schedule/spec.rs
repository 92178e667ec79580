//! From what a user writes to a checked schedule, and back.
//!
//! All mistakes are found at once, each with the name of its field, so that one look at a file is
//! enough.

use std::fmt;
use std::time::Duration;

use super::cron::CronExpr;
use super::cron_error::CronError;
use super::moment::{Moment, MomentError};
use super::policy::{Fold, Gap};
use super::zone::{Zone, ZoneError};
use super::{Schedule, Timing};

/// More expressions in a list are refused: each costs a search at every fire.
const MOST_EXPRESSIONS: usize = 100;

/// A longer spread is refused: it would push fires past the window in which they can be recovered.
const LONGEST_SPREAD: Duration = Duration::from_secs(86_400);

/// A schedule as it is written in a job, before it is checked. Exactly one of `cron`,
/// `fixed_rate`, `fixed_delay` and `at` is to be given.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ScheduleSpec {
    /// Expressions, see [`CronExpr::parse`]; empty when not given.
    pub cron: Vec<String>,
    /// The period.
    pub fixed_rate: Option<Duration>,
    /// The pause between runs.
    pub fixed_delay: Option<Duration>,
    /// The one instant, see [`Moment::parse`].
    pub at: Option<String>,
    /// An IANA name; none is UTC.
    pub timezone: Option<String>,
    /// Inclusive.
    pub from: Option<String>,
    /// Exclusive.
    pub until: Option<String>,
    /// Zero by default.
    pub spread: Duration,
    /// `shift` by default.
    pub gap: Gap,
    /// `auto` by default.
    pub fold: Fold,
}

impl Schedule {
    /// Checks `spec`.
    ///
    /// # Errors
    /// All mistakes, at least one. Whether it can fire at all is not asked here, as the answer
    /// changes with time: see [`Schedule::check_can_fire`].
    pub fn new(spec: &ScheduleSpec) -> Result<Schedule, Vec<ScheduleError>> {
        let mut errors = Errors::default();
        let timezone = match &spec.timezone {
            Some(name) => errors.keep("timezone", Zone::parse(name)).unwrap_or_default(),
            None => Zone::UTC,
        };
        let from = errors.moment("from", &spec.from);
        let until = errors.moment("until", &spec.until);
        let timing = errors.timing(spec);
        let from_instant = from.map(|moment| moment.instant_in(&timezone));
        let until_instant = until.map(|moment| moment.instant_in(&timezone));
        if from_instant.is_some_and(|from| until_instant.is_some_and(|until| until <= from)) {
            let until = spec.until.clone().unwrap_or_default();
            errors.add("until", ScheduleErrorReason::UntilBeforeFrom(until));
        }
        if let Some(Timing::At(moment)) = &timing {
            let at = moment.instant_in(&timezone);
            let too_early = from_instant.is_some_and(|from| at < from);
            if too_early || until_instant.is_some_and(|until| at >= until) {
                errors.add("at", ScheduleErrorReason::AtOutside(moment.to_string()));
            }
        }
        if spec.spread > LONGEST_SPREAD || !is_whole_ms(spec.spread) {
            errors.add("spread", ScheduleErrorReason::BadSpread(spec.spread));
        }
        match timing {
            Some(timing) if errors.0.is_empty() => Ok(Schedule {
                timing,
                timezone,
                timezone_given: spec.timezone.is_some(),
                from,
                until,
                from_instant,
                until_instant,
                spread: spec.spread,
                gap: spec.gap,
                fold: spec.fold,
            }),
            _ => Err(errors.0),
        }
    }

    /// The written form, normalised.
    pub fn to_spec(&self) -> ScheduleSpec {
        let text = |moment: &Option<Moment>| moment.map(|moment| moment.to_string());
        let mut spec = ScheduleSpec {
            timezone: self.timezone_given.then(|| self.timezone.to_string()),
            from: text(&self.from),
            until: text(&self.until),
            spread: self.spread,
            gap: self.gap,
            fold: self.fold,
            ..ScheduleSpec::default()
        };
        match &self.timing {
            Timing::Cron(list) => spec.cron = list.iter().map(CronExpr::to_string).collect(),
            Timing::FixedRate(period) => spec.fixed_rate = Some(*period),
            Timing::FixedDelay(pause) => spec.fixed_delay = Some(*pause),
            Timing::At(moment) => spec.at = Some(moment.to_string()),
        }
        spec
    }
}

/// The instants of fires are in milliseconds; what is finer would be lost.
fn is_whole_ms(duration: Duration) -> bool {
    duration.subsec_nanos().is_multiple_of(1_000_000)
}

/// The mistakes found so far.
#[derive(Default)]
struct Errors(Vec<ScheduleError>);

impl Errors {
    fn add(&mut self, field: &'static str, reason: impl Into<ScheduleErrorReason>) {
        self.0.push(ScheduleError { field, index: None, reason: reason.into() });
    }

    fn keep<T, E: Into<ScheduleErrorReason>>(
        &mut self,
        field: &'static str,
        result: Result<T, E>,
    ) -> Option<T> {
        result.map_err(|reason| self.add(field, reason)).ok()
    }

    fn moment(&mut self, field: &'static str, text: &Option<String>) -> Option<Moment> {
        text.as_ref().and_then(|text| self.keep(field, Moment::parse(text)))
    }

    fn timing(&mut self, spec: &ScheduleSpec) -> Option<Timing> {
        let cron = (!spec.cron.is_empty()).then_some(());
        let given = [
            cron,
            spec.fixed_rate.map(drop),
            spec.fixed_delay.map(drop),
            spec.at.as_ref().map(drop),
        ];
        let given = given.into_iter().flatten().count();
        if given != 1 {
            self.add("", ScheduleErrorReason::NotOneTiming(given));
        }
        let cron = self.cron(&spec.cron);
        let rate = self.interval("fixed_rate", spec.fixed_rate).map(Timing::FixedRate);
        let delay = self.interval("fixed_delay", spec.fixed_delay).map(Timing::FixedDelay);
        let at = self.moment("at", &spec.at).map(Timing::At);
        if given == 1 { cron.or(rate).or(delay).or(at) } else { None }
    }

    fn cron(&mut self, list: &[String]) -> Option<Timing> {
        if list.len() > MOST_EXPRESSIONS {
            self.add("cron", ScheduleErrorReason::TooManyExpressions(list.len()));
            return None;
        }
        let mut expressions = Vec::with_capacity(list.len());
        for (at, text) in list.iter().enumerate() {
            match CronExpr::parse(text) {
                Ok(expression) => expressions.push(expression),
                Err(reason) => {
                    self.0.push(ScheduleError::in_list("cron", at, list.len(), reason.into()));
                }
            }
        }
        (!expressions.is_empty()).then(|| Timing::Cron(expressions.into()))
    }

    fn interval(&mut self, field: &'static str, interval: Option<Duration>) -> Option<Duration> {
        let interval = interval?;
        if interval.is_zero() || interval > crate::duration::MAX || !is_whole_ms(interval) {
            self.add(field, ScheduleErrorReason::BadInterval(interval));
        }
        Some(interval)
    }
}

/// A mistake in one field of a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ScheduleError {
    field: &'static str,
    index: Option<usize>,
    reason: ScheduleErrorReason,
}

impl ScheduleError {
    /// A mistake in an item; a list of one is named like a plain value.
    pub(super) fn in_list(
        field: &'static str,
        at: usize,
        length: usize,
        reason: ScheduleErrorReason,
    ) -> ScheduleError {
        ScheduleError { field, index: (length > 1).then_some(at), reason }
    }

    pub(super) fn in_field(field: &'static str, reason: ScheduleErrorReason) -> ScheduleError {
        ScheduleError { field, index: None, reason }
    }

    /// The path inside the schedule: `timezone`, `cron[1]`; empty when it is about all of it.
    pub fn field(&self) -> String {
        match self.index {
            Some(index) => format!("{}[{index}]", self.field),
            None => self.field.to_owned(),
        }
    }

    /// What is wrong; its text says what would be right.
    pub fn reason(&self) -> &ScheduleErrorReason {
        &self.reason
    }
}

impl fmt::Display for ScheduleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.field {
            "" => write!(f, "{}", self.reason),
            _ => write!(f, "{}: {}", self.field(), self.reason),
        }
    }
}

impl std::error::Error for ScheduleError {}

/// The kinds of mistake in a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleErrorReason {
    /// A cron expression.
    #[error(transparent)]
    Cron(#[from] CronError),
    /// A time zone.
    #[error(transparent)]
    Zone(#[from] ZoneError),
    /// `from`, `until` or `at`.
    #[error(transparent)]
    Moment(#[from] MomentError),
    /// None of them, or more than one.
    #[error("needs exactly one of cron, fixed_rate, fixed_delay and at; it has {0}")]
    NotOneTiming(usize),
    /// A list of more than 100.
    #[error("has {0} expressions; write at most 100")]
    TooManyExpressions(usize),
    /// Zero, finer than a millisecond, or longer than 200 years.
    #[error(
        "{} is no interval; write 1ms to 200 years, in whole milliseconds, as in 30s or 1h30m",
        crate::duration::format(*.0)
    )]
    BadInterval(Duration),
    /// Longer than a day, or finer than a millisecond.
    #[error(
        "{} is no spread; write 0s to 24h, in whole milliseconds, as in 30s",
        crate::duration::format(*.0)
    )]
    BadSpread(Duration),
    /// An empty span.
    #[error("{0:?} is not after from, so it would never fire; until is exclusive")]
    UntilBeforeFrom(String),
    /// `at` outside of `from` and `until`.
    #[error("{0:?} is not between from and until, so it would never fire")]
    AtOutside(String),
    /// Nothing left before `until`.
    #[error("{0:?} is too early: there is no fire between now and then")]
    NothingBeforeUntil(String),
    /// All its instants are in gaps, or beyond what a clock can show.
    #[error("can not fire: none of its local times exists in its timezone")]
    NothingLeft,
    /// `at` is past.
    #[error("{0:?} is past; write a moment to come")]
    AtIsPast(String),
}
