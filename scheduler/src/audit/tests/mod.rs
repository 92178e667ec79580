//! The audit finds nothing in a correct history, and finds and names each fault that is put in.

mod correct;
mod faults;
mod model;
mod table;

use proptest::prelude::*;

use self::correct::{Chance, world};
use self::faults::FAULTS;
use super::{Kind, Report};

fn shown(report: &Report) -> String {
    report.violations.iter().map(|violation| format!("{violation}\n")).collect()
}

#[test]
fn there_is_a_fault_of_every_kind() {
    for kind in Kind::ALL {
        assert!(FAULTS.iter().any(|(of, _, _)| of == kind), "no fault for {kind}");
    }
}

/// The judge must be able to fail.
#[test]
fn every_fault_can_be_put_into_some_history() {
    for (kind, name, fault) in FAULTS {
        let possible = (0..20).any(|seed| {
            let mut chance = Chance(seed);
            let mut world = world(&mut chance, 6);
            fault(&mut world, &mut chance).is_some()
        });
        assert!(possible, "{kind}: {name}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_correct_history_is_clean(seed: u64, jobs in 1_u64..8) {
        let report = world(&mut Chance(seed), jobs).judge();
        prop_assert!(report.is_clean(), "{}", shown(&report));
        prop_assert!(report.judged.instants > 0 && report.judged.runs_ended > 0);
    }

    #[test]
    fn each_fault_is_found_and_named_and_nothing_else_is_blamed(seed: u64) {
        let mut chance = Chance(seed);
        let correct = world(&mut chance, 4);
        for (kind, name, fault) in FAULTS {
            let mut world = correct.clone();
            let Some(target) = fault(&mut world, &mut chance) else { continue };
            let report = world.judge();
            let found = report.violations.iter().any(|violation| {
                violation.kind == *kind
                    && (target.run.is_none() || violation.place.run == target.run)
                    && violation.place.job == target.job
            });
            prop_assert!(found, "{kind}, {name}, in {target:?}, is not among:\n{}", shown(&report));
            prop_assert!(report.by_kind.get(kind).is_some_and(|count| *count > 0));
            let blamed = report.violations.iter().find(|v| v.place.job != target.job);
            prop_assert!(blamed.is_none(), "{kind}, {name}, in {target:?} blames:\n{}", shown(&report));
        }
    }
}
