//! Following up: what became of the fires that were made.

use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::StreamExt;
use taskparty_common::name::JobId;
use tokio::task::JoinError;
use tokio::time::{Instant, sleep_until};

use super::catch_up::{Completing, Open};
use super::scheduled::Scheduled;
use super::{Done, Engine, Happening};
use crate::fire::{Fire, Held};

/// Completed fires that are taken in together, when as many are through.
const AT_ONCE: usize = 64;

impl Engine {
    pub(super) fn happened(&mut self, happening: Result<Happening, JoinError>) {
        match happening {
            Ok(Happening::Fired(done)) => self.fired(*done),
            Ok(Happening::Completed(through, others)) => self.completed(through, others),
            Ok(Happening::Recovered(recovered)) => self.recovered(*recovered),
            Ok(Happening::LookedUp(past)) => self.looked_up(*past),
            Ok(Happening::LookedAfter(job, more)) => self.looked_after(&job, more),
            Ok(Happening::Interrupted) => {}
            Err(error) => {
                // A panic is a defect of ours. Its instant stays under way, which holds the
                // watermark back: whoever starts next completes it.
                tracing::error!(%error, "A fire panicked.");
            }
        }
    }

    pub(super) fn fired(&mut self, done: Done) {
        let Done { job, since, at, due_ms, catching_up, fire } = done;
        // Else it is armed since it was decided.
        let to_arm = catching_up || matches!(fire, Fire::Undecided | Fire::Locked(_));
        if catching_up && let Some(next) = self.catch_up.release() {
            self.make(next);
        }
        match fire {
            Fire::Recorded(recorded) => {
                if let Some(at) = recorded.dispatched_at {
                    let late = at.timestamp_millis() - due_ms;
                    self.late.add(at.timestamp_millis(), u64::try_from(late).unwrap_or(0));
                }
                self.over(&job, since, at, due_ms);
            }
            // Its completion is under way: that ends this one, too.
            Fire::Held(held) if self.catch_up.looks_after(&held.id) => {
                self.under_way.end(&job, due_ms)
            }
            Fire::Held(held) => {
                let open = Open { job: job.clone(), since, at, due_ms, held: *held };
                self.catch_up.hold(vec![open], Instant::now());
            }
            Fire::Locked(all) => {
                self.undecided(&job, since, at, due_ms);
                if let Some(scheduled) = self.known(&job, since) {
                    scheduled.locked(&all.iter().map(|held| &held.intent).collect::<Vec<_>>());
                    self.hold_all(all);
                }
            }
            Fire::Undecided => self.undecided(&job, since, at, due_ms),
        }
        if catching_up && let Some(scheduled) = self.known(&job, since) {
            scheduled.caught_up();
        }
        if to_arm {
            self.arm(&job);
        }
    }

    /// An instant has to be decided again. *Invariant: it stays under way until the timer has it*:
    /// while its job catches up with another one that is later.
    fn undecided(&mut self, job: &JobId, since: DateTime<Utc>, at: DateTime<Utc>, due_ms: i64) {
        let decided_here = self.known(job, since).is_some_and(|known| known.undecided(at, due_ms));
        if !decided_here {
            self.under_way.end(job, due_ms);
        }
    }

    /// Others have locked these: they have a while.
    fn hold_all(&mut self, all: Vec<Held>) {
        for held in all {
            if self.catch_up.looks_after(&held.id) {
                continue;
            }
            let (job, since, at) = (held.id.job.clone(), held.intent.since, held.intent.fire_time);
            let due_ms = at.timestamp_millis();
            self.under_way.begin(&job, due_ms);
            let open = Open { job, since, at, due_ms, held };
            self.catch_up.hold(vec![open], Instant::now());
        }
    }

    /// The fired record of an instant is stored, by whomever.
    pub(super) fn over(
        &mut self,
        job: &JobId,
        since: DateTime<Utc>,
        at: DateTime<Utc>,
        due_ms: i64,
    ) {
        self.under_way.end(job, due_ms);
        if let Some(scheduled) = self.known(job, since) {
            scheduled.recorded(at);
        }
    }

    pub(super) fn known(&mut self, job: &JobId, since: DateTime<Utc>) -> Option<&mut Scheduled> {
        let scheduled = self.scheduled.get_mut(job);
        scheduled.filter(|scheduled| scheduled.job().since() == since)
    }

    /// Completes what others have locked and not recorded in time.
    pub(super) fn look_after_held(&mut self) {
        let open = self.catch_up.overdue(Instant::now());
        if !open.is_empty() {
            let each = self.firing.clone().complete_all(open);
            self.await_completed(each.ready_chunks(AT_ONCE).boxed());
        }
    }

    fn await_completed(&mut self, completing: Completing) {
        self.tasks.spawn(async move {
            let (through, others) = completing.into_future().await;
            Happening::Completed(through.unwrap_or_default(), others)
        });
    }

    /// Some are through. *Invariant: what has its fired record is over at once*, whatever becomes of
    /// the others.
    fn completed(&mut self, through: Vec<(Open, bool)>, others: Completing) {
        if through.is_empty() {
            return;
        }
        for (open, complete) in through {
            if complete {
                self.catch_up.completed(&open.held.id);
                self.over(&open.job, open.since, open.at, open.due_ms);
            } else {
                self.catch_up.hold(vec![open], Instant::now());
            }
        }
        self.await_completed(others);
    }

    pub(super) async fn drain(&mut self, within: Duration) {
        let end = Instant::now() + within;
        while !self.tasks.is_empty() {
            tokio::select! {
                Some(happening) = self.tasks.join_next() => self.happened_at_the_end(happening),
                () = sleep_until(end) => {
                    tracing::warn!(open = self.tasks.len(), "Fires were under way when the scheduler had to end; the next one completes them.");
                    self.tasks.abort_all();
                    break;
                }
            }
        }
        self.look_at_lagging();
        self.report();
    }

    /// As [`Engine::happened`], but no further fire begins.
    pub(super) fn happened_at_the_end(&mut self, happening: Result<Happening, JoinError>) {
        match happening {
            Ok(Happening::Fired(done)) if matches!(done.fire, Fire::Recorded(_)) => {
                self.over(&done.job, done.since, done.at, done.due_ms);
                if done.catching_up
                    && let Some(scheduled) = self.known(&done.job, done.since)
                {
                    scheduled.caught_up();
                }
                // The next missed instant of the job is not handled.
                self.arm(&done.job);
            }
            Ok(Happening::Completed(through, others)) => self.completed(through, others),
            _ => {}
        }
    }
}
