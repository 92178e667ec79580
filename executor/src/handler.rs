//! Handlers: a service's own functions, with their types hidden behind one shape.
//!
//! What a function takes and gives back is read and written *inside* the task it runs in, so that
//! a panic of a `Deserialize` or a `Serialize` ends the run and nothing else.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;

use crate::context::Context;
use crate::report::Output;

/// How many runs of a handler go on at once in one process, when nothing else is said.
pub const DEFAULT_SLOTS: u32 = 4;

/// The most slots that a handler can have.
pub const MAX_SLOTS: u32 = 10_000;

/// What an executor gives a handler, beside its work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandlerOptions {
    /// How many runs go on at once in this process. Default [`DEFAULT_SLOTS`].
    pub slots: u32,
}

impl Default for HandlerOptions {
    fn default() -> Self {
        Self { slots: DEFAULT_SLOTS }
    }
}

/// Options with room for `slots` runs at once, 1 to [`MAX_SLOTS`].
pub fn slots(slots: u32) -> HandlerOptions {
    HandlerOptions { slots }
}

/// Why a handler could not do its work, and whether trying again makes sense.
///
/// Any error becomes one with `?`, with its causes in the message; it can be tried again, as the
/// job's retry policy has it. For a type that is no [`Error`] itself (`anyhow::Error`) use
/// `.map_err(HandlerError::retry)`.
#[derive(Clone, PartialEq, Eq)]
pub struct HandlerError {
    message: String,
    retryable: bool,
}

impl HandlerError {
    /// The next attempt may succeed.
    pub fn retry(message: impl fmt::Display) -> Self {
        // The alternate form: with it `anyhow::Error` shows its causes.
        Self { message: format!("{message:#}"), retryable: true }
    }

    /// No attempt will ever succeed: no retry follows, whatever the job's policy says.
    pub fn fatal(message: impl fmt::Display) -> Self {
        Self { message: format!("{message:#}"), retryable: false }
    }

    /// The same error, with no retry to follow.
    pub fn into_fatal(self) -> Self {
        Self { retryable: false, ..self }
    }

    /// What went wrong, causes included.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Whether another attempt makes sense.
    pub fn is_retryable(&self) -> bool {
        self.retryable
    }
}

// Not `std::error::Error`: then the conversion below could not be there.
impl<E: Error> From<E> for HandlerError {
    fn from(error: E) -> Self {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            let text = error.to_string();
            // Many errors already end with the words of their cause.
            if !message.ends_with(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = error.source();
        }
        Self { message, retryable: true }
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.retryable { "retry" } else { "fatal" };
        write!(f, "{kind}({:?})", self.message)
    }
}

/// Why a handler gave no output.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It never ran: its params could not be read.
    BadParams(String),
    /// It said so itself.
    Handler(HandlerError),
    /// It was asked to stop and did not; the text says how it came to its end.
    Killed(String),
}

/// What a call of a handler comes to.
pub(crate) type Returned = Result<Output, Failure>;

/// How long a handler that has to stop may tidy up before its future is dropped. A lost lease
/// leaves no time at all.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TidyUp {
    /// When somebody cancelled it, or the executor ends.
    pub(crate) asked: Duration,
    /// At its timeout. The lease is kept, and the result waits for it.
    pub(crate) timeout: Duration,
}

impl Default for TidyUp {
    fn default() -> Self {
        Self { asked: Duration::from_secs(1), timeout: Duration::ZERO }
    }
}

/// A handler without its types.
#[derive(Clone)]
pub(crate) struct ErasedHandler {
    function: Arc<dyn Fn(Context, Box<RawValue>) -> BoxFuture<'static, Returned> + Send + Sync>,
    pub(crate) tidy_up: TidyUp,
}

impl ErasedHandler {
    /// Hides the types of `function`.
    pub(crate) fn new<P, R, F, Fut>(function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        let function = Arc::new(function);
        Self::raw(TidyUp::default(), move |context, params| {
            let function = function.clone();
            async move {
                let params = read_params::<P>(&params)?;
                let returned = function(context, params).await.map_err(Failure::Handler)?;
                Output::of(&returned).map_err(|error| {
                    let text = format!("what the handler returned is no JSON: {error}");
                    Failure::Handler(HandlerError::fatal(text))
                })
            }
        })
    }

    /// A handler that reads its params and writes its output by itself.
    pub(crate) fn raw<F, Fut>(tidy_up: TidyUp, function: F) -> Self
    where
        F: Fn(Context, Box<RawValue>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Returned> + Send + 'static,
    {
        let function = move |context, params| function(context, params).boxed();
        Self { function: Arc::new(function), tidy_up }
    }

    /// Calls it. The future must be polled where a panic is caught.
    pub(crate) fn call(
        &self,
        context: Context,
        params: Box<RawValue>,
    ) -> BoxFuture<'static, Returned> {
        (self.function)(context, params)
    }
}

impl fmt::Debug for ErasedHandler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ErasedHandler")
    }
}

fn read_params<P: DeserializeOwned>(params: &RawValue) -> Result<P, Failure> {
    serde_json::from_str(params.get()).map_err(|error| {
        let wanted = std::any::type_name::<P>();
        Failure::BadParams(format!(
            "the params do not fit the handler, which wants {wanted}: {error}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the ledger is closed")]
    struct Outer(#[source] Middle);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open it: {0}")]
    struct Middle(#[source] std::io::Error);

    #[test]
    fn a_question_mark_keeps_the_causes_and_says_each_once() {
        fn fails() -> Result<(), HandlerError> {
            Err(Outer(Middle(std::io::Error::other("disk full"))))?;
            Ok(())
        }
        let error = fails().unwrap_err();
        assert_eq!(error.message(), "the ledger is closed: cannot open it: disk full");
        assert!(error.is_retryable());
        assert!(!error.into_fatal().is_retryable());
    }
}
