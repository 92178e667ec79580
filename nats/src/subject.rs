//! The names of subjects, streams, buckets and consumers: the one place that spells them.
//!
//! Everything carries the installation's prefix, so that two installations share an account
//! without meeting. Tokens go from general to specific. *Invariant: every token that comes from
//! outside is a checked name*, so nothing here can widen a subject.

use taskparty_common::name::{App, Handler, Instance, JobId, Prefix};
use taskparty_common::priority::Priority;
use uuid::Uuid;

/// The durable consumer on TRIGGERS that all schedulers pull from.
pub const SCHEDULERS: &str = "schedulers";

/// The durable consumer on RESULTS that the log writer pulls from.
pub const LOG_WRITER: &str = "log-writer";

/// What the names of consumers of pinned work begin with; the instance follows.
const ON: &str = "on_";

/// The consumer of the work that is for `instance` alone.
pub fn on_instance(instance: &Instance) -> String {
    format!("{ON}{instance}")
}

/// The consumer of the handler's work of this priority. The default has the one of the handler's own
/// name, which is no other's: no name begins with `_`.
pub fn of_priority(handler: &Handler, priority: Priority) -> String {
    if priority.is_default() { handler.to_string() } else { format!("_p{priority}_{handler}") }
}

/// The handler whose consumer this is, and of which priority; none when it is an instance's.
pub fn handler_of(consumer: &str) -> Option<(Handler, Priority)> {
    if is_on_instance(consumer) {
        return None;
    }
    let Some(rest) = consumer.strip_prefix("_p") else {
        return Some((Handler::new(consumer).ok()?, Priority::default()));
    };
    let (number, handler) = rest.split_once('_')?;
    let priority = Priority::new(number.parse().ok()?).ok()?;
    Some((Handler::new(handler).ok()?, priority))
}

/// Whether this is the consumer of some instance's work, and not of a handler's.
pub fn is_on_instance(consumer: &str) -> bool {
    consumer.starts_with(ON)
}

/// The names of one installation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Names {
    prefix: Prefix,
}

impl Names {
    /// The names under `prefix`.
    pub fn new(prefix: Prefix) -> Self {
        Self { prefix }
    }

    /// The installation's prefix.
    pub fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    /// The stream that holds the work of one app.
    pub fn dispatch_stream(&self, app: &App) -> String {
        format!("{}_DISPATCH_{app}", self.prefix.upper())
    }

    /// The app whose work a stream holds; none when it is another stream.
    pub fn app_of(&self, stream: &str) -> Option<App> {
        let app = stream.strip_prefix(&format!("{}_DISPATCH_", self.prefix.upper()))?;
        App::new(app).ok()
    }

    /// All work of all apps: what finds their streams.
    pub fn dispatches(&self) -> String {
        format!("{}.dispatch.>", self.prefix)
    }

    /// The stream of triggers, now and later.
    pub fn triggers_stream(&self) -> String {
        format!("{}_TRIGGERS", self.prefix.upper())
    }

    /// The stream of what happened: the log writer's only input.
    pub fn results_stream(&self) -> String {
        format!("{}_RESULTS", self.prefix.upper())
    }

    /// The stream of handlers' log lines.
    pub fn logs_stream(&self) -> String {
        format!("{}_LOGS", self.prefix.upper())
    }

    /// The stream of alerts.
    pub fn alerts_stream(&self) -> String {
        format!("{}_ALERTS", self.prefix.upper())
    }

    /// One dispatched attempt of one shard, for any instance that has the handler.
    pub fn dispatch(
        &self,
        app: &App,
        handler: &Handler,
        run: Uuid,
        shard: u32,
        attempt: u32,
    ) -> String {
        self.dispatch_by(app, handler, Priority::default(), (run, shard, attempt))
    }

    /// The same, where work of this priority stands: a run's shard and its attempt.
    pub fn dispatch_by(
        &self,
        app: &App,
        handler: &Handler,
        priority: Priority,
        (run, shard, attempt): (Uuid, u32, u32),
    ) -> String {
        let line = self.line(app, handler, priority);
        format!("{line}.{run}.{shard}.{attempt}")
    }

