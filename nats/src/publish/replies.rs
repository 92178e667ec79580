//! One inbox for all answers.
//!
//! A caller that waits has a token; its answer arrives on `<inbox>.<token>`. async-nats has such
//! an inbox of its own, but keeps an entry for ever when no answer comes, and cannot give a late
//! answer to the next attempt.
//!
//! *Invariant: an entry lives no longer than its [`Waiter`].*

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_nats::{Message, Subscriber};
use futures::StreamExt;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::AskError;

type Waiting = Arc<Mutex<HashMap<u64, oneshot::Sender<Message>>>>;

/// The inbox and those who wait on it. Its task ends when it is dropped.
#[derive(Debug)]
pub(super) struct Replies {
    /// The inbox with its final dot.
    prefix: String,
    next: AtomicU64,
    waiting: Waiting,
    _ends_reader: DropGuard,
}

impl Replies {
    pub(super) async fn start(client: &async_nats::Client) -> Result<Self, AskError> {
        let prefix = format!("{}.", client.new_inbox());
        let subscriber =
            client.subscribe(format!("{prefix}*")).await.map_err(|_| AskError::NotSent)?;
        let waiting = Waiting::default();
        let end = CancellationToken::new();
        tokio::spawn(read(subscriber, prefix.len(), waiting.clone(), end.clone()));
        Ok(Self { prefix, next: AtomicU64::new(0), waiting, _ends_reader: end.drop_guard() })
    }

    /// A place to wait; nothing can arrive before it is armed.
    pub(super) fn waiter(&self) -> Waiter<'_> {
        let token = self.next.fetch_add(1, Ordering::Relaxed);
        Waiter { replies: self, token, answer: None }
    }
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, HashMap<u64, oneshot::Sender<Message>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn read(mut inbox: Subscriber, skip: usize, waiting: Waiting, end: CancellationToken) {
    loop {
        let message = tokio::select! {
            message = inbox.next() => message,
            () = end.cancelled() => return,
        };
        let Some(message) = message else { return };
        let token = message.subject.get(skip..).and_then(|token| token.parse().ok());
        let waiter = token.and_then(|token: u64| lock(&waiting).remove(&token));
        if let Some(waiter) = waiter {
            let _ = waiter.send(message);
        }
    }
}

/// One caller's place; its reply subject stays the same for all attempts.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    replies: &'a Replies,
    token: u64,
    answer: Option<oneshot::Receiver<Message>>,
}

impl Waiter<'_> {
    /// The subject on which the answer is awaited.
    pub(super) fn reply(&self) -> String {
        format!("{}{}", self.replies.prefix, self.token)
    }

    /// Waits for one more answer from now on.
    pub(super) fn arm(&mut self) {
        let (sender, answer) = oneshot::channel();
        self.answer = Some(answer);
        lock(&self.replies.waiting).insert(self.token, sender);
    }

    pub(super) async fn wait(&mut self, time: Duration) -> Option<Message> {
        self.wait_until(Instant::now() + time).await
    }

    /// The answer; none when it does not come before `end`, and then `end` has passed.
    pub(super) async fn wait_until(&mut self, end: Instant) -> Option<Message> {
        let arrived = match &mut self.answer {
            Some(answer) => tokio::time::timeout_at(end, answer).await,
            None => {
                tokio::time::sleep_until(end).await;
                return None;
            }
        };
        match arrived {
            Ok(Ok(message)) => {
                self.answer = None;
                Some(message)
            }
            Ok(Err(_)) => {
                self.answer = None;
                tokio::time::sleep_until(end).await;
                None
            }
            Err(_) => None,
        }
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        lock(&self.replies.waiting).remove(&self.token);
    }
}
