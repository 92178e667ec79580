//! Names: ids of jobs, apps, handlers, instances and trigger keys, and the installation's prefix.
//!
//! One rule for all of them (contract, section 7), because each becomes one token of a NATS
//! subject, a KV key and an SQL value. *Invariant: no name holds a dot, a wildcard or white
//! space*, so a name can never widen a subject.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// The longest name, in bytes.
pub const MAX_NAME: usize = 64;

/// Why a text is not a name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{given:?} is not {what}: {rule}")]
pub struct NameError {
    /// What it was meant to be: "a job id", "a prefix".
    pub what: &'static str,
    /// The text that was given, cut to 80 characters.
    pub given: String,
    /// The rule, in words.
    pub rule: &'static str,
}

const RULE: &str =
    "use 1 to 64 letters, digits, '-' or '_', beginning and ending with a letter or digit";
const PREFIX_RULE: &str = "use 1 to 31 lower-case letters, digits or '-', beginning with a letter";

fn error(what: &'static str, given: &str, rule: &'static str) -> NameError {
    NameError { what, given: given.chars().take(80).collect(), rule }
}

fn is_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    bytes.len() <= MAX_NAME
        && first.is_ascii_alphanumeric()
        && last.is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
}

macro_rules! names {
    ($($(#[$doc:meta])* $name:ident is $what:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks `text` against the rule for names.
            pub fn new(text: &str) -> Result<Self, NameError> {
                if is_name(text) { Ok(Self(text.into())) } else { Err(error($what, text, RULE)) }
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = NameError;
            fn from_str(text: &str) -> Result<Self, NameError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(text: String) -> Result<Self, NameError> {
                Self::new(&text)
            }
        }

        /// Shares the text.
        impl TryFrom<Arc<str>> for $name {
            type Error = NameError;
            fn try_from(text: Arc<str>) -> Result<Self, NameError> {
                if is_name(&text) { Ok(Self(text)) } else { Err(error($what, &text, RULE)) }
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().into()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(&self.0)
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl std::borrow::Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }
    )*};
}

names! {
    /// The id of a job; never changes.
    JobId is "a job id";
    /// A group of executors that are the same service.
    App is "an app";
    /// A named function inside an app.
    Handler is "a handler";
    /// One process: an executor or a scheduler. New at each process start.
    Instance is "an instance id";
    /// A caller's own name for a trigger; the same key triggers once.
    Key is "a key";
}

impl Instance {
    /// An instance id from a host name and a fresh id, for a process that starts now: readable,
    /// and never used before. Characters of `host` that no name may hold become `-`.
    pub fn fresh(host: &str, id: uuid::Uuid) -> Self {
        let host: String = host
            .chars()
            .take(40)
            .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
            .collect();
        let host = host.trim_matches('-');
        let id = id.simple().to_string();
        let tail = &id[id.len() - 10..];
        let text = if host.is_empty() { tail.to_owned() } else { format!("{host}-{tail}") };
        Self(text.into())
    }
}

/// The prefix of an installation: two of them can share a NATS account.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Prefix(Arc<str>);

impl Prefix {
    /// Checks `text` against `[a-z][a-z0-9-]{0,30}`.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let bytes = text.as_bytes();
        let fits = bytes.first().is_some_and(u8::is_ascii_lowercase)
            && bytes.len() <= 31
            && bytes.iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
        if fits { Ok(Self(text.into())) } else { Err(error("a prefix", text, PREFIX_RULE)) }
    }

    /// The prefix as it stands in subjects and bucket names.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The prefix as it stands in stream names: in capitals.
    pub fn upper(&self) -> String {
        self.0.to_ascii_uppercase()
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self("taskparty".into())
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl FromStr for Prefix {
    type Err = NameError;
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl TryFrom<String> for Prefix {
    type Error = NameError;
    fn try_from(text: String) -> Result<Self, NameError> {
        Self::new(&text)
    }
}

impl From<Prefix> for String {
    fn from(prefix: Prefix) -> String {
        prefix.0.as_ref().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_safe_token() {
        for good in ["a", "7", "nightly-settlement", "A_b-9", &"x".repeat(64)] {
            assert!(JobId::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(65);
        for bad in ["", "user/234", "a b", "a.b", "*", ">", "_a", "a-", &long, "日本語", "a\n"] {
            let error = JobId::new(bad).unwrap_err();
            assert!(error.to_string().contains("1 to 64 letters"), "{bad}");
        }
    }

    #[test]
    fn a_fresh_instance_id_is_a_name_whatever_the_host_is_called() {
        for host in ["", "web-1.example.com", "---", "日本語", &"h".repeat(300)] {
            let instance = Instance::fresh(host, uuid::Uuid::from_u128(u128::MAX / 3));
            assert_eq!(Instance::new(instance.as_str()).as_ref(), Ok(&instance), "{host}");
        }
    }

    #[test]
    fn a_prefix_is_lower_case_and_short() {
        for good in ["taskparty", "t", "team-2"] {
            assert!(Prefix::new(good).is_ok(), "{good}");
        }
        for bad in ["", "T", "2a", "a_b", "a.b", &"x".repeat(32)] {
            assert!(Prefix::new(bad).is_err(), "{bad}");
        }
    }
}
