//! `taskparty.toml`: read, and refused when it holds what nobody knows.

use std::path::{Path, PathBuf};

use config::{FileFormat, Value, ValueKind};
use taskparty_common::job::nearest;

use super::settings::{BARE, SETTINGS};
use crate::failure::Failure;

/// The file that is read when none is named.
const DEFAULT: &str = "taskparty.toml";

/// A configuration file: settings by name, as text.
#[derive(Debug, Default)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) values: Vec<(&'static str, String)>,
}

/// Reads `named`, which must be there, or else the default one, when it is there.
pub(super) fn read(named: Option<&Path>) -> Result<Option<File>, Failure> {
    let path = named.unwrap_or(Path::new(DEFAULT));
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if named.is_none() && error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(None);
        }
        Err(error) => {
            return Err(Failure::invalid(format!(
                "cannot read the configuration file {}: {error}",
                path.display()
            )));
        }
    };
    let values = parse(&text)
        .map_err(|problem| Failure::invalid(format!("{}: {problem}", path.display())))?;
    Ok(Some(File { path: path.to_owned(), values }))
}

fn parse(text: &str) -> Result<Vec<(&'static str, String)>, String> {
    let read = config::Config::builder()
        .add_source(config::File::from_str(text, FileFormat::Toml))
        .build();
    let root = read.map_err(|error| error.to_string())?.cache;
    let mut found = Vec::new();
    flatten("", root, &mut found)?;
    found
        .into_iter()
        .map(|(name, value)| match SETTINGS.iter().find(|setting| setting.name == name) {
            Some(setting) => Ok((setting.name, value)),
            None => Err(unknown(&name)),
        })
        .collect()
}

fn unknown(name: &str) -> String {
    let known = || SETTINGS.iter().map(|setting| setting.name);
    match nearest(name, known()) {
        Some(near) => format!("{name}: there is no such setting; did you mean {near:?}?"),
        None => format!(
            "{name}: there is no such setting; there are {}",
            known().collect::<Vec<_>>().join(", ")
        ),
    }
}

fn flatten(path: &str, value: Value, found: &mut Vec<(String, String)>) -> Result<(), String> {
    match value.kind {
        ValueKind::Table(table) => {
            let mut fields: Vec<_> = table.into_iter().collect();
            fields.sort_by(|a, b| a.0.cmp(&b.0));
            for (field, value) in fields {
                let path = if path.is_empty() { field } else { format!("{path}.{field}") };
                flatten(&path, value, found)?;
            }
        }
        ValueKind::Array(items) => {
            let items: Result<Vec<String>, _> = items.into_iter().map(Value::into_string).collect();
            found.push((
                path.into(),
                items.map_err(|_| format!("{path}: write a list of texts"))?.join(","),
            ));
        }
        ValueKind::Nil => {}
        ValueKind::String(text) => found.push((path.into(), text)),
        ValueKind::Boolean(value) if BARE.contains(&path) => {
            found.push((path.into(), value.to_string()));
        }
        ValueKind::I64(value) if BARE.contains(&path) => {
            found.push((path.into(), value.to_string()));
        }
        _ => return Err(format!("{path}: write a text, in quotes")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_by_their_names() {
        let found = parse(
            "prefix = \"a\"\n[nats]\nurl = \"nats://x\"\n[serve]\nroles = [\"api\", \"scheduler\"]",
        )
        .unwrap();
        assert_eq!(
            found,
            [
                ("nats.url", "nats://x".into()),
                ("prefix", "a".into()),
                ("serve.roles", "api,scheduler".into())
            ]
        );
    }

    #[test]
    fn what_nobody_knows_is_refused_with_the_nearest_name() {
        assert_eq!(
            parse("[nats]\nurls = \"x\"").unwrap_err(),
            "nats.urls: there is no such setting; did you mean \"nats.url\"?"
        );
        assert!(parse("prefix = 7").unwrap_err().contains("in quotes"));
        let bare = parse("[script]\ninline = true\nslots = 8").unwrap();
        assert_eq!(bare, [("script.inline", "true".into()), ("script.slots", "8".into())]);
        assert!(parse("prefix = ").unwrap_err().contains("line 1"));
    }
}
