//! The engine: decides when each job is due, and has its fires made.
//!
//! One task owns the places of all jobs and one timer; the fires themselves are made side by side,
//! as many as there is room for. *Invariants.* A job's instants are decided in order. What is late
//! beyond its grace is caught up with one instant at a time a job, and only in room of its own, so
//! that it never holds up what is due now. The engine decides nothing while it may be blind: while
//! nothing was heard of the jobs bucket.

mod catch_up;
mod lateness;
mod ownership;
mod scheduled;
mod step;
mod take_over;
mod timer;
mod watermark;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use taskparty_common::dispatch::Lateness;
use taskparty_common::fire::{FireId, Plan};
use taskparty_common::name::{Instance, JobId};
use taskparty_nats::bucket::{self, Watch};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::catch_up::CatchUp;
use self::lateness::Recent;
pub(crate) use self::ownership::Members;
use self::scheduled::{Scheduled, due_of};
pub(crate) use self::step::Accounted;
use self::step::Step;
pub(crate) use self::step::spread_of;
use self::take_over::TakeOver;
use self::timer::Timer;
use self::watermark::UnderWay;
use crate::definition::Definition;
use crate::fire::{Fire, Firing, Held, Request};
use crate::jobs::{Change, Jobs};
use crate::membership::Standing;
use crate::recover::{self, Recovered};

/// Fires that are made side by side.
const MOST_UNDER_WAY: usize = 4096;

/// Jobs that are decided in one go, before the engine listens again.
const AT_ONCE: usize = 512;

/// A sleep is never longer, so that a stepped clock or a machine that slept is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// A scheduler that has not heard of the jobs bucket for this long does not fire.
const BLIND_AFTER: Duration = Duration::from_secs(4);

/// How often a scheduler that may not fire looks whether it may again.
const LOOK: Duration = Duration::from_millis(200);

/// How often the watermark is worked out and what others hold is looked after.
const TICK: Duration = Duration::from_secs(1);

/// How far the engine is, for the heartbeat and the cursor; nothing until it knows all jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The revision of the jobs bucket that fires go by.
    pub(crate) jobs_revision: u64,
    /// How many jobs are fired.
    pub(crate) jobs: u64,
    /// The instant up to which everything is handled, in milliseconds.
    pub(crate) watermark_ms: i64,
    /// How late the fires of the last minute were.
    pub(crate) late: Option<Lateness>,
}

/// A fire that was made, or not.
struct Done {
    job: JobId,
    /// The start of the past of the job that was fired: a later one does not know this instant.
    since: DateTime<Utc>,
    at: DateTime<Utc>,
    due_ms: i64,
    catching_up: bool,
    fire: Fire,
}

/// What happens to the engine.
enum Happening {
    Fired(Box<Done>),
    Completed(Vec<catch_up::Open>, bool),
    Recovered(Box<Recovered>),
    Interrupted,
}

/// What the engine is tied to: the tasks that take part for it, and write its watermark.
#[derive(Debug)]
pub(crate) struct Ties {
    /// How far the engine is.
    pub(crate) progress: watch::Sender<Option<Progress>>,
    /// The schedulers that have gone and whose watermarks the engine has started from.
    pub(crate) walked: watch::Sender<BTreeSet<Instance>>,
    /// The last watermark that is stored.
    pub(crate) stored: watch::Receiver<Option<i64>>,
    /// The live schedulers.
    pub(crate) members: watch::Receiver<Members>,
    /// Whether this one may fire.
    pub(crate) standing: Standing,
}

pub(crate) struct Engine {
    firing: Firing,
    /// Every job, whoever fires it.
    jobs: Jobs,
    /// The jobs that this member fires.
    scheduled: HashMap<JobId, Scheduled>,
    timer: Timer,
    under_way: UnderWay,
    catch_up: CatchUp,
    tasks: JoinSet<Happening>,
    late: Recent,
    jobs_revision: u64,
    /// Every job that was there at the start is known: before that there is no watermark.
    ready: bool,
    members: Members,
    take_over: TakeOver,
    /// While jobs are taken over the watermark stays here.
    floor_ms: Option<i64>,
    ties: Ties,
}

impl Engine {
    /// An engine that fires this member's share of `jobs`, which it fills from a watch of the jobs
    /// bucket that begins at `jobs_revision` or later. Until it is a member, its watermark is
    /// `start`: the earliest of all.
    pub(crate) fn new(
        firing: Firing,
        jobs: Jobs,
        jobs_revision: u64,
        start: DateTime<Utc>,
        ties: Ties,
    ) -> Self {
        Self {
            firing,
            jobs,
            scheduled: HashMap::new(),
            timer: Timer::default(),
            under_way: UnderWay::default(),
            catch_up: CatchUp::default(),
            tasks: JoinSet::new(),
            late: Recent::default(),
            jobs_revision,
            ready: false,
            members: Members::default(),
            take_over: TakeOver::Outside,
            floor_ms: Some(start.timestamp_millis()),
            ties,
        }
    }

