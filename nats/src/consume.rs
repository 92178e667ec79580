//! A pull loop that never stalls and never prefetches.
//!
//! A [`Pull`] asks a durable consumer for exactly as many messages as the caller has room for,
//! with hand-written requests on an inbox of its own: async-nats's `messages()` prefetches 200
//! while their leases run, and can stall after the consumer's leader changed (fact 8).
//!
//! *Invariant: messages that were asked for and not yet handed over never exceed the free slots
//! that the caller named last.* What the server ended unfilled is asked for again; whatever else
//! happens to the requests (a reconnect, a new leader, a deleted consumer, silence, an end of which
//! nothing was heard), all of them are dropped with their inbox and made anew, when what had arrived
//! on it is handed over.
//!
//! A message that is on its way in the moment in which demand is dropped comes again after the
//! consumer's ack-wait; nothing can be done about that.

mod arrivals;
mod config;
mod demand;
mod lines;
mod order;
mod received;
mod refusals;
mod retire;
mod status;

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use async_nats::jetstream::Context;
use async_nats::{Message, Request, Subscriber};
use bytes::Bytes;
use futures::{FutureExt, StreamExt};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until, timeout};

use self::arrivals::{Arrivals, Found};
use self::config::Asking;
pub use self::config::PullConfig;
use self::demand::Demand;
pub use self::lines::Lines;
pub(crate) use self::received::Event;
pub use self::received::Received;
use self::refusals::Refusals;
use self::status::Status;
use crate::lease::Uptime;
use crate::publish::backoff;

/// How often the connection is looked at while nothing comes.
const LOOK: Duration = Duration::from_millis(500);

/// How long what had already arrived on a dropped inbox is waited for.
const RETIRE: Duration = Duration::from_secs(1);

/// Why a pull ended for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConsumeError {
    /// The connection was closed and will not come back.
    #[error("the connection to NATS is closed")]
    Closed,
}

/// Messages of one durable consumer, as many as there is room for.
#[derive(Debug)]
pub struct Pull {
    client: async_nats::Client,
    /// Knows the prefix of the JetStream API.
    js: Context,
    stream: String,
    consumer: String,
    config: PullConfig,
    /// What the server was asked for and has not sent.
    demand: Demand,
    /// Since when what arrives can have been on its way.
    arrivals: Arrivals,
    /// Where the messages arrive; none until the first request and after a loss.
    inbox: Option<Inbox>,
    /// A dropped inbox, as long as something may have arrived on it already.
    retiring: Option<(Subscriber, Instant)>,
    /// Requests that failed since the last sign of life.
    failures: u32,
    /// What was said of that.
    refusals: Refusals,
    /// Nothing is asked before this.
    quiet_until: Instant,
}

#[derive(Debug)]
struct Inbox {
    /// With its final dot; a request's number follows.
    prefix: String,
    subscriber: Subscriber,
    /// How often the connection had been made when the inbox was.
    connection: u64,
    last_heard: Instant,
}

impl Pull {
    /// Messages of `consumer` on `stream`, which someone else makes: until it exists, this waits.
    pub fn new(
        js: &Context,
        stream: impl Into<String>,
        consumer: impl Into<String>,
        config: PullConfig,
    ) -> Self {
        Self {
            client: js.client(),
            js: js.clone(),
            stream: stream.into(),
            consumer: consumer.into(),
            config,
            demand: Demand::default(),
            arrivals: Arrivals::from(Uptime::now()),
            inbox: None,
            retiring: None,
            failures: 0,
            refusals: Refusals::default(),
            quiet_until: Instant::now(),
        }
    }

    /// Waits for the next message; `free` is how many the caller could take now, this one included.
    ///
    /// May be dropped at any point and called again with another number: that is how a slot that
    /// comes free is announced. A smaller number does not take back what was asked for before
    /// ([`Pull::asked`]): keep those slots.
    ///
    /// # Errors
    /// [`ConsumeError::Closed`]; everything else is waited out.
    pub async fn next(&mut self, free: usize) -> Result<Received, ConsumeError> {
        loop {
            if let Event::Received(received) = self.event(free).await? {
                return Ok(received);
            }
        }
    }

