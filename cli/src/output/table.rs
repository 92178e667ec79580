//! Tables, times and durations for people.

use std::time::Duration;

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use comfy_table::{ContentArrangement, presets};

/// A table: a head and rows, aligned, without lines.
#[derive(Debug)]
pub(crate) struct Table(comfy_table::Table);

impl Table {
    /// With these columns. What stands in brackets is shown as it is.
    pub(crate) fn new(head: &[&str]) -> Self {
        let mut table = Self::bare();
        table.0.set_header(head.iter().map(|name| match name.split_once('(') {
            Some((name, rest)) => format!("{}({rest}", name.to_uppercase()),
            None => name.to_uppercase(),
        }));
        table
    }

    /// Without a head.
    pub(crate) fn bare() -> Self {
        let mut table = comfy_table::Table::new();
        // As wide as it needs to be: a cell that is broken over lines is of no use to grep.
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        Self(table)
    }

    /// Adds a row.
    pub(crate) fn row<T: ToString>(&mut self, cells: impl IntoIterator<Item = T>) {
        // A cell is one line, whatever a user wrote into it.
        self.0.add_row(cells.into_iter().map(|cell| cell.to_string().replace(['\n', '\r'], " ")));
    }

    /// The table as text, without blanks at the ends of lines.
    pub(crate) fn text(&self) -> String {
        let text = self.0.to_string();
        let lines: Vec<&str> =
            text.lines().map(|line| line.strip_prefix(' ').unwrap_or(line).trim_end()).collect();
        lines.join("\n")
    }
}

/// Text in lines of at most `width` characters, broken at blanks; a longer word has a line of its
/// own. No text is no line.
pub(crate) fn folded(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// An instant, to the millisecond; to the second where there is no part of one.
pub(crate) fn shown_time(at: DateTime<Utc>) -> String {
    let form =
        if at.timestamp_subsec_millis() == 0 { SecondsFormat::Secs } else { SecondsFormat::Millis };
    at.to_rfc3339_opts(form, true)
}

/// How long ago `at` was, or in how long it will be, roughly.
pub(crate) fn ago(at: DateTime<Utc>, now: DateTime<Utc>) -> String {
    let passed = now - at;
    if passed < TimeDelta::zero() {
        format!("in {}", rough(-passed))
    } else {
        format!("{} ago", rough(passed))
    }
}

fn rough(time: TimeDelta) -> String {
    let seconds = time.num_seconds();
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long something took.
pub(crate) fn in_words(time: TimeDelta) -> String {
    let ms = u64::try_from(time.num_milliseconds()).unwrap_or(0);
    let precise = if ms < 10_000 { ms } else { ms / 1_000 * 1_000 };
    if precise == 0 {
        "0ms".into()
    } else {
        taskparty_common::duration::format(Duration::from_millis(precise))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_one_line_and_lines_have_no_blanks_at_their_ends() {
        let mut table = Table::new(&["a", "b"]);
        table.row(["x\ny", ""]);
        assert_eq!(table.text(), "A    B\nx y");
    }

    #[test]
    fn text_is_folded_at_blanks() {
        assert_eq!(folded("one two  three\nfour", 8), ["one two", "three", "four"]);
        assert_eq!(folded("monstrously long", 8), ["monstrously", "long"]);
        assert!(folded(" ", 8).is_empty());
    }

    #[test]
    fn times_are_rough_for_people() {
        let now = DateTime::from_timestamp(1_000_000, 0).unwrap();
        assert_eq!(ago(now - TimeDelta::seconds(5), now), "5s ago");
        assert_eq!(ago(now + TimeDelta::hours(3), now), "in 3h");
        assert_eq!(in_words(TimeDelta::milliseconds(1_250)), "1s250ms");
        assert_eq!(in_words(TimeDelta::milliseconds(61_250)), "1m1s");
    }
}
