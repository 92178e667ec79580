//! What goes wrong, and when: worked out from a seed before anything runs.
//!
//! Pure. Every process has a lane of its own, whose faults follow each other; lanes know nothing of
//! each other, so any number of schedulers and executors can be in trouble at once. The nodes of
//! NATS share one lane. *Invariant: the same seed and length give the same faults*, and at most one
//! node of NATS is down at a time, except in a restart of all of them.

use std::fmt;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A process that can be harmed, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// A scheduler, with its log writer and its API.
    Scheduler(usize),
    /// An executor.
    Executor(usize),
    /// The nodes of NATS.
    Nats,
}

/// Which of its ways to NATS a process loses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Connections are cut and refused.
    Refused,
    /// What the process sends does not arrive, and nobody is told.
    Out,
    /// What it is sent does not arrive, and is lost when that ends.
    In,
}

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// SIGKILL; started again afterwards.
    Kill,
    /// SIGSTOP; SIGCONT afterwards.
    Freeze,
    /// SIGTERM and a good end; started again afterwards.
    Restart,
    /// A process loses its way to every node of NATS.
    CutOff(Cut),
    /// A process loses its way to one node of NATS.
    CutFrom(usize, Cut),
    /// All that a process sends and gets is late by so many milliseconds.
    Slow(u64),
    /// A scheduler's membership key is deleted by hand.
    Forget,
    /// SIGKILL for one node of NATS; started again afterwards.
    KillNode(usize),
    /// SIGSTOP for one node of NATS; SIGCONT afterwards.
    FreezeNode(usize),
    /// SIGTERM for one node of NATS, then started again.
    RestartNode(usize),
    /// All nodes of NATS end, and are started again.
    RestartAllNodes,
}

/// A fault with its place in its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// How long after the fault before it is over.
    pub wait: Duration,
    /// What goes wrong.
    pub fault: Fault,
    /// How long it lasts.
    pub lasts: Duration,
}

/// The faults of one target, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lane {
    /// Who suffers.
    pub target: Target,
    /// The faults.
    pub steps: Vec<Step>,
}

/// How many processes of each kind there are.
#[derive(Debug, Clone, Copy)]
pub struct Crowd {
    /// Schedulers.
    pub schedulers: usize,
    /// Executors.
    pub executors: usize,
    /// Nodes of NATS.
    pub nodes: usize,
}

/// What `seed` makes of `length`.
pub fn lanes(seed: u64, length: Duration, crowd: Crowd) -> Vec<Lane> {
    let schedulers = (0..crowd.schedulers).map(Target::Scheduler);
    let executors = (0..crowd.executors).map(Target::Executor);
    let targets = schedulers.chain(executors).chain([Target::Nats]);
    targets
        .map(|target| {
            let number = match target {
                Target::Nats => 0,
                Target::Scheduler(number) => 100 + number as u64,
                Target::Executor(number) => 200 + number as u64,
            };
            // A lane's faults do not change with how many other lanes there are.
            let mut rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000).wrapping_add(number));
            let mut steps = Vec::new();
            let mut at = Duration::ZERO;
            loop {
                let step = step(&mut rng, target, crowd.nodes);
                at += step.wait;
                if at >= length {
                    break Lane { target, steps };
                }
                at += step.lasts;
                steps.push(step);
            }
        })
        .collect()
}

