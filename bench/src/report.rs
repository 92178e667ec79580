//! What was measured, for people and for scripts.

use serde::Serialize;

/// The outcome of one measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Which measurement.
    pub bench: &'static str,
    /// The version of TaskParty.
    pub version: &'static str,
    /// What it was measured on and with, name and value.
    pub on: Vec<(&'static str, String)>,
    /// The figures, the most important one first.
    pub figures: Vec<Figure>,
}

/// One figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// Its value.
    pub value: f64,
    /// Its unit: `/s`, `ms`, `s`, `MiB`, `B`, `%`, or nothing for a count or a ratio.
    pub unit: &'static str,
}

impl Report {
    /// A report without figures.
    pub fn new(bench: &'static str, on: Vec<(&'static str, String)>) -> Self {
        Self { bench, version: env!("CARGO_PKG_VERSION"), on, figures: Vec::new() }
    }

    /// Adds a figure.
    pub fn add(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.figures.push(Figure { name: name.into(), value, unit });
    }

    /// The figure with this name.
    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value)
    }
}

/// The value at `share` of a hundred of sorted values; 0 when there are none.
pub fn percentile(sorted: &[i64], share: f64) -> i64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index")]
    let index = ((last as f64) * share / 100.0).round() as usize;
    sorted[index.min(last)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let sorted: Vec<i64> = (1..=1000).collect();
        assert_eq!(percentile(&sorted, 0.0), 1);
        assert_eq!(percentile(&sorted, 50.0), 501);
        assert_eq!(percentile(&sorted, 99.9), 999);
        assert_eq!(percentile(&sorted, 100.0), 1000);
        assert_eq!(percentile(&[], 50.0), 0);
    }
}
