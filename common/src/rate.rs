//! A rate: so many runs of a job may begin in any window of a period, and the beginnings that
//! decides over.
//!
//! *Invariant: no window of the period has more beginnings than the rate says*, by the clocks of
//! those who let runs begin. What is remembered is bounded, whatever the rate: many beginnings stand
//! together in a group, and count until the last of them is a period ago. So at most one group
//! counts for too long, a fiftieth of the rate; none counts for too short.

use std::collections::VecDeque;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::duration;

/// The most runs in a period that can be asked for.
pub const MOST: u32 = 10_000;

/// The longest period.
pub const LONGEST: Duration = Duration::from_secs(86_400);

/// Groups in which the beginnings of a whole period stand.
const GROUPS: u32 = 50;

/// Groups that are remembered, whatever the rate was before.
const MOST_GROUPS: usize = 128;

/// The clocks of two schedulers that fire differ by less, in milliseconds. A beginning that is
/// further ahead was written before a clock was set back.
const SKEW_MS: i64 = 5_000;

/// At most so many runs begin in any window of a period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    most: u32,
    period_ms: i64,
}

/// Why a text is not a rate.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{given:?} is not a rate: {why}; write a number of runs and a period, like 5/s, 100/m, 1000/h, 20/d or 3/10s"
)]
pub struct RateError {
    given: String,
    why: String,
}

impl Rate {
    /// The most runs that may begin in a period.
    pub fn most(self) -> u32 {
        self.most
    }

    /// The period.
    pub fn period(self) -> Duration {
        Duration::from_millis(self.period_ms.unsigned_abs())
    }

    fn group(self) -> u32 {
        self.most.div_ceil(GROUPS)
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Self, RateError> {
        let fail = |why: String| RateError { given: text.chars().take(80).collect(), why };
        let (most, period) = text.split_once('/').ok_or_else(|| fail("there is no '/'".into()))?;
        let digits = !most.is_empty() && most.chars().all(|c| c.is_ascii_digit());
        if !digits {
            return Err(fail("before the '/' stands a whole number".into()));
        }
        let most = most.parse().ok().filter(|most| (1..=MOST).contains(most));
        let most = most.ok_or_else(|| fail(format!("the number is 1 to {MOST}")))?;
        // `m` is `1m`.
        let whole = match period.chars().next() {
            Some(first) if first.is_ascii_alphabetic() => format!("1{period}"),
            _ => period.to_owned(),
        };
        let period = duration::parse(&whole)
            .map_err(|_| fail("behind the '/' stands s, m, h, d or a duration".into()))?;
        if !(Duration::from_secs(1)..=LONGEST).contains(&period) {
            return Err(fail("the period is 1s to 1d".into()));
        }
        Ok(Self { most, period_ms: i64::try_from(period.as_millis()).unwrap_or(i64::MAX) })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = duration::format(self.period());
        let unit = match period.as_str() {
            "1s" | "1m" | "1h" | "1d" => &period[1..],
            other => other,
        };
        write!(f, "{}/{unit}", self.most)
    }
}

/// When runs of a job began lately: for each group the instant of its last, in milliseconds since
/// 1970, and how many; the latest last.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Starts(VecDeque<(i64, u32)>);

impl Starts {
    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// When the next run may begin, not before `now_ms`.
    pub fn next(&self, rate: Rate, now_ms: i64) -> i64 {
        let mut count = 0;
        for (at, some) in self.0.iter().rev() {
            count += some;
            if count >= rate.most {
                let at = if is_ahead(*at, now_ms) { now_ms } else { *at };
                return at.saturating_add(rate.period_ms).max(now_ms);
            }
        }
        now_ms
    }

    /// A run begins at `now_ms`. What is out of the period of `rate` by then is forgotten: a
    /// longer one that the job gets later counts from then.
    pub fn add(&mut self, rate: Rate, now_ms: i64) {
        while self.0.front().is_some_and(|(at, _)| at.saturating_add(rate.period_ms) <= now_ms) {
            self.0.pop_front();
        }
        // Another clock may be a little ahead.
        let now_ms = self.0.back().map_or(now_ms, |(at, _)| now_ms.max(*at));
        match self.0.back_mut() {
            Some((at, count)) if *count < rate.group() => (*at, *count) = (now_ms, *count + 1),
            _ => self.0.push_back((now_ms, 1)),
        }
        while self.0.len() > MOST_GROUPS
            && let Some((_, count)) = self.0.pop_front()
            && let Some(next) = self.0.front_mut()
        {
            next.1 = next.1.saturating_add(count);
        }
    }

    /// Whether a clock was set back since: [`Starts::settle`] is to be called, and kept.
    pub fn are_ahead(&self, now_ms: i64) -> bool {
        self.0.back().is_some_and(|(at, _)| is_ahead(*at, now_ms))
    }

