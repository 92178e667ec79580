//! Putting an executor together. Nothing is connected or started before [`Executor::run`].

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use taskparty_common::name::{App, Handler, Instance, NameError};
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats};
use uuid::Uuid;

use crate::context::Context;
use crate::error::BuildError;
use crate::handler::{ErasedHandler, HandlerError, HandlerOptions, MAX_SLOTS};

/// How long running handlers may go on after the shutdown, when nothing else is said.
pub const DEFAULT_DRAIN: Duration = Duration::from_secs(30);

/// An executor: an app's handlers, and how to reach NATS.
///
/// Errors of what was given (a bad name, a handler twice) come from [`Executor::run`], all before
/// anything is connected.
#[derive(Debug)]
#[must_use = "an executor does nothing until it runs"]
pub struct Executor {
    pub(crate) app: App,
    pub(crate) connection: Connection,
    pub(crate) handlers: BTreeMap<Handler, (ErasedHandler, u32)>,
    /// The first thing that was wrong.
    pub(crate) wrong: Option<BuildError>,
    pub(crate) drain: Duration,
    pub(crate) version: String,
    pub(crate) host: String,
    pub(crate) instance: Option<Instance>,
    pub(crate) clock: Clock,
}

/// How an executor comes to its connection.
#[derive(Debug)]
pub(crate) enum Connection {
    /// It makes one, and closes it.
    Make(Box<ConnectConfig>),
    /// It is given one, which stays open.
    Given(Nats),
}

impl Executor {
    /// An executor of `app`, such as `order-service`.
    ///
    /// # Errors
    /// [`NameError`] when that is no name.
    pub fn new(app: &str) -> Result<Self, NameError> {
        App::new(app).map(Self::builder)
    }

    /// An executor of `app`, without handlers, that connects to a NATS on this machine.
    pub fn builder(app: App) -> Self {
        Self {
            app,
            connection: Connection::Make(Box::default()),
            handlers: BTreeMap::new(),
            wrong: None,
            drain: DEFAULT_DRAIN,
            version: String::new(),
            host: host_name(),
            instance: None,
            clock: Clock::system(),
        }
    }

    /// How to connect. Default: [`ConnectConfig::default`]. The executor waits for a NATS that is
    /// down, and closes its connection when it ends.
    pub fn connect(self, config: ConnectConfig) -> Self {
        Self { connection: Connection::Make(Box::new(config)), ..self }
    }

    /// Uses `nats`, which stays open when the executor ends.
    pub fn nats(self, nats: Nats) -> Self {
        Self { connection: Connection::Given(nats), ..self }
    }

    /// Adds a handler with the default number of slots, [`crate::DEFAULT_SLOTS`].
    ///
    /// `function` is `async fn(Context, P) -> Result<R, HandlerError>`. `P` is read from the job's
    /// params; what `R` is written to is kept with the run. State goes in by a closure that clones
    /// an `Arc`. It must not block its thread: use [`tokio::task::spawn_blocking`].
    pub fn handler<P, R, F, Fut>(self, name: &str, function: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.handler_with(name, HandlerOptions::default(), function)
    }

    /// Adds a handler: `.handler_with("dailySettlement", slots(8), daily_settlement)`.
    pub fn handler_with<P, R, F, Fut>(
        self,
        name: &str,
        options: HandlerOptions,
        function: F,
    ) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, HandlerError>> + Send + 'static,
    {
        self.erased(name, options, ErasedHandler::new(function))
    }

    /// Adds a handler that is erased already.
    pub(crate) fn erased(mut self, name: &str, options: HandlerOptions, it: ErasedHandler) -> Self {
        if let Err(error) = self.add(name, options, it) {
            self.wrong.get_or_insert(error);
        }
        self
    }

    fn add(
        &mut self,
        name: &str,
        options: HandlerOptions,
        function: ErasedHandler,
    ) -> Result<(), BuildError> {
        let handler = Handler::new(name)?;
        let slots = options.slots;
        if !(1..=MAX_SLOTS).contains(&slots) {
            return Err(BuildError::Slots { handler, slots });
        }
        if self.handlers.contains_key(&handler) {
            return Err(BuildError::Duplicate(handler));
        }
        self.handlers.insert(handler, (function, slots));
        Ok(())
    }

    /// How long running handlers may go on after the shutdown before they are stopped and their
    /// work is handed back. Default [`DEFAULT_DRAIN`]. The process needs about 10 s more.
    pub fn drain(self, time: Duration) -> Self {
        Self { drain: time, ..self }
    }

    /// The service's own version, for `taskparty executor list`.
    pub fn version(self, version: impl Into<String>) -> Self {
        Self { version: version.into(), ..self }
    }

    /// The machine's name, for `taskparty executor list`. Default: what the system says.
    pub fn host(self, host: impl Into<String>) -> Self {
        Self { host: host.into(), ..self }
    }

    /// The instance id, for tests that must know it. Default, and right: a fresh one each start.
    /// *Invariant: no two processes ever have the same.*
    pub fn instance(self, instance: Instance) -> Self {
        Self { instance: Some(instance), ..self }
    }

    /// The wall clock. Default: the machine's.
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    pub(crate) fn check(&mut self) -> Result<Instance, BuildError> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        if self.handlers.is_empty() {
            return Err(BuildError::NoHandlers);
        }
        let fresh = || Instance::fresh(&self.host, Uuid::new_v4());
        Ok(self.instance.take().unwrap_or_else(fresh))
    }
}

/// The machine's name; empty where the system does not say it in a file.
fn host_name() -> String {
    ["/proc/sys/kernel/hostname", "/etc/hostname"]
        .iter()
        .find_map(|path| std::fs::read_to_string(path).ok())
        .map(|name| name.trim().to_owned())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::slots;

    async fn nothing(_: Context, (): ()) -> Result<(), HandlerError> {
        Ok(())
    }

    fn wrong(build: impl FnOnce(Executor) -> Executor) -> BuildError {
        build(Executor::new("a").unwrap()).check().unwrap_err()
    }

    #[test]
    fn what_cannot_run_is_refused_with_the_first_thing_that_is_wrong() {
        assert!(Executor::new("a b").is_err());
        assert_eq!(wrong(|executor| executor), BuildError::NoHandlers);
        let error = wrong(|executor| {
            executor.handler("x", nothing).handler("x", nothing).handler("", nothing)
        });
        assert!(matches!(error, BuildError::Duplicate(_)));
        assert!(matches!(wrong(|executor| executor.handler("a.b", nothing)), BuildError::Name(_)));
        let error = wrong(|executor| executor.handler_with("x", slots(0), nothing));
        assert_eq!(error.to_string(), "the handler x has 0 slots; use 1 to 10000");
    }

    #[test]
    fn each_start_is_an_instance_of_its_own() {
        let instance =
            || Executor::new("a").unwrap().host("web-1").handler("x", nothing).check().unwrap();
        let (one, other) = (instance(), instance());
        assert!(one.as_str().starts_with("web-1-"));
        assert_ne!(one, other);
    }
}
