//! Taking demand back: the inbox is dropped, so that the server forgets the requests, and what had
//! arrived on it by then is still handed over.

use futures::StreamExt;
use tokio::time::{Instant, timeout};

use super::{Event, LOOK, Pull, RETIRE, Received};

impl Pull {
    /// Takes all demand back and returns the messages that had arrived all the same: nak them.
    pub async fn stop(mut self) -> Vec<Received> {
        self.take_back().await
    }

    /// Takes all demand back for now, so that slots that were kept for it are free. The messages that
    /// had arrived all the same have to be seen to. Takes a round trip, and a second at most.
    pub async fn take_back(&mut self) -> Vec<Received> {
        self.drop_inbox().await;
        let mut rest = Vec::new();
        while let Some((subscriber, until)) = self.retiring.as_mut() {
            match tokio::time::timeout_at(*until, subscriber.next()).await {
                Ok(Some(message)) => rest.extend(Received::of(message, self.arrivals.since())),
                Ok(None) | Err(_) => self.retiring = None,
            }
        }
        self.demand.clear();
        rest
    }

    /// What still comes from a dropped inbox; none when there is nothing more to wait for.
    pub(super) async fn retired(&mut self) -> Option<Event> {
        while let Some((subscriber, until)) = self.retiring.as_mut() {
            match tokio::time::timeout_at(*until, subscriber.next()).await {
                Ok(Some(message)) if message.status.is_none() => {
                    self.demand.delivered();
                    if let Some(received) = Received::of(message, self.arrivals.since()) {
                        return Some(Event::Received(received));
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) | Err(_) => {
                    self.retiring = None;
                    self.demand.clear();
                }
            }
        }
        None
    }

    pub(super) async fn drop_inbox(&mut self) {
        let Some(inbox) = self.inbox.take() else {
            self.demand.clear();
            return;
        };
        let (subscriber, _) = self.retiring.insert((inbox.subscriber, Instant::now() + RETIRE));
        let _ = timeout(LOOK, subscriber.drain()).await;
    }
}
