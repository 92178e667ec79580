//! `config`: the values in force, and where each came from.

use serde::Serialize;

use super::Outcome;
use crate::config::{Config, Shown};
use crate::failure::Exit;
use crate::output::{Output, Table};

#[derive(Debug, Serialize)]
struct Settings<'a> {
    items: &'a [Shown],
    next: Option<String>,
}

/// Prints every setting.
pub(crate) fn run(config: &Config, output: Output) -> Outcome {
    let settings = Settings { items: &config.shown, next: None };
    output.print(&settings, |settings| {
        let mut table = Table::new(&["setting", "value", "from"]);
        for setting in settings.items {
            table.row([setting.name, setting.value.as_deref().unwrap_or("-"), &setting.source]);
        }
        table.text()
    })?;
    Ok(Exit::Done)
}
