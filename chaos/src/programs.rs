//! Where the programs are that the harness starts.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use taskparty_lab::site::Programs;

/// Those beside the running program, or the ones that `TASKPARTY_BIN` and `CHAOS_BIN` name.
///
/// # Errors
/// When one is missing, with what to do.
pub fn find() -> Result<Programs> {
    let here = std::env::current_exe()?;
    let folders: Vec<&Path> = here.ancestors().skip(1).take(2).collect();
    let find = |variable: &str, name: &str| {
        let named = std::env::var_os(variable).map(PathBuf::from);
        let beside = folders.iter().map(|folder| folder.join(name));
        named.into_iter().chain(beside).find(|path| path.is_file()).with_context(|| {
            format!("no {name} beside {}: run `cargo build -p {name}` first", here.display())
        })
    };
    let executor = (find("CHAOS_BIN", "taskparty-chaos")?, vec!["executor".to_owned()]);
    Ok(Programs { node: find("TASKPARTY_BIN", "taskparty")?, executor })
}
