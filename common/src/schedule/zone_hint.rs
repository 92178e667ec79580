//! What a user may have meant by something that is not the name of a zone.
//!
//! Only for error messages: nothing here ever chooses a zone for anybody.

use super::zone::{ZoneErrorReason, all_names};

/// Abbreviations that users write, with zones that use them. Some (`EST`, `CET`) are also names in
/// the tz database, for old systems: as such they surprise (`EST` has no summer time).
const ABBREVIATIONS: &[(&str, &[&str])] = &[
    ("ACST", &["Australia/Adelaide"]),
    ("AEDT", &["Australia/Sydney"]),
    ("AEST", &["Australia/Sydney", "Australia/Brisbane"]),
    ("AKST", &["America/Anchorage"]),
    ("AST", &["America/Halifax", "Asia/Riyadh"]),
    ("AWST", &["Australia/Perth"]),
    ("BRT", &["America/Sao_Paulo"]),
    ("BST", &["Europe/London", "Asia/Dhaka"]),
    ("CDT", &["America/Chicago", "America/Havana"]),
    ("CEST", &["Europe/Berlin", "Europe/Paris"]),
    ("CET", &["Europe/Berlin", "Europe/Paris"]),
    ("CST", &["Asia/Shanghai", "America/Chicago", "America/Havana"]),
    ("CST6CDT", &["America/Chicago"]),
    ("CTT", &["Asia/Shanghai"]),
    ("EDT", &["America/New_York"]),
    ("EEST", &["Europe/Athens", "Europe/Helsinki"]),
    ("EET", &["Europe/Athens", "Europe/Helsinki"]),
    ("EST", &["America/New_York", "America/Panama"]),
    ("EST5EDT", &["America/New_York"]),
    ("HKT", &["Asia/Hong_Kong"]),
    ("HST", &["Pacific/Honolulu"]),
    ("IST", &["Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"]),
    ("JST", &["Asia/Tokyo"]),
    ("KST", &["Asia/Seoul"]),
    ("MDT", &["America/Denver"]),
    ("MET", &["Europe/Brussels"]),
    ("MSK", &["Europe/Moscow"]),
    ("MST", &["America/Denver", "America/Phoenix"]),
    ("MST7MDT", &["America/Denver"]),
    ("NZDT", &["Pacific/Auckland"]),
    ("NZST", &["Pacific/Auckland"]),
    ("PDT", &["America/Los_Angeles"]),
    ("PHT", &["Asia/Manila"]),
    ("PST", &["America/Los_Angeles", "Asia/Manila"]),
    ("PST8PDT", &["America/Los_Angeles"]),
    ("SGT", &["Asia/Singapore"]),
    ("WEST", &["Europe/Lisbon"]),
    ("WET", &["Europe/Lisbon"]),
    ("WIB", &["Asia/Jakarta"]),
];

/// Cities that people look for and that the tz database files under another one.
const CITIES: &[(&str, &str)] = &[
    ("bangalore", "Asia/Kolkata"),
    ("beijing", "Asia/Shanghai"),
    ("boston", "America/New_York"),
    ("chengdu", "Asia/Shanghai"),
    ("china", "Asia/Shanghai"),
    ("delhi", "Asia/Kolkata"),
    ("frankfurt", "Europe/Berlin"),
    ("guangzhou", "Asia/Shanghai"),
    ("hangzhou", "Asia/Shanghai"),
    ("hanoi", "Asia/Ho_Chi_Minh"),
    ("houston", "America/Chicago"),
    ("india", "Asia/Kolkata"),
    ("milan", "Europe/Rome"),
    ("mumbai", "Asia/Kolkata"),
    ("munich", "Europe/Berlin"),
    ("osaka", "Asia/Tokyo"),
    ("peking", "Asia/Shanghai"),
    ("san_francisco", "America/Los_Angeles"),
    ("seattle", "America/Los_Angeles"),
    ("shenzhen", "Asia/Shanghai"),
    ("washington", "America/New_York"),
    ("wuhan", "Asia/Shanghai"),
];

/// At most this many names are proposed.
const MOST: usize = 3;

/// Whether `name` is an abbreviation that this module knows, in any case.
pub(super) fn is_abbreviation(name: &str) -> bool {
    zones_of_abbreviation(name).is_some()
}

fn zones_of_abbreviation(name: &str) -> Option<&'static [&'static str]> {
    ABBREVIATIONS
        .iter()
        .find(|(short, _)| short.eq_ignore_ascii_case(name))
        .map(|(_, zones)| *zones)
}