    /// Fires until the node ends; then waits for what is under way, for at most `drain`.
    pub(crate) async fn run(mut self, mut watch: Watch, drain: Duration) {
        let shutdown = self.firing.shutdown.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let liveness = watch.liveness();
        let (mut members, mut stored) = (self.ties.members.clone(), self.ties.stored.clone());
        loop {
            let may_fire = liveness.silent_for() < BLIND_AFTER && self.may_fire();
            let wake = self.wake_at(may_fire);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                change = watch.next() => match change {
                    Some(change) => self.take_in(change),
                    None => break,
                },
                Some(happening) = self.tasks.join_next(), if !self.tasks.is_empty() => {
                    self.happened(happening);
                }
                Ok(()) = members.changed() => {
                    let now = members.borrow_and_update().clone();
                    self.membership_changed(now);
                }
                Ok(()) = stored.changed() => self.confirmed(),
                _ = tick.tick() => {
                    self.look_after_held();
                    self.report();
                }
                () = sleep_until(wake), if self.has_room() => {
                    self.look_at_standing();
                    if may_fire {
                        self.fire_due();
                    }
                }
            }
        }
        self.drain(drain).await;
    }

    fn has_room(&self) -> bool {
        self.tasks.len() < MOST_UNDER_WAY
    }

    /// Whether this scheduler is a member, and its clock is right.
    fn may_fire(&self) -> bool {
        !matches!(self.take_over, TakeOver::Outside)
            && self.ties.standing.may_fire()
            && self.members.has(&self.firing.instance)
    }

    fn owns(&self, job: &JobId) -> bool {
        self.members.owner(job) == Some(&self.firing.instance)
    }

    /// When the engine has something to do by itself.
    fn wake_at(&self, may_fire: bool) -> Instant {
        let wait = match self.timer.next_due() {
            _ if !may_fire => LOOK,
            Some(due) => {
                let wait = due.saturating_sub(self.firing.clock.now_ms()).max(0);
                Duration::from_millis(u64::try_from(wait).unwrap_or(0)).min(LONGEST_SLEEP)
            }
            None => LONGEST_SLEEP,
        };
        Instant::now() + wait
    }

    fn take_in(&mut self, change: bucket::Change) {
        let bucket::Change::Entry(entry) = change else {
            self.ready = true;
            self.report();
            return;
        };
        match self.jobs.take_in(&entry.key, entry.revision, entry.value.as_ref()) {
            Change::Saved(definition) => self.saved(definition),
            Change::Gone(job) => self.give_up(&job),
            Change::Nothing => {}
        }
        self.jobs_revision = self.jobs_revision.max(entry.revision);
        self.report();
    }

    /// A job is new, or has changed.
    fn saved(&mut self, definition: Arc<Definition>) {
        let job = definition.spec().id.clone();
        // While jobs are taken over, those that are not fired yet get their places together.
        let mine = matches!(self.take_over, TakeOver::Settled) && self.owns(&job);
        match self.scheduled.get_mut(&job) {
            Some(known) if known.definition().since() == definition.since() => {
                known.redefine(definition);
            }
            Some(_) => self.begin(definition),
            None if mine => self.begin(definition),
            None => return,
        }
        self.arm(&job);
    }

    /// Begins to fire a job whose past is new.
    fn begin(&mut self, definition: Arc<Definition>) {
        let watermark = self.ties.progress.borrow().map(|progress| progress.watermark_ms);
        let watermark = watermark.and_then(DateTime::from_timestamp_millis);
        let place = recover::place(&definition, watermark.unwrap_or(DateTime::<Utc>::MIN_UTC));
        self.scheduled
            .insert(definition.spec().id.clone(), Scheduled::new(definition, place, None));
    }

    /// Fires a job no more: it is gone, or another member's.
    fn give_up(&mut self, job: &JobId) {
        self.scheduled.remove(job);
        self.timer.remove(job);
        if let Some(due) = self.catch_up.forget(job) {
            self.under_way.end(due);
        }
    }

    /// Sets the timer of `job` to its next instant, unless a missed one is being fired.
    fn arm(&mut self, job: &JobId) {
        let Some(scheduled) = self.scheduled.get_mut(job) else { return };
        // What is being taken over fires when the watermark is stored.
        if scheduled.catching_up || self.take_over.waits_for(job) {
            return;
        }
        match scheduled.next_due() {
            Some(due) => self.timer.set(job, due.timestamp_millis()),
            None => self.timer.remove(job),
        }
    }

    fn fire_due(&mut self) {
        let now = self.firing.clock.now();
        for _ in 0..AT_ONCE {
            if !self.has_room() {
                return;
            }
            let Some(job) = self.timer.pop_due(now.timestamp_millis()) else { return };
            self.decide(&job, now);
        }
    }

    /// Decides the next step of `job` and has it made.
    fn decide(&mut self, job: &JobId, now: DateTime<Utc>) {
        let Some(scheduled) = self.scheduled.get_mut(job) else { return };
        let Some(step) = scheduled.decide(now) else {
            self.arm(job);
            return;
        };
        let definition = scheduled.definition().clone();
        let due_ms = due_of(&step, &definition).timestamp_millis();
        let late = step.trigger == taskparty_common::outcome::Trigger::Misfire;
        scheduled.catching_up = late;
        self.under_way.begin(due_ms);
        let done = catch_up::Due { job: job.clone(), step, definition, due_ms, late };
        if !late {
            self.make(done);
            self.arm(job);
        } else if let Some(done) = self.catch_up.admit(done) {
            self.make(done);
        }
    }

    fn make(&mut self, due: catch_up::Due) {
        let firing = self.firing.clone();
        self.tasks.spawn(async move {
            let catch_up::Due { job, step, definition, due_ms, late } = due;
            let (since, at) = (definition.since(), step.at);
            let request = request(&firing, job.clone(), step, definition);
            let fire = firing.fire(request).await;
            Happening::Fired(Box::new(Done { job, since, at, due_ms, catching_up: late, fire }))
        });
    }

    fn happened(&mut self, happening: Result<Happening, tokio::task::JoinError>) {
        match happening {
            Ok(Happening::Fired(done)) => self.fired(*done),
            Ok(Happening::Completed(open, true)) => {
                for open in open {
                    self.over(&open.job, open.since, open.at, open.due_ms);
                }
            }
            Ok(Happening::Completed(open, false)) => self.catch_up.hold(open, Instant::now()),
            Ok(Happening::Recovered(recovered)) => self.recovered(*recovered),
            Ok(Happening::Interrupted) => {}
            Err(error) => {
                // A panic is a defect of ours. Its instant stays under way, which holds the
                // watermark back: whoever starts next completes it.
                tracing::error!(%error, "A fire panicked.");
            }
        }
    }

    fn fired(&mut self, done: Done) {
        let Done { job, since, at, due_ms, catching_up, fire } = done;
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
            Fire::Held(held) => {
                let open = catch_up::Open { job: job.clone(), since, at, due_ms, held: *held };
                self.catch_up.hold(vec![open], Instant::now());
            }
            Fire::Undecided => {
                self.under_way.end(due_ms);
                if let Some(scheduled) = self.known(&job, since) {
                    scheduled.undecided(at);
                }
            }
        }
        if let Some(scheduled) = self.known(&job, since) {
            scheduled.catching_up &= !catching_up;
        }
        self.arm(&job);
    }

    /// The fired record of an instant is stored, by whomever.
    fn over(&mut self, job: &JobId, since: DateTime<Utc>, at: DateTime<Utc>, due_ms: i64) {
        self.under_way.end(due_ms);
        if let Some(scheduled) = self.known(job, since) {
            scheduled.recorded(at);
        }
    }

    fn known(&mut self, job: &JobId, since: DateTime<Utc>) -> Option<&mut Scheduled> {
        self.scheduled.get_mut(job).filter(|scheduled| scheduled.definition().since() == since)
    }

    /// Completes what others have locked and not recorded in time.
    fn look_after_held(&mut self) {
        let open = self.catch_up.overdue(Instant::now());
        if !open.is_empty() {
            let firing = self.firing.clone();
            self.tasks.spawn(async move {
                let held: Vec<&Held> = open.iter().map(|open| &open.held).collect();
                let complete = firing.complete(&held).await;
                Happening::Completed(open, complete)
            });
        }
    }

    fn report(&mut self) {
        if !self.ready {
            return;
        }
        let now_ms = self.firing.clock.now_ms();
        let watermark_ms = self.under_way.watermark(self.timer.next_due(), now_ms);
        let progress = Progress {
            jobs_revision: self.jobs_revision,
            jobs: self.scheduled.len() as u64,
            watermark_ms: self.floor_ms.map_or(watermark_ms, |floor| floor.min(watermark_ms)),
            late: self.late.of_last_minute(now_ms),
        };
        self.ties.progress.send_if_modified(|known| known.replace(progress) != Some(progress));
    }

    async fn drain(&mut self, within: Duration) {
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
        self.report();
    }

    /// As [`Engine::happened`], but nothing new begins.
    fn happened_at_the_end(&mut self, happening: Result<Happening, tokio::task::JoinError>) {
        if let Ok(Happening::Fired(done)) = happening
            && matches!(done.fire, Fire::Recorded(_))
        {
            self.over(&done.job, done.since, done.at, done.due_ms);
        }
    }
}

/// The fire for a step.
fn request(firing: &Firing, job: JobId, step: Step, definition: Arc<Definition>) -> Request {
    let id = FireId::at(job, step.at);
    let run =
        id.run(firing.nats().names().prefix(), definition.since().timestamp_millis(), step.at);
    let total = definition.spec().shards;
    let late = step.trigger == taskparty_common::outcome::Trigger::Misfire;
    let grace = TimeDelta::from_std(definition.spec().misfire.grace).unwrap_or(TimeDelta::MAX);
    let due = due_of(&step, &definition);
    let next = step::next_instant(&definition.job, step.at, &Accounted::default());
    Request {
        id,
        run,
        trigger: step.trigger,
        fire_time: step.at,
        plan: Plan { total, only: None, attempt: 1 },
        skipped: step.skipped,
        params: None,
        until_next: next.and_then(|next| (next - step.at).to_std().ok()),
        decided_until: if late { None } else { due.checked_add_signed(grace) },
        definition,
    }
}
