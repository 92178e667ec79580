//! The harness itself, in short: faults for forty seconds, and the audit finds nothing.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::PathBuf;
use std::time::Duration;

use taskparty_chaos::run::{Config, print, run, tails};
use taskparty_chaos::{programs, soak};
use taskparty_lab::site::Programs;

/// The programs. *Invariant: a harness that cannot run has failed.*
fn programs() -> Programs {
    let found = programs::find().unwrap_or_else(|error| panic!("{error:#}"));
    let harness = PathBuf::from(env!("CARGO_BIN_EXE_taskparty-chaos"));
    Programs { executor: (harness, found.executor.1), ..found }
}

fn seed() -> u64 {
    let given = std::env::var("CHAOS_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| u64::from(rand::random::<u32>()))
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_is_killed_frozen_and_cut_off_nothing_is_lost_and_nothing_is_doubled() {
    let programs = programs();
    let config = Config { seed: seed(), length: Duration::from_secs(40), rate: 50.0 };
    eprintln!("CHAOS_SEED={}", config.seed);
    let dir = tempfile::Builder::new().prefix("taskparty-chaos-").tempdir().unwrap();
    let verdict = run(&config, &programs, dir.path()).await;
    if verdict.as_ref().is_ok_and(|verdict| verdict.is_clean()) {
        return;
    }
    let dir = dir.keep();
    match verdict {
        Ok(verdict) => print(&verdict, &dir.display().to_string()),
        Err(error) => eprintln!("{error:#}"),
    }
    panic!("CHAOS_SEED={}, logs in {}\n{}", config.seed, dir.display(), tails(&dir));
}

/// O5 in short; the whole of it is `make soak`.
#[tokio::test(flavor = "multi_thread")]
async fn runs_that_do_nothing_are_each_there_once_and_leave_nothing_behind() {
    let dir = tempfile::tempdir().unwrap();
    let config = soak::Config { runs: 5_000, rate: 500 };
    let soaked = soak::soak(config, &programs(), dir.path()).await.unwrap();
    soak::print(&soaked);
    assert!(soaked.fires >= 5_000, "{}", soaked.fires);
    assert_eq!(soaked.wrong(), [""; 0]);
}
