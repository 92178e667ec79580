//! The schedulers that live: each one's heartbeat, and what it sees of the others'.
//!
//! A heartbeat each second, gone four seconds after the last one. It says which revision of the
//! jobs its scheduler fires by; whoever changed a job waits for it, so it is sent at once when that
//! moves. *Invariants.* A member that has not renewed its own heartbeat in time, on its own clock
//! that counts suspend, is none ([`Standing`]), whatever the others think. Membership only spreads
//! the work: it may be wrong for seconds.

mod standing;
mod view;

use std::time::Duration;

use chrono::{DateTime, Utc};
use taskparty_common::dispatch::SchedulerEntry;
use taskparty_common::name::Instance;
use taskparty_nats::bucket::{Buckets, Change, Watch};
use taskparty_nats::clock::Clock;
use taskparty_nats::lease::Uptime;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use self::standing::Standing;
use self::view::View;
use crate::cursor::Confirmed;
use crate::engine::{Members, Progress};

const EVERY: Duration = Duration::from_secs(1);

/// A scheduler that was not heard of for this long has gone. In whole seconds: NATS counts so.
pub(crate) const TTL: Duration = Duration::from_secs(4);

/// How often silence is looked for.
const LOOK: Duration = Duration::from_millis(200);

/// Changes of jobs that come together are shown together.
const SETTLE: Duration = Duration::from_millis(10);

/// A scheduler among the others.
pub(crate) struct Membership {
    pub(crate) buckets: Buckets,
    pub(crate) instance: Instance,
    pub(crate) host: String,
    pub(crate) started_at: DateTime<Utc>,
    pub(crate) clock: Clock,
    /// How far this clock and the server's may be apart; nothing: however far.
    pub(crate) clock_tolerance: Option<Duration>,
    pub(crate) progress: watch::Receiver<Option<Progress>>,
    /// The last watermark that is stored: before the first one this scheduler is no member.
    pub(crate) stored: watch::Receiver<Option<Confirmed>>,
    pub(crate) members: watch::Sender<Members>,
    pub(crate) standing: Standing,
}

impl Membership {
    /// Takes part until `shutdown`; then leaves, so that the others need not wait for the TTL.
    pub(crate) async fn run(self, shutdown: CancellationToken) {
        tokio::join!(self.beat(&shutdown), self.look(&shutdown));
        if let Err(error) = self.buckets.delete(Bucket::Schedulers, self.instance.as_str()).await {
            tracing::warn!(%error, "The heartbeat is not taken back; it ends by itself.");
        }
    }

    async fn beat(&self, shutdown: &CancellationToken) {
        let (mut progress, mut stored) = (self.progress.clone(), self.stored.clone());
        tokio::select! {
            stored = stored.wait_for(Option::is_some) => if stored.is_err() { return },
            () = shutdown.cancelled() => return,
        }
        let mut tick = tokio::time::interval(EVERY);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut shown = None;
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                () = shutdown.cancelled() => return,
                changed = progress.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let now = progress.borrow_and_update().as_ref().map(|now| now.jobs_revision);
                    if shown == now {
                        continue;
                    }
                    tokio::time::sleep(SETTLE).await;
                }
            }
            let Some(now) = progress.borrow_and_update().clone() else { continue };
            if self.send(&now).await {
                shown = Some(now.jobs_revision);
            }
        }
    }

    async fn send(&self, progress: &Progress) -> bool {
        let entry = SchedulerEntry {
            v: 1,
            instance: self.instance.clone(),
            jobs_revision: progress.jobs_revision,
            jobs: progress.jobs,
            late: progress.late,
            host: self.host.clone(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").into(),
            started_at: self.started_at,
            sent_at: Some(self.clock.now()),
        };
        let Ok(value) = serde_json::to_vec(&entry) else { return false };
        let key = self.buckets.nats().names().key(Bucket::Schedulers, self.instance.as_str());
        let draft = Draft::new(key, value).ttl(TTL);
        let sent = Uptime::now();
        match self.buckets.publisher().publish_within(draft, 2 * EVERY).await {
            Ok(_) => {
                self.standing.renewed(sent);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "The heartbeat is not stored; it is tried again.");
                false
            }
        }
    }

    async fn look(&self, shutdown: &CancellationToken) {
        let mut watch = Watch::start(&self.buckets, Bucket::Schedulers, "*", shutdown);
        let mut view = View::new(TTL);
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = tick.tick() => view.look(self.standing.holds()),
                () = shutdown.cancelled() => return,
                change = watch.next() => match change {
                    Some(Change::Entry(entry)) => {
                        if *entry.key == *self.instance.as_str() {
                            self.compare_clocks(entry.value.as_deref(), entry.created);
                        }
                        if let Ok(instance) = Instance::new(&entry.key) {
                            view.heard(instance, entry.value.is_some());
                        }
                    }
                    Some(Change::Ready) => {}
                    None => return,
                },
            }
            let seen = Members::new(view.members().cloned());
            self.members.send_if_modified(|known| {
                let changed = *known != seen;
                *known = seen;
                changed
            });
        }
    }

    /// Compares this clock with the server's, by the time at which the server stored a heartbeat.
    fn compare_clocks(&self, beat: Option<&[u8]>, stored: DateTime<Utc>) {
        let entry = beat.and_then(|beat| serde_json::from_slice::<SchedulerEntry>(beat).ok());
        let Some(sent) = entry.and_then(|entry| entry.sent_at) else { return };
        let apart = (stored - sent).abs().to_std().unwrap_or_default();
        let agree = self.clock_tolerance.is_none_or(|tolerance| apart <= tolerance);
        if self.standing.clocks_agree(agree) != agree {
            match agree {
                true => tracing::info!("This machine's clock agrees with the NATS server's again."),
                false => tracing::error!(
                    ?apart,
                    "This machine's clock and the NATS server's are too far apart: this scheduler does not fire until they agree. Set the clocks."
                ),
            }
        }
    }
}