    /// Where work of a handler and a priority stands: beside the work of no priority, under a token
    /// that no handler has for its name, so that no consumer of the one sees the other.
    fn line(&self, app: &App, handler: &Handler, priority: Priority) -> String {
        if priority.is_default() {
            return format!("{}.dispatch.{app}.{handler}", self.prefix);
        }
        format!("{}.dispatch.{app}._p{priority}.{handler}", self.prefix)
    }

    /// One dispatched attempt of one shard, for this instance alone.
    pub fn direct(
        &self,
        app: &App,
        instance: &Instance,
        handler: &Handler,
        run: Uuid,
        shard: u32,
        attempt: u32,
    ) -> String {
        format!("{}.direct.{app}.{instance}.{handler}.{run}.{shard}.{attempt}", self.prefix)
    }

    /// One dispatched attempt of one shard, for whichever instance it was.
    pub fn direct_to_any(
        &self,
        app: &App,
        handler: &Handler,
        run: Uuid,
        shard: u32,
        attempt: u32,
    ) -> String {
        format!("{}.direct.{app}.*.{handler}.{run}.{shard}.{attempt}", self.prefix)
    }

    /// All work for one instance: the filter of its consumer.
    pub fn direct_of(&self, app: &App, instance: &Instance) -> String {
        format!("{}.direct.{app}.{instance}.>", self.prefix)
    }

    /// All work of a handler: the filter of its consumer.
    pub fn dispatch_of(&self, app: &App, handler: &Handler) -> String {
        self.dispatch_of_priority(app, handler, Priority::default())
    }

    /// All work of a handler and a priority: the filter of its consumer.
    pub fn dispatch_of_priority(&self, app: &App, handler: &Handler, priority: Priority) -> String {
        format!("{}.>", self.line(app, handler, priority))
    }

    /// A trigger of a job that is due now.
    pub fn trigger(&self, job: &JobId) -> String {
        format!("{}.trigger.{job}", self.prefix)
    }

    /// Every trigger that is due: the filter of the schedulers' consumer.
    pub fn triggers(&self) -> String {
        format!("{}.trigger.*", self.prefix)
    }

    /// A trigger that waits in the server for its time. `id` may hold dots.
    pub fn delay(&self, id: &str) -> String {
        format!("{}.delay.{id}", self.prefix)
    }

    /// A trigger of a job that somebody wants at a time to come. Three tokens after `delay`, so that
    /// it can never be the subject of a job's next fixed-delay run, which has two.
    pub fn delay_at(&self, job: &JobId, trigger: &str) -> String {
        self.delay(&format!("at.{job}.{trigger}"))
    }

    /// What is left of a backfill of a job, until its next step; publishing again replaces it.
    pub fn backfill_delay(&self, job: &JobId, id: &str) -> String {
        self.delay(&format!("backfill.{job}.{id}"))
    }

    /// The next run of a fixed-delay job; publishing again replaces it.
    pub fn next_delay(&self, job: &JobId) -> String {
        format!("{}.delay.next.{job}", self.prefix)
    }

    /// The trigger's results of an app's jobs.
    pub fn fired(&self, app: &App) -> String {
        format!("{}.fired.{app}", self.prefix)
    }

    /// The trigger's results of every app.
    pub fn fired_all(&self) -> String {
        format!("{}.fired.*", self.prefix)
    }

    /// Delayed triggers of an app's jobs that wait for their time.
    pub fn scheduled(&self, app: &App) -> String {
        format!("{}.scheduled.{app}", self.prefix)
    }

    /// What is asked of runs of an app's jobs: that they stop, or are tried again.
    pub fn asked(&self, app: &App) -> String {
        format!("{}.asked.{app}", self.prefix)
    }

    /// What handlers have started.
    pub fn started(&self, app: &App) -> String {
        format!("{}.started.{app}", self.prefix)
    }

    /// What handlers of every app have started.
    pub fn started_all(&self) -> String {
        format!("{}.started.*", self.prefix)
    }

    /// How far handlers are.
    pub fn progress(&self, app: &App) -> String {
        format!("{}.progress.{app}", self.prefix)
    }

    /// The handlers' results.
    pub fn result(&self, app: &App) -> String {
        format!("{}.result.{app}", self.prefix)
    }

    /// The handlers' results of every app.
    pub fn result_all(&self) -> String {
        format!("{}.result.*", self.prefix)
    }

    /// Log lines of one job's handlers.
    pub fn log(&self, app: &App, job: &JobId) -> String {
        format!("{}.log.{app}.{job}", self.prefix)
    }

