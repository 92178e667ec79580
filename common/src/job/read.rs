//! Reading a JSON object field by field, with errors that help.
//!
//! Every error names the field by its whole path, shows the value, and says what would be right;
//! all errors of an object are found in one reading. Whether an unknown field is refused or
//! ignored is the caller's choice: files and requests are strict, what is read back from NATS is
//! lenient so that an older process beside a newer one goes on working.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::duration;

/// What is wrong with one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// The field, as `retry.initial`; empty for the whole object.
    pub field: String,
    /// The value that was given, as JSON, shortened; absent when a field is missing.
    pub value: Option<String>,
    /// What is wrong and what would be right.
    pub problem: String,
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.field.is_empty(), &self.value) {
            (true, _) => f.write_str(&self.problem),
            (false, Some(value)) if !self.problem.starts_with(value) => {
                write!(f, "{}: {value}: {}", self.field, self.problem)
            }
            (false, _) => write!(f, "{}: {}", self.field, self.problem),
        }
    }
}

/// Everything that is wrong with one object; never empty.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Invalid(pub Vec<FieldError>);

impl Invalid {
    /// One problem with one field.
    pub fn one(field: &str, problem: impl Into<String>) -> Self {
        Self(vec![FieldError { field: field.into(), value: None, problem: problem.into() }])
    }
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{error}")?;
        }
        Ok(())
    }
}

/// What to do with a field that nobody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unknown {
    /// It is an error that names the nearest known field.
    Refuse,
    /// It comes from a newer version.
    Ignore,
}

/// The errors found so far, shared by an object and the objects inside it.
#[derive(Debug, Default)]
pub(crate) struct Errors(RefCell<Vec<FieldError>>);

impl Errors {
    pub(crate) fn push(&self, field: String, value: Option<&Value>, problem: String) {
        let value = value.map(shorten);
        self.0.borrow_mut().push(FieldError { field, value, problem });
    }

    /// `value` when nothing was found to be wrong.
    pub(crate) fn or<T>(self, value: Option<T>) -> Result<T, Invalid> {
        let errors = self.0.into_inner();
        match value {
            Some(value) if errors.is_empty() => Ok(value),
            _ if errors.is_empty() => Err(Invalid::one("", "it cannot be read")),
            _ => Err(Invalid(errors)),
        }
    }
}

fn shorten(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 {
        return text;
    }
    text.chars().take(57).chain("...".chars()).collect()
}

/// One object that is being read.
pub(crate) struct Fields<'a> {
    path: String,
    map: &'a Map<String, Value>,
    unknown: Unknown,
    errors: &'a Errors,
    asked: BTreeSet<&'static str>,
}

impl<'a> Fields<'a> {
    /// Begins to read `value`; an error when it is not an object.
    pub(crate) fn of(
        value: &'a Value,
        path: &str,
        unknown: Unknown,
        errors: &'a Errors,
    ) -> Option<Self> {
        let Value::Object(map) = value else {
            let value = (!path.is_empty()).then_some(value);
            errors.push(path.into(), value, "this is an object: fields with values".into());
            return None;
        };
        Some(Self { path: path.into(), map, unknown, errors, asked: BTreeSet::new() })
    }

    /// The whole path of a field of this object; of the object itself for an empty `field`.
    pub(crate) fn path_of(&self, field: &str) -> String {
        match (self.path.as_str(), field) {
            ("", field) => field.into(),
            (path, "") => path.into(),
            (path, field) => format!("{path}.{field}"),
        }
    }

    /// Records a problem with `field`, showing its value.
    pub(crate) fn fail(&self, field: &str, problem: impl Into<String>) {
        self.errors.push(self.path_of(field), self.map.get(field), problem.into());
    }

