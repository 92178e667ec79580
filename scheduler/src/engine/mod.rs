//! The engine: decides when each job is due, and has its fires made.
//!
//! One task owns the places of all jobs and one timer; the fires themselves are made side by side,
//! as many as there is room for. *Invariants.* A job's instants are decided in order. What is late
//! beyond its grace is caught up with one instant at a time a job, and only in room of its own, so
//! that it never holds up what is due now. The engine decides nothing while it may be blind: while
//! nothing was heard of the jobs bucket.

mod catch_up;
mod decide;
mod follow;
mod lagging;
mod lateness;
mod loaded;
mod ownership;
mod queues;
mod scheduled;
mod step;
mod take_over;
mod timer;
mod watermark;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use taskparty_common::dispatch::Lateness;
use taskparty_common::name::{Instance, JobId};
use taskparty_nats::bucket::Watch;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use self::catch_up::CatchUp;
use self::lagging::Lagging;
use self::lateness::Recent;
use self::loaded::Loaded;
pub(crate) use self::ownership::Members;
use self::queues::Waiting;
use self::scheduled::Scheduled;
pub(crate) use self::step::{Accounted, OLDEST, ON_ITS_WAY, spread_of};
use self::take_over::TakeOver;
use self::timer::Timer;
use self::watermark::{UnderWay, Unhandled};
use crate::cursor::{Confirmed, Marks};
use crate::fire::{Fire, Firing, More};
use crate::jobs::Jobs;
use crate::membership::Standing;
use crate::recover::{Past, Recovered};

/// Fires that are made side by side.
const MOST_UNDER_WAY: usize = 4096;

/// A sleep is never longer, so that a stepped clock or a machine that slept is noticed.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// A scheduler that has not heard of the jobs bucket for this long does not fire.
const BLIND_AFTER: Duration = Duration::from_secs(4);

/// How often a scheduler that may not fire looks whether it may again.
const LOOK: Duration = Duration::from_millis(200);

/// How often the watermark is worked out and what others hold is looked after.
const TICK: Duration = Duration::from_secs(1);

/// How far the engine is, for the heartbeat and the cursor; nothing until it knows all jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The revision of the jobs bucket that fires go by.
    pub(crate) jobs_revision: u64,
    /// How many jobs are fired.
    pub(crate) jobs: u64,
    /// The instant up to which everything is handled, in milliseconds, but of the jobs that lag and
    /// have cursors of their own.
    pub(crate) watermark_ms: i64,
    /// How often the watermark was moved back to take jobs over.
    pub(crate) take_overs: u64,
    /// Where those cursors are, and which are no longer needed.
    pub(crate) cursors: Arc<Marks>,
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
    /// Half-done fires that are through, and whether each has its fired record; and those that are not.
    Completed(Vec<(catch_up::Open, bool)>, catch_up::Completing),
    Recovered(Box<Recovered>),
    /// The past of jobs that lag was read.
    LookedUp(Box<Past>),
    /// The waiting runs of a job were looked after.
    LookedAfter(JobId, More),
    Interrupted,
}

/// What the engine is tied to: the tasks that take part for it, and write its watermark.
#[derive(Debug)]
pub(crate) struct Ties {
    /// How far the engine is.
    pub(crate) progress: watch::Sender<Option<Progress>>,
    /// The schedulers that have gone and whose watermarks the engine has started from.
    pub(crate) walked: watch::Sender<BTreeSet<Instance>>,
    /// What is stored of that.
    pub(crate) stored: watch::Receiver<Option<Confirmed>>,
    /// The live schedulers.
    pub(crate) members: watch::Receiver<Members>,
    /// Whether this one may fire.
    pub(crate) standing: Standing,
}

