//! How urgent the work of a job is, among all that waits for the same handler.
//!
//! *Invariant: a priority is one of ten*, so that it can stand in a subject and in a consumer's name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// From 0, which is first, to 9. Default: 5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Priority(u8);

/// It is not from 0 to 9.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a priority is a whole number from 0, which is first, to 9")]
pub struct NoPriority;

impl Priority {
    /// The last one.
    pub const MOST: u32 = 9;

    /// The priority of this number.
    ///
    /// # Errors
    /// [`NoPriority`]: it is more than 9.
    pub fn new(number: u32) -> Result<Self, NoPriority> {
        u8::try_from(number).ok().filter(|_| number <= Self::MOST).map(Self).ok_or(NoPriority)
    }

    /// Whether it is the one of jobs that do not say.
    pub fn is_default(self) -> bool {
        self == Self::default()
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(5)
    }
}

impl TryFrom<u32> for Priority {
    type Error = NoPriority;

    fn try_from(number: u32) -> Result<Self, NoPriority> {
        Self::new(number)
    }
}

impl From<Priority> for u32 {
    fn from(priority: Priority) -> Self {
        Self::from(priority.0)
    }
}

impl fmt::Display for Priority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_ten_and_zero_is_first() {
        let all: Vec<Priority> = (0..10).map(|number| Priority::new(number).unwrap()).collect();
        assert!(all.is_sorted() && Priority::new(10).is_err());
        assert!(all.iter().filter(|one| one.is_default()).eq([&Priority::default()]));
        for one in all {
            let json = serde_json::to_string(&one).unwrap();
            assert_eq!(json, one.to_string());
            assert_eq!(serde_json::from_str::<Priority>(&json).unwrap(), one);
        }
        for bad in ["10", "-1", "1.5", "\"1\""] {
            assert!(serde_json::from_str::<Priority>(bad).is_err(), "{bad}");
        }
    }
}