fn step(rng: &mut StdRng, target: Target, nodes: usize) -> Step {
    let node = rng.random_range(0..nodes);
    let cut = [Cut::Refused, Cut::Out, Cut::In][rng.random_range(0..3)];
    let dice = rng.random_range(0..100);
    let slow = rng.random_range(5..60);
    // Short is less than a heartbeat; long is more than any lease and TTL there is.
    let short = Duration::from_millis(rng.random_range(200..2_500));
    let long = Duration::from_millis(rng.random_range(4_500..14_000));
    let either = if rng.random_bool(0.5) { short } else { long };
    let away = Duration::from_millis(rng.random_range(0..6_000));
    let (fault, lasts) = match target {
        Target::Scheduler(_) => match dice {
            0..24 => (Fault::Kill, away),
            24..42 => (Fault::Freeze, either),
            42..54 => (Fault::Restart, away / 3),
            54..70 => (Fault::CutOff(cut), either),
            70..82 => (Fault::CutFrom(node, cut), either),
            82..88 => (Fault::Slow(slow), long),
            _ => (Fault::Forget, Duration::ZERO),
        },
        Target::Executor(_) => match dice {
            0..30 => (Fault::Kill, away),
            30..50 => (Fault::Freeze, either),
            50..64 => (Fault::Restart, away / 3),
            64..80 => (Fault::CutOff(cut), either),
            80..92 => (Fault::CutFrom(node, cut), either),
            _ => (Fault::Slow(slow), long),
        },
        Target::Nats => match dice {
            0..35 => (Fault::KillNode(node), away),
            35..65 => (Fault::FreezeNode(node), either),
            65..92 => (Fault::RestartNode(node), away / 3),
            _ => (Fault::RestartAllNodes, Duration::ZERO),
        },
    };
    let wait = match target {
        Target::Nats => rng.random_range(6_000..20_000),
        _ => rng.random_range(3_000..16_000),
    };
    Step { wait: Duration::from_millis(wait), fault, lasts }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Scheduler(number) => write!(f, "scheduler-{number}"),
            Self::Executor(number) => write!(f, "executor-{number}"),
            Self::Nats => f.write_str("nats"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kill => f.write_str("kill -9"),
            Self::Freeze => f.write_str("SIGSTOP"),
            Self::Restart => f.write_str("SIGTERM and a restart"),
            Self::CutOff(cut) => write!(f, "cut off from NATS ({cut})"),
            Self::CutFrom(node, cut) => write!(f, "cut off from node {node} ({cut})"),
            Self::Slow(ms) => write!(f, "slow by {ms} ms"),
            Self::Forget => f.write_str("membership key deleted"),
            Self::KillNode(node) => write!(f, "kill -9 of node {node}"),
            Self::FreezeNode(node) => write!(f, "SIGSTOP of node {node}"),
            Self::RestartNode(node) => write!(f, "SIGTERM and a restart of node {node}"),
            Self::RestartAllNodes => f.write_str("SIGTERM and a restart of all nodes"),
        }
    }
}

impl fmt::Display for Cut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "refused",
            Self::Out => "nothing gets out",
            Self::In => "nothing gets in",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CROWD: Crowd = Crowd { schedulers: 3, executors: 4, nodes: 3 };

    #[test]
    fn a_seed_replays_and_another_one_is_another_story() {
        let length = Duration::from_secs(600);
        let plan = lanes(7, length, CROWD);
        assert_eq!(plan, lanes(7, length, CROWD));
        assert_ne!(plan, lanes(8, length, CROWD));
        // A shorter run is the beginning of a longer one.
        for (long, short) in plan.iter().zip(lanes(7, length / 5, CROWD)) {
            assert!(long.steps.starts_with(&short.steps));
        }
    }

    #[test]
    fn in_an_hour_everything_happens_to_everybody() {
        let plan = lanes(1, Duration::from_secs(3_600), CROWD);
        assert_eq!(plan.len(), 8);
        let kind = |fault: &Fault| std::mem::discriminant(fault);
        for lane in &plan {
            let mut kinds: Vec<_> = Vec::new();
            for step in &lane.steps {
                if !kinds.contains(&kind(&step.fault)) {
                    kinds.push(kind(&step.fault));
                }
            }
            let all = match lane.target {
                Target::Scheduler(_) => 7,
                Target::Executor(_) => 6,
                Target::Nats => 4,
            };
            assert_eq!(kinds.len(), all, "{}", lane.target);
        }
    }
}