    /// Alerts about a job.
    pub fn alert(&self, job: &JobId) -> String {
        format!("{}.alert.{job}", self.prefix)
    }

    /// Alerts about every job.
    pub fn alert_all(&self) -> String {
        format!("{}.alert.*", self.prefix)
    }

    /// Alerts about no job: no job can have this name.
    pub fn system_alert(&self) -> String {
        format!("{}.alert._system", self.prefix)
    }

    /// A request to stop a run.
    pub fn cancel(&self, app: &App, run: Uuid) -> String {
        format!("{}.cancel.{app}.{run}", self.prefix)
    }

    /// Every request to stop a run of an app: what an executor subscribes to.
    pub fn cancels(&self, app: &App) -> String {
        format!("{}.cancel.{app}.>", self.prefix)
    }

    /// Questions to one executor: is it there, is there room.
    pub fn probe(&self, app: &App, instance: &Instance) -> String {
        format!("{}.probe.{app}.{instance}", self.prefix)
    }

    /// An endpoint of the NATS service.
    pub fn api(&self, noun: &str, verb: &str) -> String {
        format!("{}.api.{noun}.{verb}", self.prefix)
    }

    /// A bucket's name.
    pub fn bucket(&self, bucket: Bucket) -> String {
        format!("{}_{}", self.prefix, bucket.suffix())
    }

    /// The stream behind a bucket.
    pub fn bucket_stream(&self, bucket: Bucket) -> String {
        format!("KV_{}", self.bucket(bucket))
    }

    /// The subject behind a key of a bucket.
    pub fn key(&self, bucket: Bucket, key: &str) -> String {
        format!("$KV.{}.{key}", self.bucket(bucket))
    }
}

/// The key-value buckets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bucket {
    /// Job definitions, by job.
    Jobs,
    /// The lock per fire time.
    Fires,
    /// The instants up to which schedulers have handled their jobs; and the log writer's place.
    Cursors,
    /// Who runs and who waits, by job; and the intents of those that wait, by `<job>.<run>`.
    Overlap,
    /// Who got the last runs, by job, of jobs whose route goes by that.
    Routes,
    /// Live executors, by `<app>.<instance>`.
    Executors,
    /// Live schedulers, by instance.
    Schedulers,
}

impl Bucket {
    /// Every bucket.
    pub const ALL: [Bucket; 7] = [
        Bucket::Jobs,
        Bucket::Fires,
        Bucket::Cursors,
        Bucket::Overlap,
        Bucket::Routes,
        Bucket::Executors,
        Bucket::Schedulers,
    ];

    /// The bucket's name without the prefix.
    pub fn suffix(self) -> &'static str {
        match self {
            Bucket::Jobs => "jobs",
            Bucket::Fires => "fires",
            Bucket::Cursors => "cursors",
            Bucket::Overlap => "overlap",
            Bucket::Routes => "routes",
            Bucket::Executors => "executors",
            Bucket::Schedulers => "schedulers",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_work_of_each_priority_has_a_line_and_a_consumer_of_its_own() {
        let names = Names::default();
        let (app, handler) = (App::new("shop").unwrap(), Handler::new("p0_settle").unwrap());
        let mut all = std::collections::BTreeSet::new();
        for number in 0..=Priority::MOST {
            let priority = Priority::new(number).unwrap();
            let consumer = of_priority(&handler, priority);
            assert_eq!(handler_of(&consumer), Some((handler.clone(), priority)));
            assert!(Handler::new(&consumer).is_err() || priority.is_default());
            let filter = names.dispatch_of_priority(&app, &handler, priority);
            let subject = names.dispatch_by(&app, &handler, priority, (Uuid::nil(), 0, 1));
            assert!(subject.starts_with(filter.trim_end_matches('>')));
            all.extend([consumer, filter]);
        }
        assert_eq!(all.len(), 20);
        let urgent = names.dispatch_of_priority(&app, &handler, Priority::new(0).unwrap());
        assert_eq!(urgent, "taskparty.dispatch.shop._p0.p0_settle.>");
        for other in ["on_a", "_p", "_p10_settle", "_p0settle", "_p0_", "_q0_a"] {
            assert_eq!(handler_of(other), None, "{other}");
        }
    }
}
