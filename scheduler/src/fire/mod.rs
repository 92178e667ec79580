//! One fire, from its lock to its fired record (ARCHITECTURE, the way of a fire).
//!
//! *Invariants.* Nothing is dispatched before the lock is held, and the lock holds the whole
//! intent. A fire is over when its fired record is stored, not earlier. Only a definite answer of
//! the server refuses a dispatch; after a time-out it is tried again.
//!
//! A fire's future is as large as the largest way through it, and thousands are made and moved a
//! second: ways that few fires take are boxed.

mod among;
mod complete;
mod dispatch;
mod look;
mod place;
mod previous;
mod record;
mod records;
mod waiting;

use std::sync::Arc;
use std::time::Duration;

use async_nats::connection::State;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use taskparty_common::fire::{FireId, Intent, Plan, Skipped};
use taskparty_common::name::Instance;
use taskparty_common::outcome::Trigger;
use taskparty_nats::bucket::{BucketError, Buckets};
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::Nats;
use taskparty_nats::fail_point;
use taskparty_nats::join::Joiner;
use taskparty_nats::lock::{self, Locks, Take};
use taskparty_nats::publish::{PublishError, Publisher};
use taskparty_nats::topology::Topology;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::complete::send_by;
pub(crate) use self::look::Looks;
pub(crate) use self::place::More;
use self::place::asks_for_place;
use self::record::{Begun, Hand, Stopped};
pub(crate) use self::records::Records;
pub(crate) use self::waiting::Waiting;
use crate::alarm::Alarms;
use crate::definition::Definition;
use crate::engine::Accounted;
use crate::overlap::Queues;
use crate::registry::Registry;
use crate::route::{Certainty, Router};

/// Everything that firing touches. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Firing {
    pub(crate) buckets: Buckets,
    pub(crate) joiner: Joiner,
    pub(crate) locks: Locks,
    pub(crate) queues: Queues,
    pub(crate) topology: Topology,
    pub(crate) looks: Looks,
    pub(crate) records: Records,
    pub(crate) waiting: Waiting,
    /// Retries that are gone on with side by side, each for as long as a lease.
    pub(crate) retries: Arc<Semaphore>,
    pub(crate) alarms: Alarms,
    pub(crate) registry: Registry,
    pub(crate) router: Router,
    pub(crate) clock: Clock,
    pub(crate) instance: Instance,
    /// How long an executor holds a dispatch without extending it.
    pub(crate) lease: Duration,
    pub(crate) shutdown: CancellationToken,
}

/// A fire that is to be made.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) id: FireId,
    pub(crate) run: Uuid,
    pub(crate) definition: Arc<Definition>,
    pub(crate) trigger: Trigger,
    /// The nominal instant, or the trigger's.
    pub(crate) fire_time: DateTime<Utc>,
    /// What is to be dispatched; its executors are chosen before the lock is taken.
    pub(crate) plan: Plan,
    /// The only executor that may run it, whatever the route.
    pub(crate) instance: Option<Instance>,
    pub(crate) skipped: Option<Skipped>,
    pub(crate) params: Option<Box<RawValue>>,
    /// How far away the next fire is, for the life of the lock; nothing when there is none.
    pub(crate) until_next: Option<Duration>,
    /// Until when the lock is worth taking; later, the fire must be decided again.
    pub(crate) decided_until: Option<DateTime<Utc>>,
    /// Of a record of several instants: those that are accounted for otherwise.
    pub(crate) accounted: Option<Accounted>,
}

/// How a fire went.
#[derive(Debug)]
pub(crate) enum Fire {
    /// Its fired record is stored.
    Recorded(Recorded),
    /// Somebody has the lock, with this intent, and it is not recorded yet.
    Held(Box<Held>),
    /// It was to be a record of several instants, and others have locked these of them: without them
    /// it must be decided again.
    Locked(Vec<Held>),
    /// It is not known to be locked, and must be decided again.
    Undecided,
}

/// A fire whose fired record is stored.
#[derive(Debug)]
pub(crate) struct Recorded {
    /// When it was dispatched; nothing when it was not.
    pub(crate) dispatched_at: Option<DateTime<Utc>>,
}

/// A lock that was found, and its intent.
#[derive(Debug)]
pub(crate) struct Held {
    pub(crate) id: FireId,
    pub(crate) intent: Intent,
    /// When the server stored it.
    pub(crate) stored_at: DateTime<Utc>,
}

impl Firing {
    pub(crate) fn nats(&self) -> &Nats {
        self.buckets.nats()
    }

    pub(crate) fn publisher(&self) -> &Publisher {
        self.buckets.publisher()
    }