    /// Waits for the next message and for a slot of `slots`, which it then holds.
    ///
    /// The slots that are free are reserved while messages are asked for; `reserved` keeps them
    /// between calls and must be the same each time. May be dropped at any point.
    ///
    /// # Errors
    /// [`ConsumeError::Closed`], also when `slots` is closed.
    pub async fn next_slot(
        &mut self,
        slots: &Arc<Semaphore>,
        reserved: &mut Vec<OwnedSemaphorePermit>,
    ) -> Result<(Received, OwnedSemaphorePermit), ConsumeError> {
        loop {
            while let Ok(slot) = slots.clone().try_acquire_owned() {
                reserved.push(slot);
            }
            tokio::select! {
                biased;
                received = self.next(reserved.len()), if !reserved.is_empty() => {
                    let received = received?;
                    if let Some(slot) = reserved.pop() {
                        return Ok((received, slot));
                    }
                }
                slot = slots.clone().acquire_owned() => {
                    reserved.push(slot.map_err(|_| ConsumeError::Closed)?);
                }
            }
        }
    }

    /// Waits up to `wait` for a message, and takes with it all that has arrived, up to `max`.
    ///
    /// Empty when nothing came. At rest a message is returned at once, alone; when busy, what
    /// gathered since the last call comes together. Up to `max` further messages may already be
    /// on this side, their leases running. May be dropped at any point.
    ///
    /// # Errors
    /// [`ConsumeError::Closed`].
    pub async fn next_batch(
        &mut self,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Received>, ConsumeError> {
        let Ok(first) = timeout(wait, self.next(max)).await else { return Ok(Vec::new()) };
        let mut batch = vec![first?];
        while batch.len() < max {
            let more = tokio::task::unconstrained(self.next(max - batch.len())).now_or_never();
            match more {
                Some(received) => batch.push(received?),
                None => break,
            }
        }
        Ok(batch)
    }

    /// Messages that were asked for and not yet handed over.
    pub fn asked(&self) -> usize {
        self.demand.outstanding()
    }

    /// Waits once. As [`Pull::next`], it may be dropped at any point.
    pub(crate) async fn event(&mut self, free: usize) -> Result<Event, ConsumeError> {
        loop {
            if let Some(event) = self.overdue().await {
                return Ok(event);
            }
            self.top_up(free).await?;
            if let Some(event) = self.listen().await? {
                return Ok(event);
            }
        }
    }

    /// Waits once for what comes of the requests that are open, and makes none: [`Event::Ended`] when
    /// none is open any more. As [`Pull::next`], it may be dropped at any point.
    async fn heard(&mut self) -> Result<Event, ConsumeError> {
        loop {
            if let Some(event) = self.overdue().await {
                return Ok(event);
            }
            if self.demand.outstanding() == 0 {
                return Ok(Event::Ended);
            }
            if let Some(event) = self.listen().await? {
                return Ok(event);
            }
        }
    }

    /// What is to be said before anything is asked or waited for.
    async fn overdue(&mut self) -> Option<Event> {
        if let Some(event) = self.retired().await {
            return Some(event);
        }
        let reason = self.trouble()?;
        self.lose(&reason, false).await;
        Some(Event::Lost)
    }

    /// Listens for a moment at most; nothing when there is nothing to say.
    async fn listen(&mut self) -> Result<Option<Event>, ConsumeError> {
        let look = Instant::now() + LOOK;
        let Some(inbox) = self.inbox.as_mut() else {
            let quiet = self.quiet_until > Instant::now();
            sleep_until(if quiet { look.min(self.quiet_until) } else { look }).await;
            return Ok(None);
        };
        let arrivals = &mut self.arrivals;
        let next = std::future::poll_fn(|cx| {
            let next = inbox.subscriber.poll_next_unpin(cx);
            let found = if next.is_pending() { Found::Empty } else { Found::Message };
            arrivals.looked(Uptime::now(), found);
            next
        });
        let message = tokio::select! {
            biased;
            message = next => message,
            () = sleep_until(look) => return Ok(None),
            () = sleep_until(self.quiet_until), if self.quiet_until > Instant::now() => return Ok(None),
        };
        let Some(message) = message else { return Err(ConsumeError::Closed) };
        inbox.last_heard = Instant::now();
        Ok(self.take(message).await)
    }

    /// Why the requests cannot be trusted any more, if so.
    fn trouble(&mut self) -> Option<String> {
        let inbox = self.inbox.as_ref()?;
        if self.client.connection_state() == State::Connected
            && inbox.connection != connection(&self.client)
        {
            return Some("the connection was made again".into());
        }
        if self.demand.forget_lapsed(Instant::now()) {
            return Some("requests ended without a word".into());
        }
        let silent = inbox.last_heard.elapsed();
        if self.demand.outstanding() > 0 && silent > self.config.heartbeat * 3 {
            return Some(format!("nothing was heard for {} ms", silent.as_millis()));
        }
        None
    }

    /// Asks for as many more messages as there is room for.
    async fn top_up(&mut self, free: usize) -> Result<(), ConsumeError> {
        let more = self.demand.missing(free);
        if more == 0 { Ok(()) } else { self.ask(more, Asking::Wait(self.config.expires)).await }
    }

    /// Whether nothing can be asked for now.
    fn is_quiet(&self) -> bool {
        self.client.connection_state() != State::Connected || Instant::now() < self.quiet_until
    }

    /// Asks for `batch` messages more, unless nothing can be asked for now.
    async fn ask(&mut self, batch: usize, how: Asking) -> Result<(), ConsumeError> {
        if self.is_quiet() {
            return Ok(());
        }
        let made_anew = |inbox: &Inbox| inbox.connection != connection(&self.client);
        if self.demand.outstanding() == 0 && self.inbox.as_ref().is_some_and(made_anew) {
            self.inbox = None;
        }
        if self.inbox.is_none() {
            let connection = connection(&self.client);
            let prefix = format!("{}.", self.client.new_inbox());
            let subscribed = timeout(LOOK, self.client.subscribe(format!("{prefix}*"))).await;
            let Ok(subscriber) = subscribed else { return Ok(()) };
            let subscriber = subscriber.map_err(|_| ConsumeError::Closed)?;
            self.inbox = Some(Inbox { prefix, subscriber, connection, last_heard: Instant::now() });
        }
        let Some(inbox) = self.inbox.as_mut() else { return Ok(()) };
        let number = self.demand.next_number();
        let subject = format!("CONSUMER.MSG.NEXT.{}.{}", self.stream, self.consumer);
        let reply = format!("{}{number}", inbox.prefix);
        let (body, expires) = how.body(batch, self.config.heartbeat);
        let request = Request::new().inbox(reply).payload(Bytes::from(body));
        let asked = Uptime::now();
        match timeout(LOOK, self.js.send_request(subject, request)).await {
            Err(_) => Ok(()),
            Ok(Err(_)) => Err(ConsumeError::Closed),
            Ok(Ok(())) => {
                if self.demand.outstanding() == 0 {
                    inbox.last_heard = Instant::now();
                    self.arrivals = Arrivals::from(asked);
                }
                // The grace covers the way of the server's last word about the request.
                self.demand.asked(batch, Instant::now() + expires + RETIRE * 5);
                Ok(())
            }
        }
    }

    /// What a message on the inbox means.
    async fn take(&mut self, message: Message) -> Option<Event> {
        let Some(status) = Status::of(&message) else {
            self.demand.delivered();
            self.alive();
            return Received::of(message, self.arrivals.since()).map(Event::Received);
        };
        let prefix = self.inbox.as_ref().map_or(0, |inbox| inbox.prefix.len());
        let number = message.subject.get(prefix..).and_then(|number| number.parse().ok());
        match status {
            Status::Heartbeat { last_delivered } => {
                self.alive();
                Some(Event::Heartbeat { last_delivered })
            }
            Status::Ended { unfilled } => {
                self.alive();
                self.demand.ended(number, unfilled);
                None
            }
            Status::Busy(reason) => {
                self.demand.ended(number, None);
                self.back_off(&reason, true);
                None
            }
            Status::Gone(reason) => {
                self.lose(&reason, true).await;
                Some(Event::Lost)
            }
        }
    }

    fn alive(&mut self) {
        self.refusals.over(&self.stream, &self.consumer);
        self.failures = 0;
    }

    /// Waits longer before the next request each time; says so once.
    fn back_off(&mut self, reason: &str, refused: bool) {
        if refused {
            let bears = self.config.bears_refusals;
            self.refusals.one(&self.stream, &self.consumer, reason, bears);
        }
        self.quiet_until = Instant::now() + backoff(self.failures);
        self.failures = self.failures.saturating_add(u32::from(refused));
    }

    /// Drops all requests; the next call makes them anew. `refused` when it was the server's word.
    async fn lose(&mut self, reason: &str, refused: bool) {
        tracing::debug!(
            stream = self.stream,
            consumer = self.consumer,
            reason,
            "Pull requests are made anew."
        );
        self.back_off(reason, refused);
        self.drop_inbox().await;
    }
}

/// How often the connection was made.
fn connection(client: &async_nats::Client) -> u64 {
    client.statistics().connects.load(std::sync::atomic::Ordering::Relaxed)
}
