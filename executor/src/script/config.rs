//! What the operator opens to jobs. Everything is closed unless it is named here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use taskparty_nats::connect::Secret;

use super::environment::EnvNames;
use super::http::AllowList;
use super::params::Runner;
use crate::handler::TidyUp;

/// How long a script that has to stop may take between SIGTERM and SIGKILL, unless configured.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// The exit code that means "do not try again", unless configured.
pub const DEFAULT_FATAL_EXIT_CODE: u8 = 100;

/// How much longer than its grace a handler has to see to the end of its processes.
const BEYOND_GRACE: Duration = Duration::from_secs(2);

/// A language with an interpreter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Language {
    /// `sh`, or another shell.
    Shell,
    /// Python.
    Python,
    /// Node.js.
    Node,
}

impl Language {
    /// Every language.
    pub const ALL: [Self; 3] = [Self::Shell, Self::Python, Self::Node];

    /// Its name, which is that of its handler.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Shell => "shell",
            Self::Python => "python",
            Self::Node => "node",
        }
    }

    /// The name of a file with an inline text.
    pub(super) fn inline_name(self) -> &'static str {
        match self {
            Self::Shell => "inline.sh",
            Self::Python => "inline.py",
            Self::Node => "inline.js",
        }
    }
}

/// What jobs may run.
#[derive(Debug, Clone)]
pub struct ScriptConfig {
    /// Where scripts and programs are. Nothing outside of it is run. A script's working directory.
    pub folder: Option<PathBuf>,
    /// Where texts that come with a job are put while they run, such as the system's folder for
    /// temporary files. None, the default: such jobs are refused. Whoever may save jobs can run
    /// anything with it.
    pub inline: Option<PathBuf>,
    /// The interpreters, by absolute path. A language that is not here has no handler.
    pub interpreters: BTreeMap<Language, PathBuf>,
    /// Whether files of the folder may be run by themselves, as the handler `program`.
    pub programs: bool,
    /// All that a process gets from this one's environment: `PATH`, `HOME`, `LANG`, and what the
    /// operator adds.
    pub environment: BTreeMap<OsString, OsString>,
    /// The variables that a job may set. Careful: one like `BASH_ENV` runs code.
    pub job_env: EnvNames,
    /// How many runs of each handler go on at once.
    pub slots: u32,
    /// The time between SIGTERM and SIGKILL. Default [`DEFAULT_GRACE`].
    pub grace: Duration,
    /// The exit code that means "do not try again". Default [`DEFAULT_FATAL_EXIT_CODE`].
    pub fatal_exit_code: u8,
    /// Where HTTP requests may go. None, the default: there is no handler `http`.
    pub http: Option<HttpConfig>,
}

impl Default for ScriptConfig {
    fn default() -> Self {
        Self {
            folder: None,
            inline: None,
            interpreters: BTreeMap::new(),
            programs: false,
            environment: BTreeMap::new(),
            job_env: EnvNames::default(),
            slots: crate::handler::DEFAULT_SLOTS,
            grace: DEFAULT_GRACE,
            fatal_exit_code: DEFAULT_FATAL_EXIT_CODE,
            http: None,
        }
    }
}

/// What HTTP requests may do.
#[derive(Debug, Clone, Default)]
pub struct HttpConfig {
    /// The hosts and addresses that they may reach.
    pub allow: AllowList,
    /// What headers may refer to by `from_env`, by name.
    pub secrets: BTreeMap<String, Secret>,
    /// Certificates of authorities to trust beside the system's, as PEM.
    pub ca: Option<PathBuf>,
}

/// Why an executor of scripts cannot be.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// Everything is closed.
    #[error(
        "nothing is configured that a job could run: name a folder and an interpreter, or hosts that HTTP requests may reach"
    )]
    Nothing,
    /// There are interpreters and nothing for them to run.
    #[error("{what} can run nothing: there is no folder of scripts{}", if *inline { ", and inline texts are not allowed" } else { "" })]
    NoSource {
        /// The handler.
        what: &'static str,
        /// Whether inline texts could do.
        inline: bool,
    },
    /// A folder is not there.
    #[error("{path}: this is no folder that can be read: {source}", path = path.display())]
    Folder {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// An interpreter is not there.
    #[error("{path}: this is no interpreter for {language}: write the absolute path of a program", path = path.display(), language = language.as_str())]
    Interpreter {
        /// For what.
        language: Language,
        /// Where it should be.
        path: PathBuf,
    },
    /// A number makes no sense.
    #[error("{0}")]
    Value(String),
    /// Certificates cannot be read.
    #[error("{path}: no certificates can be read from it: {problem}", path = path.display())]
    Certificates {
        /// From where.
        path: PathBuf,
        /// Why.
        problem: String,
    },
    /// TLS cannot be set up.
    #[error("TLS cannot be set up: {0}")]
    Tls(String),
}

impl ScriptConfig {
    /// Everything that can be run, the configured languages first.
    pub(super) fn runners(&self) -> Vec<Runner> {
        let languages = self.interpreters.keys().copied().map(Runner::Language);
        languages.chain(self.programs.then_some(Runner::Program)).collect()
    }

    /// A script that has to stop is waited for, at its timeout too.
    pub(super) fn tidy_up(&self) -> TidyUp {
        let time = self.grace.saturating_add(BEYOND_GRACE);
        TidyUp { asked: time, timeout: time }
    }

    pub(super) fn check(&self) -> Result<(), ScriptError> {
        let runners = self.runners();
        if runners.is_empty() && self.http.is_none() {
            return Err(ScriptError::Nothing);
        }
        for runner in runners {
            let inline = matches!(runner, Runner::Language(_));
            if self.folder.is_none() && !(inline && self.inline.is_some()) {
                return Err(ScriptError::NoSource { what: runner.handler(), inline });
            }
        }
        for path in self.folder.iter().chain(&self.inline) {
            std::fs::read_dir(path)
                .map_err(|source| ScriptError::Folder { path: path.clone(), source })?;
        }
        for (language, path) in &self.interpreters {
            if !path.is_absolute() || !path.is_file() {
                let (language, path) = (*language, path.clone());
                return Err(ScriptError::Interpreter { language, path });
            }
        }
        if self.fatal_exit_code == 0 {
            return Err(ScriptError::Value("exit code 0 is success and cannot be fatal".into()));
        }
        Ok(())
    }
}