    /// Chooses executors, takes the lock, and then does what the fire is for.
    pub(crate) async fn fire(&self, request: Request) -> Fire {
        let plan = self.route(&request).await;
        let intent = self.intent_of(&request, plan);
        let Ok(value) = written(&intent, intent.definition.get().len()) else {
            tracing::error!(fire = %request.id, "The intent of a fire cannot be written; the fire is lost.");
            return Fire::Undecided;
        };
        fail_point!("fire.before_look");
        match self.locked_by_others(&request).await {
            Ok(locked) if locked.is_empty() => {}
            Ok(locked) => return Fire::Locked(locked),
            Err(error) => {
                tracing::warn!(fire = %request.id, %error, "The locks of missed instants cannot be read; it is tried again.");
                return Fire::Undecided;
            }
        }
        fail_point!("fire.before_lock");
        let asked = Instant::now();
        match self.lock(&request, value).await {
            Some(Take::Taken { .. }) => {}
            Some(Take::Held(lock::Held { value, stored_at, .. })) => {
                return match serde_json::from_slice(&value) {
                    Ok(intent) => Fire::Held(Box::new(Held { id: request.id, intent, stored_at })),
                    Err(error) => {
                        tracing::error!(fire = %request.id, %error, "A lock holds something that is no intent.");
                        Fire::Undecided
                    }
                };
            }
            None => return Fire::Undecided,
        }
        fail_point!("fire.after_lock");
        let begun = Begun {
            done: &[],
            send_by: send_by(&request.id, &intent, &request.definition),
            known_at: asked,
            hand: Hand::First,
        };
        match self.carry_out(&request.id, &intent, &request.definition, begun).await {
            Ok(recorded) => Fire::Recorded(recorded),
            Err(Stopped::Over) => {
                let stored_at = intent.planned_at;
                Fire::Held(Box::new(Held { id: request.id, intent, stored_at }))
            }
            Err(Stopped::Interrupted) => Fire::Undecided,
        }
    }

    /// Tries for the lock until there is an answer, the decision is too old, or the node ends.
    async fn lock(&self, request: &Request, value: Bytes) -> Option<Take> {
        let key = request.id.lock_key();
        let life = lock::life(request.until_next);
        loop {
            // What is sent while disconnected leaves on reconnect, when it may be too late.
            let connected = self.nats().client().connection_state() == State::Connected;
            if connected && !self.waiting.any() {
                match self.locks.take(&key, value.clone(), life).await {
                    Ok(taken) => return Some(taken),
                    Err(BucketError::Write(PublishError::Full(text))) => {
                        let message = format!(
                            "NATS has no room to store anything ({text}): nothing fires until it has. Give the servers or the account more storage; nothing is lost"
                        );
                        Box::pin(self.alarms.raise("storage_full", &message)).await;
                    }
                    Err(error) => {
                        tracing::warn!(fire = %key, %error, "A lock is not confirmed; it is tried again.");
                    }
                }
            }
            let too_old = request.decided_until.is_some_and(|until| self.clock.now() > until);
            if too_old || self.pause().await.is_err() {
                return None;
            }
        }
    }

    /// The plan of a request with its executors; nobody is chosen for what does not run.
    async fn route(&self, request: &Request) -> Plan {
        let (spec, plan) = (request.definition.spec(), request.plan.clone());
        if request.skipped.is_some() {
            return plan;
        }
        if let Some(only) = &request.instance {
            return pinned_to(only, plan);
        }
        let certainty = if asks_for_place(spec, &plan) { Certainty::Open } else { Certainty::Sure };
        self.router.route(spec, request.run, plan, certainty).await
    }

    fn intent_of(&self, request: &Request, plan: Plan) -> Intent {
        let definition = &request.definition;
        Intent {
            v: 1,
            run: request.run,
            job: definition.spec().id.clone(),
            revision: definition.revision,
            since: definition.since(),
            owner: self.instance.clone(),
            trigger: request.trigger,
            fire_time: request.fire_time,
            planned_at: self.clock.now(),
            plan,
            instance: request.instance.clone(),
            skipped: request.skipped.clone(),
            definition: definition.json.as_ref().to_owned(),
            params: request.params.clone(),
        }
    }

    /// Waits a little before something is tried again; an error when the node ends.
    pub(crate) async fn pause(&self) -> Result<(), ()> {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(200)) => Ok(()),
            () = self.shutdown.cancelled() => Err(()),
        }
    }
}

/// What a message of a fire takes beside the definition or the params that it carries.
const FRAME: usize = 768;

/// A message of a fire, which carries texts of `carried` bytes: in one piece from the beginning, not
/// copied from one that is too small into the next.
fn written(message: &impl Serialize, carried: usize) -> Result<Bytes, serde_json::Error> {
    let mut text = Vec::with_capacity(FRAME + carried);
    serde_json::to_writer(&mut text, message)?;
    Ok(text.into())
}

/// Everything for that executor, and for nobody else.
fn pinned_to(only: &Instance, plan: Plan) -> Plan {
    let targets = plan.shards().map(|_| only.clone()).collect();
    Plan { targets, pinned: true, ..plan }
}
