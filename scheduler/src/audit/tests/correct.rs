//! Making correct histories by chance.

use taskparty_common::fire::FireId;
use taskparty_common::job::{Job, Paused};
use taskparty_common::name::JobId;

use super::model::{LENGTH, NOW, Went, World, at, job_id, spec};
use crate::audit::*;

/// A small source of chance that replays.
#[derive(Debug, Clone)]
pub(super) struct Chance(pub(super) u64);

impl Chance {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % bound
    }

    pub(super) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }

    pub(super) fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        if of.is_empty() { None } else { of.get(self.below(of.len() as u64) as usize) }
    }
}

/// A world of `jobs` jobs.
pub(super) fn world(chance: &mut Chance, jobs: u64) -> World {
    let mut world = World::empty();
    for n in 0..jobs {
        let id = format!("job-{n}");
        let shards = 1 + chance.below(3) as usize;
        let max = 2 + chance.below(2) as u32;
        let period = 3 + chance.below(20) as i64;
        let shift = chance.below(3000) as i64 - 5000;
        let job = Job::new(spec(&id, period, shift), at(-60_000), "test");
        world.save(&job, at(-59_990));
        let mut instants = Vec::new();
        let all = |from: i64, to: i64, period: i64, shift: i64| {
            (0..)
                .map(move |n| shift + n * period * 1000)
                .skip_while(move |at| *at < from)
                .take_while(move |at| *at < to)
        };
        let end = LENGTH * 1000;
        match chance.below(4) {
            // Edited: other instants from then on.
            0 => {
                let edit = 100_000 + chance.below(100_000) as i64;
                let (other, from) = (3 + chance.below(9) as i64, edit + chance.below(5000) as i64);
                instants.extend(all(0, edit, period, shift));
                instants.extend(all(edit, end, other, from));
                world.save(&job.with_spec(spec(&id, other, from), at(edit), "test"), at(edit + 40));
            }
            // Paused for a while.
            1 => {
                let (off, on) =
                    (100_000 + chance.below(50_000) as i64, 200_000 + chance.below(50_000) as i64);
                let paused =
                    Paused { at: at(off), by: "test".into(), reason: String::new(), until: None };
                let paused = job.with_pause(Some(paused), at(off), "test");
                world.save(&paused, at(off + 40));
                world.save(&paused.with_pause(None, at(on), "test"), at(on + 40));
                instants.extend(all(0, off, period, shift));
                instants.extend(all(on, end, period, shift));
            }
            // Deleted.
            2 => {
                let gone = 200_000 + chance.below(100_000) as i64;
                world.revise(&id, at(gone), RevisionKind::Deleted);
                instants.extend(all(0, gone, period, shift));
            }
            _ => instants.extend(all(0, end, period, shift)),
        }
        let id = job_id(&id);
        fires(&mut world, chance, &id, &instants, (shards, max));
        triggered(&mut world, chance, &id, shards, max);
    }
    under_way(&mut world, chance);
    world
}

/// What becomes of the instants of a job.
fn fires(
    world: &mut World,
    chance: &mut Chance,
    id: &JobId,
    instants: &[i64],
    (shards, max): (usize, u32),
) {
    let mut index = 0;
    while index < instants.len() {
        let first = instants[index];
        let run = 2 + chance.below(4) as usize;
        // Before anything is edited: what lies behind an edit are other instants.
        let rest = &instants[index..instants.len().min(index + run)];
        let last = rest[rest.len() - 1];
        if chance.one_in(12) && rest.len() > 1 && last < 100_000 {
            world.skip(id, first, last, rest.len() as u64);
            index += rest.len();
            continue;
        }
        if chance.one_in(15) {
            world.skip(id, first, first, 1);
        } else {
            let went = went(chance, shards, max);
            world.run(&FireId::at(id.clone(), at(first)), at(first), &went, max);
        }
        index += 1;
    }
}

fn went(chance: &mut Chance, shards: usize, max: u32) -> Vec<Vec<Went>> {
    let mut shard = || {
        let failures = if chance.one_in(4) { chance.below(u64::from(max) + 2) as usize } else { 0 };
        let mut went: Vec<Went> = (0..failures)
            .map(|_| if chance.one_in(5) { Went::Lost } else { Went::Failed })
            .collect();
        if failures <= max as usize {
            went.push(if chance.one_in(6) { Went::Redelivered } else { Went::Succeeded });
        }
        went
    };
    (0..shards).map(|_| shard()).collect()
}

/// Runs that somebody asked for.
fn triggered(world: &mut World, chance: &mut Chance, id: &JobId, shards: usize, max: u32) {
    for n in 0..chance.below(4) {
        let fire = FireId::trigger(id.clone(), format!("key-{n}"));
        let when = at(chance.below(LENGTH as u64 * 1000 - 60_000) as i64);
        let went = went(chance, shards, max);
        world.run(&fire, when, &went, max);
    }
}

/// What is so young that half of it may be missing: nothing of it is wrong.
fn under_way(world: &mut World, chance: &mut Chance) {
    let id = job_id("young");
    let begin = NOW * 1000 - 20_000;
    world.bounds.to = at(NOW * 1000);
    world.save(&Job::new(spec("young", 2, begin), at(-60_000), "test"), at(-59_990));
    for n in 0..8 {
        let when = at(begin + n * 2000);
        let run = world.run(&FireId::at(id.clone(), when), when, &[vec![Went::Succeeded]], 0);
        // What was read first may lack what was read later knows, never the other way round.
        let lacks = chance.below(4);
        if lacks > 0 {
            world.rows.retain(|row| row.run != run);
        }
        if lacks > 1 {
            world.results.retain(|fact| fact.run != run);
        }
        if lacks > 2 {
            world.fired.retain(|fact| fact.run != run);
            world.starts.retain(|fact| fact.run != run);
        }
    }
    // The other jobs end with the period.
    let ids: Vec<String> = world.revisions.iter().map(|r| r.job.clone()).collect();
    for id in ids.iter().filter(|id| *id != "young") {
        let known = world.revisions.iter().rev().find(|r| r.job == *id).map(|r| r.what.clone());
        if !matches!(known, Some(RevisionKind::Deleted)) {
            world.revise(id, at(LENGTH * 1000), RevisionKind::Deleted);
        }
    }
}