pub(crate) struct Engine {
    /// Shared with the tasks that make fires.
    firing: Arc<Firing>,
    /// Every job, whoever fires it.
    jobs: Jobs,
    /// The jobs that this member fires.
    scheduled: Timer<Scheduled>,
    /// Every job that was there at the start, until the first are taken over.
    loaded: Loaded,
    under_way: UnderWay,
    catch_up: CatchUp,
    lagging: Lagging,
    waiting: Waiting,
    tasks: JoinSet<Happening>,
    late: Recent,
    jobs_revision: u64,
    /// Every job that was there at the start is known: before that there is no watermark.
    ready: bool,
    members: Members,
    /// This scheduler was cut off since it took over its jobs: it does not fire them.
    cut_off: bool,
    /// How often its heartbeat had lapsed when that was last looked at.
    lapses: u64,
    take_over: TakeOver,
    /// How often jobs were taken over.
    take_overs: u64,
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
            firing: Arc::new(firing),
            jobs,
            scheduled: Timer::default(),
            loaded: Loaded::new(start),
            under_way: UnderWay::default(),
            catch_up: CatchUp::default(),
            lagging: Lagging::default(),
            waiting: Waiting::default(),
            tasks: JoinSet::new(),
            late: Recent::default(),
            jobs_revision,
            ready: false,
            members: Members::default(),
            cut_off: true,
            lapses: 0,
            take_over: TakeOver::default(),
            take_overs: 0,
            floor_ms: Some(start.timestamp_millis()),
            ties,
        }
    }

    /// Fires until the node ends; then waits for what is under way, for at most `drain`.
    pub(crate) async fn run(mut self, mut watch: Watch, mut overlap: Watch, drain: Duration) {
        let shutdown = self.firing.shutdown.clone();
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let liveness = watch.liveness();
        let (mut members, mut stored) = (self.ties.members.clone(), self.ties.stored.clone());
        loop {
            self.look_at_standing();
            let may_fire = !self.cut_off && liveness.silent_for() < BLIND_AFTER;
            let wake = self.wake_at(may_fire);
            tokio::select! {
                biased;
                () = shutdown.cancelled() => break,
                change = watch.next() => match change {
                    Some(change) => self.take_in(change),
                    None => break,
                },
                Some(change) = overlap.next() => self.places_changed(change),
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
                    self.waiting.open().iter().for_each(|job| self.look_after_waiting(job));
                    self.look_at_lagging();
                    self.report();
                }
                () = sleep_until(wake), if self.has_room() => {
                    // Much may have happened during the sleep, to this process too.
                    self.look_at_standing();
                    if may_fire && !self.cut_off {
                        self.fire_due();
                        self.look_after_rated();
                    }
                }
            }
        }
        self.drain(drain).await;
    }

    fn has_room(&self) -> bool {
        self.tasks.len() < MOST_UNDER_WAY
    }

    /// Whether this scheduler is a member now, and its clock is right.
    fn is_inside(&self) -> bool {
        self.ties.standing.may_fire() && self.members.has(&self.firing.instance)
    }

    fn owns(&self, job: &JobId) -> bool {
        self.members.owner(job) == Some(&self.firing.instance)
    }

    /// When the engine has something to do by itself.
    fn wake_at(&self, may_fire: bool) -> Instant {
        let due = [self.scheduled.next_due(), self.waiting.next_due()].into_iter().flatten().min();
        let wait = match due {
            _ if !may_fire => LOOK,
            Some(due) => {
                let wait = due.saturating_sub(self.firing.clock.now_ms()).max(0);
                Duration::from_millis(u64::try_from(wait).unwrap_or(0)).min(LONGEST_SLEEP)
            }
            None => LONGEST_SLEEP,
        };
        Instant::now() + wait
    }

    fn report(&mut self) {
        if !self.ready {
            return;
        }
        let now_ms = self.firing.clock.now_ms();
        let lagging = &self.lagging;
        let watermark_ms = self.unhandled().watermark(|job| lagging.has_cursor(job), now_ms);
        let progress = Progress {
            jobs_revision: self.jobs_revision,
            jobs: self.scheduled.len() as u64,
            watermark_ms: self.floor_ms.map_or(watermark_ms, |floor| floor.min(watermark_ms)),
            take_overs: self.take_overs,
            cursors: self.lagging.marks(),
            late: self.late.of_last_minute(now_ms),
        };
        self.ties.progress.send_if_modified(|known| {
            let changed = known.as_ref() != Some(&progress);
            *known = Some(progress);
            changed
        });
    }

    fn unhandled(&self) -> Unhandled<'_, Scheduled> {
        Unhandled { under_way: &self.under_way, timer: &self.scheduled }
    }
}
