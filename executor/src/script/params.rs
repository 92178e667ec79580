//! What a job says about the script or program it wants.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use super::config::Language;

/// What runs a job's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Runner {
    /// An interpreter.
    Language(Language),
    /// The file itself.
    Program,
}

impl Runner {
    /// The name of its handler.
    pub(super) fn handler(self) -> &'static str {
        match self {
            Self::Language(language) => language.as_str(),
            Self::Program => "program",
        }
    }
}

/// Where the text of a script is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Source {
    /// In the folder.
    File(String),
    /// In the job.
    Inline(String),
}

/// The params of a job that runs a script or program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Params {
    pub(super) source: Source,
    pub(super) args: Vec<String>,
    pub(super) env: BTreeMap<String, String>,
    /// What comes on standard input, in place of the params.
    pub(super) stdin: Option<String>,
}

/// As it is written. Strict: a misspelt field would be a script that runs without it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    file: Option<String>,
    inline: Option<String>,
    #[serde(default)]
    args: Vec<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    stdin: Option<String>,
    /// The job's own data. It gets to the script as part of the params.
    #[serde(rename = "input")]
    _input: Option<IgnoredAny>,
}

impl Params {
    /// Reads them. The error is for whoever wrote the job.
    pub(super) fn read(json: &RawValue) -> Result<Self, String> {
        let wanted = "write {file: NAME, args: […], env: {…}, input: …}";
        if json.get() == "null" {
            return Err(format!("the params do not say what to run: {wanted}"));
        }
        let written: Written = serde_json::from_str(json.get())
            .map_err(|error| format!("the params cannot be used: {error}; {wanted}"))?;
        let source = match (written.file, written.inline) {
            (Some(file), None) => Source::File(file),
            (None, Some(text)) => Source::Inline(text),
            (None, None) => {
                return Err(format!("the params do not say what to run: {wanted}"));
            }
            (Some(_), Some(_)) => {
                return Err("the params have both file and inline: keep one".into());
            }
        };
        if written.args.iter().any(|arg| arg.contains('\0')) {
            return Err("args: an argument holds a zero byte".into());
        }
        let Written { args, env, stdin, .. } = written;
        Ok(Self { source, args, env, stdin })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Params, String> {
        Params::read(&RawValue::from_string(json.into()).unwrap())
    }

    #[test]
    fn params_say_what_to_run_once() {
        let params =
            read(r#"{"file": "a.sh", "args": ["1"], "env": {"JOB_A": "b"}, "input": {"day": 1}}"#)
                .unwrap();
        assert_eq!(params.source, Source::File("a.sh".into()));
        assert_eq!((params.args, params.stdin), (vec!["1".to_owned()], None));
        assert_eq!(read(r#"{"inline": ""}"#).unwrap().source, Source::Inline(String::new()));
        for (json, why) in [
            ("null", "do not say what to run"),
            ("{}", "do not say what to run"),
            (r#""a.sh""#, "cannot be used"),
            (r#"{"file": "a", "inline": "b"}"#, "both"),
            (r#"{"file": "a", "arg": ["b"]}"#, "unknown field `arg`"),
            (r#"{"file": "a", "args": [1]}"#, "expected a string"),
            (r#"{"file": "a", "args": ["\u0000"]}"#, "zero byte"),
        ] {
            let error = read(json).unwrap_err();
            assert!(error.contains(why), "{json}: {error}");
        }
    }
}
