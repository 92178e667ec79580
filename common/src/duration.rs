//! Durations as users write them: `300ms`, `30s`, `5m`, `1.5h`, `1h30m`, `7d`.
//!
//! Exact to the millisecond or refused: a bare number, a sign, a fraction below a millisecond
//! and an overflow are errors, never a guess.

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not a duration: {why}; write it like 300ms, 30s, 5m, 1.5h, 1h30m or 7d")]
pub struct DurationError {
    given: String,
    why: &'static str,
}

/// The longest duration: 200 years. What is longer is a slip of the pen, and would overflow
/// instants.
pub const MAX: Duration = Duration::from_secs(200 * 366 * 86_400);

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads a duration: one or more of number and unit (`ms s m h d`), largest first, each unit at
/// most once, without spaces.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let fail = |why| DurationError { given: text.chars().take(80).collect(), why };
    if text.is_empty() {
        return Err(fail("it is empty"));
    }
    let mut rest = text;
    let mut total: u64 = 0;
    let mut smaller_than = u64::MAX;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        let letters = tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(letters);
        if number.is_empty() {
            return Err(fail("a number is missing"));
        }
        if unit.is_empty() {
            return Err(fail("a unit is missing"));
        }
        let Some(&(_, unit_ms)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(fail("the units are ms, s, m, h and d"));
        };
        if unit_ms >= smaller_than {
            return Err(fail("the units go from large to small, each once"));
        }
        smaller_than = unit_ms;
        let ms = number_of(number, unit_ms).map_err(fail)?;
        total = total.checked_add(ms).ok_or(fail("it is too long"))?;
        rest = tail;
    }
    let duration = Duration::from_millis(total);
    if duration > MAX { Err(fail("it is longer than 200 years")) } else { Ok(duration) }
}

/// `number` × `unit_ms`, exactly, in milliseconds.
fn number_of(number: &str, unit_ms: u64) -> Result<u64, &'static str> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() || number.ends_with('.') || fraction.contains('.') {
        return Err("the number is malformed");
    }
    let too_long = "it is too long";
    let whole: u64 = whole.parse().map_err(|_| too_long)?;
    let mut ms = whole.checked_mul(unit_ms).ok_or(too_long)?;
    if !fraction.is_empty() {
        if fraction.len() > 9 {
            return Err("it is finer than a millisecond");
        }
        let scale = 10_u64.pow(fraction.len() as u32);
        let parts: u64 = fraction.parse().map_err(|_| "the number is malformed")?;
        let scaled = parts.checked_mul(unit_ms).ok_or(too_long)?;
        if scaled % scale != 0 {
            return Err("it is finer than a millisecond");
        }
        ms = ms.checked_add(scaled / scale).ok_or(too_long)?;
    }
    Ok(ms)
}

/// The shortest text that [`parse`] reads back as `duration`; what is below a millisecond is
/// left out.
pub fn format(duration: Duration) -> String {
    let mut ms = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if ms == 0 {
        return "0s".into();
    }
    let mut text = String::new();
    for (unit, unit_ms) in UNITS.iter().rev() {
        let count = ms / unit_ms;
        if count > 0 {
            text.push_str(&format!("{count}{unit}"));
            ms %= unit_ms;
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_exact() {
        for (text, ms) in [
            ("300ms", 300),
            ("30s", 30_000),
            ("42m30s", 2_550_000),
            ("1.5h", 5_400_000),
            ("1h30m", 5_400_000),
            ("7d", 604_800_000),
            ("0s", 0),
            ("0.001s", 1),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(ms)), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_duration_is_refused() {
        for text in [
            "",
            "42",
            "-30s",
            "1e9h",
            "s",
            "1.s",
            ".5s",
            "1 h",
            "1m1h",
            "1s1s",
            "1.0001s",
            "1w",
            "99999999999d",
            "9d9",
            "1..5s",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(ms in 0_u64..6_000_000_000_000) {
            let duration = Duration::from_millis(ms);
            prop_assert_eq!(parse(&format(duration)), Ok(duration));
        }

        #[test]
        fn no_text_panics(text in "\\PC*") {
            let _ = parse(&text);
        }
    }
}
