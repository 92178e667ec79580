//! The executors that are driven.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use taskparty_common::outcome::Code;

/// An executor under test: how it is started, and the one thing in which languages may differ.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The program. It must be the executor itself, not something that starts it: it gets signals.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What a fault in a handler is: [`Code::HandlerPanic`], or [`Code::HandlerError`] where a
    /// language has one kind of exception for both.
    pub panic: Code,
}

impl Subject {
    /// The Rust SDK in `program`, the binary `taskparty-conformance` of this crate.
    pub fn rust(program: &str) -> Self {
        Self { program: program.into(), args: Vec::new(), panic: Code::HandlerPanic }
    }

    /// `examples/python`, in the environment that `make test-langs` makes.
    pub fn python() -> Self {
        let folder = examples().join("python");
        Self {
            program: folder.join(".venv/bin/python"),
            args: vec![folder.join("main.py").into()],
            panic: Code::HandlerError,
        }
    }

    /// `examples/typescript`, as `make test-langs` compiles it.
    pub fn typescript() -> Self {
        Self {
            program: "node".into(),
            args: vec![examples().join("typescript/dist/main.js").into()],
            panic: Code::HandlerError,
        }
    }

    /// `examples/go`, as `make test-langs` compiles it.
    pub fn go() -> Self {
        Self {
            program: examples().join("go/bin/executor"),
            args: Vec::new(),
            panic: Code::HandlerPanic,
        }
    }
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples")
}
