//! What a schedule does where local time has a seam: a gap (clocks go forward) or a fold (clocks
//! go back).

use serde::{Deserialize, Serialize};

/// What becomes of a fixed local time that does not exist on some day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gap {
    /// It runs once, at the first instant after the gap. The default.
    #[default]
    Shift,
    /// It does not run; one skipped run is recorded at the first instant after the gap.
    Skip,
}

/// What becomes of a local time that exists twice on some day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fold {
    /// A fixed time runs once, the first time; a repeating one at every real instant. The default.
    #[default]
    Auto,
    /// Only the first of the two instants.
    First,
    /// Only the last of the two instants.
    Last,
    /// Both instants.
    Both,
}