/// Whether `name` is an offset: `UTC+8`, `GMT-03:00`, `+0800`. (`GMT+0` and `GMT-0` are links of
/// the tz database, and mean UTC.)
pub(super) fn is_offset(name: &str) -> bool {
    let is_link = ["GMT+0", "GMT-0"].iter().any(|link| link.eq_ignore_ascii_case(name));
    !is_link && offset_part(name).is_some()
}

/// The signed part of an offset.
fn offset_part(name: &str) -> Option<&str> {
    let tail = match name.get(..3) {
        Some(head) if ["utc", "gmt"].contains(&head.to_ascii_lowercase().as_str()) => &name[3..],
        _ => name,
    };
    let digits = tail.strip_prefix(['+', '-'])?;
    let only_digits = digits.chars().all(|c| c.is_ascii_digit() || c == ':');
    (only_digits && !digits.is_empty()).then_some(tail)
}

/// Names that may have been meant by `given`, at most three, the likeliest first.
pub(super) fn near_names(given: &str, reason: ZoneErrorReason) -> Vec<String> {
    match reason {
        ZoneErrorReason::Abbreviation => zones_of_abbreviation(given)
            .into_iter()
            .flatten()
            .map(|&name| name.to_owned())
            .collect(),
        ZoneErrorReason::Offset => zones_of_offset(given),
        ZoneErrorReason::Unknown => similar_names(given),
    }
}

/// `UTC+8` is `Etc/GMT-8`: the tz database counts hours *west* of Greenwich.
fn zones_of_offset(given: &str) -> Vec<String> {
    let Some(part) = offset_part(given) else { return Vec::new() };
    let (sign, digits) = part.split_at(1);
    let hours = match digits.split_once(':') {
        Some((hours, "00")) => hours,
        Some(_) => return Vec::new(),
        None if digits.len() == 4 && digits.ends_with("00") => &digits[..2],
        None => digits,
    };
    let Ok(hours) = hours.parse::<u8>() else { return Vec::new() };
    let city = match (sign, hours) {
        ("+", 8) => Some("Asia/Shanghai"),
        ("+", 9) => Some("Asia/Tokyo"),
        ("+", 1) => Some("Europe/Berlin"),
        ("-", 5) => Some("America/New_York"),
        ("-", 8) => Some("America/Los_Angeles"),
        _ => None,
    };
    let fixed = match (sign, hours) {
        (_, 0) => Some("UTC".to_owned()),
        ("+", 1..=14) => Some(format!("Etc/GMT-{hours}")),
        ("-", 1..=12) => Some(format!("Etc/GMT+{hours}")),
        _ => None,
    };
    city.map(str::to_owned).into_iter().chain(fixed).collect()
}

/// Names with nearly the same letters, as a whole or in the city.
fn similar_names(given: &str) -> Vec<String> {
    // Longer than any name by far: not a slip of the pen, and not worth comparing.
    if given.chars().count() > 64 {
        return Vec::new();
    }
    let given = given.trim().to_ascii_lowercase().replace(' ', "_");
    let given_city = given.rsplit('/').next().unwrap_or(&given);
    if given_city.is_empty() {
        return Vec::new();
    }
    let mut scored: Vec<(f64, &str)> = all_names()
        .map(|name| {
            let lower = name.to_ascii_lowercase();
            let city = lower.rsplit('/').next().unwrap_or(&lower);
            let whole = strsim::normalized_damerau_levenshtein(&given, &lower);
            // A right city under a wrong continent is nearer than a wrong city under the right one.
            let by_city = strsim::normalized_damerau_levenshtein(given_city, city) * 0.98;
            (whole.max(by_city), name)
        })
        .filter(|(score, _)| *score >= 0.75)
        .collect();
    scored.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    let best = scored.first().map_or(0.0, |(score, _)| *score);
    scored.retain(|(score, _)| *score > best - 0.12);
    let known = CITIES.iter().find(|(city, _)| *city == given_city).map(|(_, zone)| *zone);
    let mut names: Vec<String> = known.into_iter().map(str::to_owned).collect();
    for (_, name) in scored {
        if names.len() < MOST && names.iter().all(|have| have != name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// The end of the error message: the names, or where to find them.
pub(super) fn sentence(near: &[String]) -> String {
    match near {
        [] => "; write a name like Asia/Shanghai or Europe/Berlin, or UTC".to_owned(),
        [one] => format!("; did you mean {one}?"),
        [most @ .., last] => format!("; did you mean {} or {last}?", most.join(", ")),
    }
}
