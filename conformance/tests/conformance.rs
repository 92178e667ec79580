//! Every executor that this repository has, in every language, through the same cases.
//!
//! Rust runs with `make test`; the others need their languages: `make test-langs`.

use taskparty_conformance::{cases, subject::Subject};

/// A test a case.
macro_rules! conforms {
    ($subject:expr, $attribute:meta) => {
        conforms! { $subject, $attribute,
            outcome::success_with_output_and_log
            outcome::failures_are_told_apart
            outcome::what_is_too_long_is_cut_and_marked
            outcome::timeout
            outcome::what_cannot_begin_is_answered_or_removed
            outcome::cancel
            deaf::one_that_does_not_stop_is_reported_as_such_and_keeps_its_slot
            wire::registers_renews_and_answers
            wire::the_scheduler_may_come_later
            wire::pinned_work_is_taken
            wire::only_what_lasts_is_announced
            wire::slots_bound_what_is_taken
            wire::work_of_a_priority_is_taken_in_its_order_by_who_knows_priorities
            wire::the_result_is_stored_before_the_ack
            lease::a_long_run_keeps_its_lease
            lease::the_work_of_a_killed_process_goes_to_another
            lease::a_frozen_process_has_lost_its_work
            lease::a_hung_server_costs_the_lease
            process::sigterm_drains
            process::past_the_drain_time_work_is_handed_back
            process::a_restart_of_the_server_is_survived
        }
    };
    ($subject:expr, $attribute:meta, $($group:ident::$case:ident)*) => {
        $(
            #[tokio::test]
            #[$attribute]
            async fn $case() {
                super::cases::$group::$case(&$subject).await;
            }
        )*
    };
}

mod rust {
    conforms! { super::Subject::rust(env!("CARGO_BIN_EXE_taskparty-conformance")), doc = "Runs with `make test`." }
}

mod python {
    conforms! { super::Subject::python(), ignore = "needs Python: make test-langs" }
}

mod typescript {
    conforms! { super::Subject::typescript(), ignore = "needs Node: make test-langs" }
}

mod go {
    conforms! { super::Subject::go(), ignore = "needs Go: make test-langs" }
}