    /// Beginnings that seem to come, because a clock was set back, count from now: so nothing waits
    /// for longer than a period for them, and none is forgotten. True when that changed anything.
    pub fn settle(&mut self, now_ms: i64) -> bool {
        let ahead = self.are_ahead(now_ms);
        for (at, _) in self.0.iter_mut().filter(|(at, _)| is_ahead(*at, now_ms)) {
            *at = now_ms;
        }
        ahead
    }
}

fn is_ahead(at: i64, now_ms: i64) -> bool {
    at > now_ms.saturating_add(SKEW_MS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn what_means_the_same_is_the_same() {
        for (text, written) in [
            ("100/m", "100/m"),
            ("100/60s", "100/m"),
            ("0100/1m", "100/m"),
            ("5/s", "5/s"),
            ("1/24h", "1/d"),
            ("3/10s", "3/10s"),
            ("3/90s", "3/1m30s"),
            ("10000/h", "10000/h"),
        ] {
            assert_eq!(rate(text).to_string(), written);
            assert_eq!(rate(written), rate(text));
        }
        assert_ne!(rate("60/m"), rate("1/s"), "sixty at once, or one each second");
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in [
            "",
            "100",
            "/m",
            "m/100",
            "0/s",
            "-1/s",
            "10001/s",
            "1.5/s",
            "+5/s",
            "5/",
            "5/w",
            "5/500ms",
            "5/2d",
            "5/0s",
            "5 / s",
            "5/m/h",
            "99999999999/s",
            "5/-1s",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn so_many_begin_at_once_and_the_next_when_the_first_is_a_period_ago() {
        let (rate, mut starts) = (rate("3/s"), Starts::default());
        for at in [0, 100, 200] {
            assert_eq!(starts.next(rate, at), at);
            starts.add(rate, at);
        }
        assert_eq!(starts.next(rate, 300), 1_000);
        starts.add(rate, 1_000);
        assert_eq!(starts.next(rate, 1_000), 1_100);
        assert_eq!(starts.next(rate, 5_000), 5_000);
        let text = serde_json::to_string(&starts).unwrap();
        assert_eq!(text, "[[100,1],[200,1],[1000,1]]");
    }

    #[test]
    fn a_clock_that_is_set_back_makes_nothing_wait_for_longer_than_a_period() {
        let (rate, mut starts) = (rate("2/m"), Starts::default());
        starts.add(rate, 3_600_000);
        starts.add(rate, 3_600_000);
        assert!(starts.are_ahead(1_000) && starts.settle(1_000) && !starts.settle(1_000));
        assert_eq!(starts.next(rate, 2_000), 61_000);
        starts.add(rate, 61_000);
        assert!(!starts.are_ahead(58_000), "another scheduler's clock is a little behind");
        starts.add(rate, 60_500);
        assert_eq!(starts.next(rate, 61_000), 121_000);
    }

    proptest! {
        /// Whoever asks whenever: never more than the rate in any window, and not much less.
        #[test]
        fn no_window_of_the_period_ever_has_more(
            most in 1_u32..400,
            waits in prop::collection::vec(prop_oneof![0_i64..3, 0_i64..200, 0_i64..3_000], 1..1_500),
        ) {
            let rate = Rate { most, period_ms: 1_000 };
            let (mut starts, mut begun, mut now) = (Starts::default(), Vec::new(), 0);
            for wait in waits {
                now += wait;
                let in_window = begun.iter().rev().take_while(|at| now - **at < 1_000).count();
                let next = starts.next(rate, now);
                if next <= now {
                    starts.add(rate, now);
                    begun.push(now);
                    prop_assert!(in_window < most as usize, "{in_window} of {most}");
                } else {
                    let group = most.div_ceil(GROUPS) as usize;
                    prop_assert!(in_window + group > most as usize, "{in_window} of {most}");
                    prop_assert!(next <= now + 1_000);
                    prop_assert_eq!(starts.next(rate, next), next, "then it may");
                }
                prop_assert!(starts.0.len() <= MOST_GROUPS);
            }
        }

        /// Also when the rate changes all the time: never more than the present one allows, of what
        /// began in the period that held before, and since.
        #[test]
        fn a_changed_rate_holds_from_now_on(
            steps in prop::collection::vec((1_u32..300, 1_i64..4, 0_i64..300), 1..800)
        ) {
            let (mut starts, mut begun, mut now) = (Starts::default(), Vec::new(), 0);
            for (most, seconds, wait) in steps {
                now += wait;
                let rate = Rate { most, period_ms: seconds * 1_000 };
                if starts.next(rate, now) <= now {
                    let in_window = begun.iter().filter(|at| now - **at < rate.period_ms).count();
                    prop_assert!(in_window < most as usize);
                    begun.retain(|at| now - *at < rate.period_ms);
                    starts.add(rate, now);
                    begun.push(now);
                }
                prop_assert!(starts.0.len() <= MOST_GROUPS);
            }
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = text.parse::<Rate>();
        }
    }
}
