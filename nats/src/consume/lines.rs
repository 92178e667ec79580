//! Work that stands in several lines, of which the first go first: one durable consumer each.
//!
//! A slot that has come free goes to the first line that has something: they are asked in order,
//! each for what it has now. When all are empty, each is waited for with a short request for one
//! message; with fewer free slots than lines the last of those requests goes round. *Invariant: no more
//! is asked for than there are free slots*, so nothing is ever taken that cannot begin.
//!
//! With one line it is that line's [`Pull`], request by request.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::Context;
use futures::FutureExt;
use futures::future::{join_all, select_all};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;

use super::order::{Line, Step, Wait, quarters, step};
use super::{Asking, ConsumeError, Event, LOOK, Pull, PullConfig, Received};

/// Messages of several durable consumers of one stream, the first ones first.
#[derive(Debug)]
pub struct Lines {
    lines: Vec<(Pull, Line)>,
    /// How often the last request has gone on to another line.
    turn: usize,
    /// A slot has come free while a line was asked.
    freed: bool,
    /// The longest time for which a request waits: as long as a slot is kept for one line while another
    /// may have work.
    longest: Duration,
}

impl Lines {
    /// Messages of `consumers` on `stream`, the first first; at least one.
    pub fn new(js: &Context, stream: &str, consumers: &[String], config: &PullConfig) -> Self {
        let pull = |consumer| (Pull::new(js, stream, consumer, config.clone()), Line::Unknown);
        let lines = consumers.iter().map(pull).collect();
        Self { lines, turn: 0, freed: false, longest: config.heartbeat }
    }

    /// Waits for the next message and for a slot of `slots`, which it then holds. As
    /// [`Pull::next_slot`]: `reserved` keeps the free slots between calls, and it may be dropped at
    /// any point.
    ///
    /// # Errors
    /// [`ConsumeError::Closed`], also when `slots` is closed.
    pub async fn next_slot(
        &mut self,
        slots: &Arc<Semaphore>,
        reserved: &mut Vec<OwnedSemaphorePermit>,
    ) -> Result<(Received, OwnedSemaphorePermit), ConsumeError> {
        if let [(only, _)] = &mut self.lines[..] {
            return only.next_slot(slots, reserved).await;
        }
        loop {
            while let Ok(slot) = slots.clone().try_acquire_owned() {
                self.keep(slot, reserved);
            }
            self.ask(reserved.len()).await?;
            tokio::select! {
                biased;
                // Without a slot nothing is listened to: what should come waits where it is.
                received = self.heard(), if !reserved.is_empty() => {
                    if let Some(received) = received?
                        && let Some(slot) = reserved.pop()
                    {
                        return Ok((received, slot));
                    }
                }
                slot = slots.clone().acquire_owned() => {
                    self.keep(slot.map_err(|_| ConsumeError::Closed)?, reserved);
                }
            }
        }
    }

    /// Messages that were asked for and not yet handed over.
    pub fn asked(&self) -> usize {
        self.lines.iter().map(|(pull, _)| pull.asked()).sum()
    }

    /// Takes so much demand back, if any must be, that one of the `reserved` slots is kept for
    /// nothing. The messages that had arrived all the same have to be seen to. Where an answer is
    /// about to come nothing is taken back: ask again.
    pub async fn make_room(&mut self, reserved: usize) -> Vec<Received> {
        if let [(only, _)] = &mut self.lines[..] {
            return only.take_back().await;
        }
        if self.asked() < reserved {
            return Vec::new();
        }
        let last = self.lines.iter_mut().rev().find(|(_, line)| matches!(line, Line::Waiting(_)));
        let Some((pull, line)) = last else { return Vec::new() };
        *line = Line::Leaving;
        pull.take_back().await
    }

    /// Takes all demand back and returns the messages that had arrived all the same.
    pub async fn stop(self) -> Vec<Received> {
        let stopped = self.lines.into_iter().map(|(pull, _)| pull.stop());
        join_all(stopped).await.into_iter().flatten().collect()
    }

    /// One slot more: what was empty may not be any more. Where lines are just being asked, the last
    /// of them is not to wait for ever while slots come free: that is seen to afterwards.
    fn keep(&mut self, slot: OwnedSemaphorePermit, reserved: &mut Vec<OwnedSemaphorePermit>) {
        reserved.push(slot);
        self.freed = true;
        if !self.lines.iter().any(|(_, line)| *line == Line::Looking) {
            self.begin_anew();
        }
    }

    /// From the first line on, if a slot has come free.
    fn begin_anew(&mut self) {
        if std::mem::take(&mut self.freed) {
            for (_, line) in self.lines.iter_mut().filter(|(_, line)| *line == Line::Empty) {
                *line = Line::Unknown;
            }
        }
    }

    /// Makes the requests that are to be open while `slots` slots are free.
    async fn ask(&mut self, slots: usize) -> Result<(), ConsumeError> {
        for (pull, line) in self.lines.iter_mut().filter(|(_, line)| !line.is_open()) {
            match (pull.is_quiet(), *line) {
                (true, _) => *line = Line::Quiet,
                (false, Line::Quiet) => *line = Line::Unknown,
                (false, _) => {}
            }
        }
        if !self.lines.iter().any(|(_, line)| matches!(line, Line::Looking | Line::Unknown)) {
            self.begin_anew();
        }
        loop {
            let unbound = slots.saturating_sub(self.asked());
            let lines: Vec<Line> = self.lines.iter().map(|(_, line)| *line).collect();
            let (at, count, how, next) = match step(&lines, slots, unbound, self.turn) {
                Step::Look(at) => (at, unbound, Asking::Look, Line::Looking),
                Step::Wait(at, wait) => {
                    let wait_for = self.longest / 4 * quarters(&lines, slots, wait);
                    (at, 1, Asking::Briefly(wait_for), Line::Waiting(wait))
                }
                Step::Listen => return Ok(()),
            };
            let (pull, line) = &mut self.lines[at];
            // Before anything is waited for: this may be dropped.
            *line = next;
            pull.ask(count, how).await?;
            if pull.asked() == 0 {
                *line = Line::Quiet;
            }
        }
    }

    /// Waits once for what comes of the open requests.
    async fn heard(&mut self) -> Result<Option<Received>, ConsumeError> {
        let quiet = self.lines.iter().any(|(_, line)| *line == Line::Quiet);
        let open = self.lines.iter_mut().enumerate().filter(|(_, (_, line))| line.is_open());
        let open: Vec<_> =
            open.map(|(at, (pull, _))| async move { (at, pull.heard().await) }.boxed()).collect();
        if open.is_empty() {
            sleep(LOOK).await;
            return Ok(None);
        }
        let first = select_all(open);
        let (at, event) = tokio::select! {
            biased;
            (first, ..) = first => first,
            // To ask those again that could not be asked.
            () = sleep(LOOK), if quiet => return Ok(None),
        };
        let (pull, line) = &mut self.lines[at];
        match event? {
            Event::Received(received) => {
                if pull.asked() == 0 {
                    *line = Line::Unknown;
                    self.begin_anew();
                }
                return Ok(Some(received));
            }
            Event::Heartbeat { .. } => {}
            Event::Lost => *line = Line::Leaving,
            Event::Ended => {
                self.turn = self.turn.wrapping_add(usize::from(*line == Line::Waiting(Wait::Turn)));
                let empty = matches!(line, Line::Looking | Line::Waiting(_));
                *line = if empty { Line::Empty } else { Line::Unknown };
            }
        }
        Ok(None)
    }
}
