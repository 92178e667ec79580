//! Places: tables of cases, and a property over any order of them.

use super::*;
use proptest::prelude::*;

fn run(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

const WAIT: WhenFull = WhenFull::Wait { limit: Some(2) };

#[test]
fn one_runs_two_wait_and_the_next_is_left_out() {
    let mut places = Places::default();
    let admissions: Vec<_> = (1..=4).map(|n| places.admit(run(n), 1, WAIT)).collect();
    use Admission::*;
    assert_eq!(admissions, [Active, Waiting, Waiting, QueueFull]);
    assert_eq!(places.admit(run(1), 1, WAIT), Active, "asked again");
    assert_eq!(places.admit(run(2), 1, WAIT), Waiting, "asked again");
    assert_eq!(places.admit(run(5), 1, WhenFull::Skip), Overlap);
    assert!(places.release(run(1)) && !places.release(run(1)));
    assert_eq!(places.admit(run(1), 1, WAIT), Ended, "never again");
    assert!(places.promote(1) && !places.promote(1));
    assert_eq!(places.due().collect::<Vec<_>>(), [run(2)]);
    assert_eq!(places.admit(run(2), 1, WAIT), Waiting, "whoever promoted it dispatches it");
    assert!(places.dispatched(run(2)) && !places.dispatched(run(2)));
    assert_eq!(places.admit(run(2), 1, WAIT), Promoted, "asked again, late");
    assert_eq!([1, 2, 3, 9].map(|n| places.place_of(run(n))), {
        use Place::*;
        [Ended, Active, Waiting, Unknown]
    });
    assert!(!places.wait_again(run(1)) && !places.wait_again(run(2)));
    assert!(places.wait_again(run(9)) && places.release(run(9)));
    assert!(places.release(run(3)), "a waiter can be taken out");
    assert_eq!((places.active.len(), places.waiting.len()), (1, 0));
}

#[test]
fn a_run_that_is_tried_again_takes_its_turn_under_another_id() {
    let mut places = Places::default();
    places.admit(run(1), 1, WAIT);
    places.release(run(1));
    assert_eq!(place_id(run(1), 0), run(1));
    let again = place_id(run(1), 1);
    places.admit(run(8), 1, WAIT);
    assert_eq!(places.turn(run(1), 1, 1), Admission::Waiting);
    assert_eq!(places.turn(run(1), 1, 1), Admission::Waiting, "asked again");
    places.release(run(8));
    places.promote(1);
    assert_eq!(places.turn(run(1), 1, 1), Admission::Active);
    assert_eq!(places.due().count(), 0, "who asked dispatches it");
    places.admit(run(9), 1, WhenFull::Replace);
    assert_eq!(places.replaced_by(run(9)), [run(1)], "the run, and not its place");
    assert!(places.release(again) && places.again.is_empty());
    assert_eq!(places.turn(run(1), 1, 1), Admission::Ended);
}

#[test]
fn the_latest_replaces_those_before_it_and_begins_when_the_one_that_goes_on_has_ended() {
    let mut places = Places::default();
    let replace = |places: &mut Places, n| places.admit(run(n), 1, WhenFull::Replace);
    assert_eq!(replace(&mut places, 1), Admission::Active);
    assert!(places.replaced_by(run(1)).is_empty());
    assert_eq!(replace(&mut places, 2), Admission::Waiting);
    assert_eq!(places.replaced_by(run(2)), [run(1)]);
    assert_eq!(replace(&mut places, 3), Admission::Waiting);
    assert_eq!(places.replaced_by(run(3)), [run(1), run(2)]);
    assert_eq!(replace(&mut places, 3), Admission::Waiting, "asked again");
    assert_eq!(replace(&mut places, 2), Admission::Waiting, "asked again, late");
    assert!(places.replaced_by(run(2)).is_empty(), "it replaces nobody any more");
    assert!(!places.promote(1), "never two at once");
    places.release(run(1));
    assert!(places.promote(1));
    assert_eq!(places.due().collect::<Vec<_>>(), [run(3)]);
    assert_eq!(places.withdraw(run(2)), (Withdrawal::Left, false));
}

#[test]
fn one_that_is_withdrawn_waits_no_more_and_the_next_goes_on() {
    let mut places = Places::default();
    for n in 1..=3 {
        places.admit(run(n), 1, WAIT);
    }
    assert_eq!(places.withdraw(run(1)), (Withdrawal::Active, false));
    assert_eq!(places.withdraw(run(2)), (Withdrawal::Left, true));
    assert_eq!(places.withdraw(run(2)), (Withdrawal::Left, false), "once more");
    assert_eq!(places.admit(run(2), 1, WAIT), Admission::Waiting, "it is still to be recorded");
    places.release(run(1));
    places.promote(1);
    assert_eq!(places.due().collect::<Vec<_>>(), [run(3)]);
    assert!(places.release(run(2)) && places.leaving.is_empty());
    assert_eq!(places.withdraw(run(2)), (Withdrawal::Ended, false));
    assert_eq!(places.admit(run(2), 1, WAIT), Admission::Ended);
}

#[test]
fn nobody_overtakes_those_that_wait() {
    let mut places = Places::default();
    places.admit(run(1), 1, WAIT);
    places.admit(run(2), 1, WAIT);
    places.release(run(1));
    assert_eq!(places.admit(run(3), 1, WAIT), Admission::Waiting);
}

#[test]
fn what_is_replaced_while_nothing_is_recorded_is_bounded_and_the_job_goes_on() {
    let mut places = Places::default();
    let replace = |places: &mut Places, n| places.admit(run(n), 1, WhenFull::Replace);
    let admissions: Vec<_> = (1..1_000).map(|n| replace(&mut places, n)).collect();
    let replacing = MOST_LEAVING + 2;
    assert!(admissions[1..replacing].iter().all(|one| *one == Admission::Waiting));
    assert!(admissions[replacing..].iter().all(|one| *one == Admission::QueueFull));
    assert_eq!(places.leaving.len(), MOST_LEAVING);
    // The one that goes on ends by itself: the one that waits begins, and another may wait.
    places.release(run(1));
    places.promote(1);
    assert_eq!(places.due().collect::<Vec<_>>(), [run(replacing as u128)]);
    assert_eq!(replace(&mut places, 1_000), Admission::Waiting);
    assert_eq!(replace(&mut places, 1_001), Admission::QueueFull);
    // What was replaced is recorded.
    places.release(run(2));
    assert_eq!(replace(&mut places, 1_002), Admission::Waiting);
}

fn at(rate: &str, places: usize, now_ms: i64) -> Limits {
    Limits { places, rate: Some(rate.parse().unwrap()), now_ms }
}

#[test]
fn what_the_rate_holds_back_waits_in_order_and_what_is_over_gives_nothing_back() {
    let mut places = Places::default();
    let two = |now_ms| at("2/s", 10, now_ms);
    let admissions: Vec<_> = (1..=5).map(|n| places.admit(run(n), two(0), WAIT)).collect();
    use Admission::*;
    assert_eq!(admissions, [Active, Active, Waiting, Waiting, QueueFull]);
    assert_eq!(places.held_until(two(300)), Some(1_000));
    places.release(run(1));
    assert!(!places.promote(two(999)), "that one has ended does not matter");
    assert_eq!(places.withdraw(run(3)), (Withdrawal::Left, true));
    assert_eq!(places.admit(run(6), two(1_000), WAIT), Waiting, "nobody overtakes");
    assert!(places.promote(two(1_000)) && !places.promote(two(1_000)));
    assert_eq!(places.due().collect::<Vec<_>>(), [run(4), run(6)]);
    assert_eq!(places.held_until(two(1_500)), Some(2_000));
    assert_eq!(places.held_until(at("2/s", 3, 1_500)), None, "it waits for a place");
    assert_eq!(places.admit(run(4), two(1_500), WAIT), Waiting, "asked again: counted once");
    assert_eq!(places.admit(run(7), two(1_500), WAIT), Waiting);
    assert_eq!(places.held_until(at("4/s", 10, 1_500)), None, "a changed rate holds at once");
    assert!(places.promote(10), "and none at all lets everything go on");
}

#[test]
fn under_skip_one_that_waits_for_its_rate_is_one_that_goes_on() {
    let mut places = Places::default();
    let one = |now_ms| at("1/s", 1, now_ms);
    use Admission::*;
    assert_eq!(places.admit(run(1), one(0), WhenFull::Skip), Active);
    assert_eq!(places.admit(run(2), one(100), WhenFull::Skip), Overlap);
    places.release(run(1));
    assert_eq!(places.admit(run(3), one(200), WhenFull::Skip), Waiting);
    assert_eq!(places.admit(run(4), one(300), WhenFull::Skip), Overlap);
    assert!(places.promote(one(1_000)));
}

#[test]
fn under_replace_the_latest_of_those_that_wait_for_their_rate_begins() {
    let mut places = Places::default();
    let one = |now_ms| at("1/s", 1, now_ms);
    places.admit(run(1), one(0), WhenFull::Replace);
    places.release(run(1));
    for n in 2..5 {
        let admission = places.admit(run(n), one(100), WhenFull::Replace);
        assert_eq!(admission, Admission::Waiting);
    }
    assert_eq!(places.replaced_by(run(4)), [run(2), run(3)]);
    places.promote(one(1_000));
    assert_eq!(places.due().collect::<Vec<_>>(), [run(4)]);
}

#[test]
fn one_that_is_tried_again_waits_for_its_rate_too() {
    let mut places = Places::default();
    let one = |now_ms| at("1/s", 1, now_ms);
    places.admit(run(1), one(0), WAIT);
    places.release(run(1));
    assert_eq!(places.turn(run(1), 1, one(500)), Admission::Waiting);
    places.promote(one(1_000));
    assert_eq!(places.turn(run(1), 1, one(1_500)), Admission::Active);
    assert_eq!(places.held_until(one(1_500)), None, "it has the only place");
    places.release(place_id(run(1), 1));
    assert_eq!(places.held_until(one(1_500)), Some(2_500), "it begins when it asks");
}

#[test]
fn a_run_that_is_dispatched_late_because_somebody_died_counts_from_then() {
    let mut places = Places::default();
    let two = |now_ms| at("2/s", 10, now_ms);
    places.admit(run(1), two(0), WAIT);
    assert_eq!(places.admit(run(1), two(900), WAIT), Admission::Active, "another completes it");
    assert_eq!(places.admit(run(2), two(1_000), WAIT), Admission::Active);
    assert_eq!(places.admit(run(3), two(1_100), WAIT), Admission::Waiting);
    assert_eq!(places.held_until(two(1_100)), Some(1_900));
}

#[test]
fn an_entry_of_before_there_were_rates_is_read() {
    let old: Places = serde_json::from_str(r#"{"v":1,"active":[],"ended":["ab"]}"#).unwrap();
    assert!(old.starts.is_empty());
    assert!(!serde_json::to_string(&Places::default()).unwrap().contains("starts"));
}

proptest! {
    /// Whatever happens, there are never more runs than places, and no run twice.
    #[test]
    fn never_more_than_there_are_places(
        steps in prop::collection::vec((0_u8..5, 1_u128..12), 0..200),
        count in 1_usize..4,
    ) {
        let mut places = Places::default();
        let mut over = std::collections::BTreeSet::new();
        for (step, n) in steps {
            match step {
                0 => {
                    let when_full = if n % 3 == 0 { WhenFull::Replace } else { WAIT };
                    let admission = places.admit(run(n), count, when_full);
                    prop_assert_eq!(admission == Admission::Ended, over.contains(&n));
                }
                1 => {
                    places.release(run(n));
                    over.insert(n);
                }
                2 => drop(places.promote(count)),
                3 => drop(places.withdraw(run(n))),
                _ => drop(places.dispatched(run(n))),
            }
            prop_assert!(places.active.len() <= count);
            let mut all: Vec<_> = places.active.iter().map(|active| active.run).collect();
            all.extend(&places.waiting);
            all.extend(&places.leaving);
            let distinct: std::collections::BTreeSet<_> = all.iter().collect();
            prop_assert_eq!(distinct.len(), all.len());
            let text = serde_json::to_string(&places).unwrap();
            prop_assert_eq!(&serde_json::from_str::<Places>(&text).unwrap(), &places);
        }
    }

    /// Whoever asks, promotes and ends whenever: in no window of the period do more begin, and each
    /// run counts once.
    #[test]
    fn no_more_begin_than_the_rate_says(
        steps in prop::collection::vec((0_u8..5, 1_u128..200, 0_i64..120), 0..400),
        most in 1_u32..8,
    ) {
        let (mut places, mut now) = (Places::default(), 0);
        let mut begun: std::collections::BTreeMap<Uuid, i64> = Default::default();
        for (step, n, wait) in steps {
            now += wait;
            let limits = at(&format!("{most}/s"), 20, now);
            match step {
                0 | 1 => {
                    let policies = [WAIT, WhenFull::Skip, WhenFull::Replace];
                    places.admit(run(n), limits, policies[n as usize % 3]);
                }
                2 => drop(places.promote(limits)),
                3 => drop(places.release(run(n))),
                _ => drop(places.turn(run(n), 1, limits)),
            }
            for active in &places.active {
                begun.entry(active.run).or_insert(now);
            }
            let lately = begun.values().filter(|at| now - **at < 1_000).count();
            prop_assert!(lately <= most as usize, "{lately} of {most}");
            if places.waiting.is_empty() || places.active.len() >= 20 {
                continue;
            }
            let mut later = places.clone();
            let when = places.held_until(limits).unwrap_or(now);
            prop_assert!(later.promote(Limits { now_ms: when, ..limits }), "then it may begin");
        }
    }
}