    /// The field as it is; `null` counts as absent.
    pub(crate) fn raw(&mut self, field: &'static str) -> Option<&'a Value> {
        self.asked.insert(field);
        self.map.get(field).filter(|value| !value.is_null())
    }

    /// The field through `read`; what `read` refuses is recorded with its reason.
    pub(crate) fn read<T>(
        &mut self,
        field: &'static str,
        read: impl FnOnce(&'a Value) -> Result<T, String>,
    ) -> Option<T> {
        match read(self.raw(field)?) {
            Ok(value) => Some(value),
            Err(problem) => {
                self.fail(field, problem);
                None
            }
        }
    }

    /// A text of at most `most` characters.
    pub(crate) fn text(&mut self, field: &'static str, most: usize) -> Option<String> {
        self.read(field, |value| {
            let text = string(value)?;
            let length = text.chars().count();
            if length > most {
                return Err(format!("it has {length} characters, the limit is {most}"));
            }
            Ok(text.into())
        })
    }

    /// A text that `T` can be made of.
    pub(crate) fn parsed<T: FromStr<Err: fmt::Display>>(
        &mut self,
        field: &'static str,
    ) -> Option<T> {
        self.read(field, |value| string(value)?.parse().map_err(|e: T::Err| e.to_string()))
    }

    /// A field that must be there.
    pub(crate) fn required<T: FromStr<Err: fmt::Display>>(
        &mut self,
        field: &'static str,
        form: &str,
    ) -> Option<T> {
        if self.raw(field).is_none() {
            self.errors.push(self.path_of(field), None, format!("it is missing: {form}"));
            return None;
        }
        self.parsed(field)
    }

    /// A duration like `30s`.
    pub(crate) fn duration(&mut self, field: &'static str) -> Option<Duration> {
        self.read(field, read_duration)
    }

    /// A whole number inside `range`.
    pub(crate) fn whole(&mut self, field: &'static str, range: RangeInclusive<u32>) -> Option<u32> {
        self.read(field, |value| {
            value
                .as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| range.contains(n))
                .ok_or(format!("write a whole number from {} to {}", range.start(), range.end()))
        })
    }

    /// A number inside `range`.
    pub(crate) fn number(
        &mut self,
        field: &'static str,
        range: RangeInclusive<f64>,
    ) -> Option<f64> {
        self.read(field, |value| {
            value.as_f64().filter(|n| range.contains(n)).ok_or(format!(
                "write a number from {} to {}",
                range.start(),
                range.end()
            ))
        })
    }

    /// One of the words of `choices`.
    pub(crate) fn choice<T: Copy>(
        &mut self,
        field: &'static str,
        choices: &[(&str, T)],
    ) -> Option<T> {
        self.read(field, |value| one_of(string(value)?, choices))
    }

    /// A list of the words of `choices`.
    pub(crate) fn choice_list<T: Copy>(
        &mut self,
        field: &'static str,
        choices: &[(&str, T)],
    ) -> Option<Vec<T>> {
        self.read(field, |value| {
            let Value::Array(items) = value else {
                return Err("write a list, as [a, b]".into());
            };
            items.iter().map(|item| one_of(string(item)?, choices)).collect()
        })
    }

    /// An object inside this one.
    pub(crate) fn object(&mut self, field: &'static str) -> Option<Fields<'a>> {
        let value = self.raw(field)?;
        Fields::of(value, &self.path_of(field), self.unknown, self.errors)
    }

    /// Ends the reading: whatever nobody asked for is unknown.
    pub(crate) fn finish(self) {
        if self.unknown == Unknown::Ignore {
            return;
        }
        for field in self.map.keys().filter(|field| !self.asked.contains(field.as_str())) {
            let problem = match nearest(field, self.asked.iter().copied()) {
                Some(near) => format!("there is no such field; did you mean {near:?}?"),
                None => {
                    let known: Vec<&str> = self.asked.iter().copied().collect();
                    format!("there is no such field; the fields here are {}", known.join(", "))
                }
            };
            self.errors.push(self.path_of(field), None, problem);
        }
    }
}

/// The text in `value`.
pub(crate) fn string(value: &Value) -> Result<&str, String> {
    match value {
        Value::String(text) => Ok(text),
        Value::Number(_) | Value::Bool(_) => Err("write a text, in quotes".into()),
        _ => Err("write a text".into()),
    }
}

/// The duration in `value`.
pub(crate) fn read_duration(value: &Value) -> Result<Duration, String> {
    match value {
        Value::Number(number) => {
            Err(format!("a duration has a unit: write {number}s, {number}m or {number}h"))
        }
        _ => duration::parse(string(value)?).map_err(|e| e.to_string()),
    }
}

fn one_of<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, choice)| *choice).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        match nearest(text, names.iter().copied()) {
            Some(near) => format!("did you mean {near:?}? It is one of {}", names.join(", ")),
            None => format!("it is one of {}", names.join(", ")),
        }
    })
}

/// The word of `words` that `text` was probably meant to be.
pub fn nearest<'a>(text: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let text = text.to_lowercase();
    words
        .map(|word| (strsim::jaro_winkler(&text, &word.to_lowercase()), word))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, word)| word)
}
