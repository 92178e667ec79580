//! An executor that runs scripts, programs and HTTP requests, which jobs name in their params:
//! `taskparty serve --roles script`. XXL-JOB calls the first of these GLUE.
//!
//! *Invariant: a job decides nothing that the operator has not opened*: which files, whether texts
//! that come with the job, which variables, which addresses. *Invariant: what a job starts ends
//! with its attempt*, and at the latest with this process, however that one ends.
//!
//! | handler | runs |
//! | --- | --- |
//! | `shell`, `python`, `node` | a file of the folder, or an inline text, in that interpreter |
//! | `program` | a file of the folder, by itself |
//! | `http` | a request |

mod config;
mod environment;
mod execute;
mod folder;
mod group;
mod http;
mod lines;
mod params;
mod verdict;

use std::sync::Arc;

use taskparty_common::name::App;

use crate::builder::Executor;
use crate::handler::{ErasedHandler, HandlerOptions};

pub use config::{
    DEFAULT_FATAL_EXIT_CODE, DEFAULT_GRACE, HttpConfig, Language, ScriptConfig, ScriptError,
};
pub use environment::{EnvNames, inherited};
pub use http::{AllowList, BadRule};

/// An executor of `app` with a handler for each thing that `config` opens. It is to be told how to
/// connect, and run.
///
/// # Errors
/// [`ScriptError`] when `config` opens nothing, or names what is not there.
pub fn executor(app: App, config: ScriptConfig) -> Result<Executor, ScriptError> {
    config.check()?;
    let options = HandlerOptions { slots: config.slots };
    let mut executor = Executor::builder(app);
    if let Some(http) = &config.http {
        let requests = Arc::new(http::Requests::new(http)?);
        let handler = ErasedHandler::raw(http::TIDY_UP, move |context, params| {
            let requests = requests.clone();
            async move { requests.run(&context, &params).await }
        });
        executor = executor.erased("http", options, handler);
    }
    let config = Arc::new(config);
    for runner in config.runners() {
        let config = config.clone();
        let handler = ErasedHandler::raw(config.tidy_up(), move |context, params| {
            let config = config.clone();
            async move { execute::run(&context, &params, runner, &config).await }
        });
        executor = executor.erased(runner.handler(), options, handler);
    }
    Ok(executor)
}
