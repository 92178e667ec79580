//! What every executor must do. Each case has a server of its own and can run beside the others.

pub mod deaf;
pub mod lease;
pub mod outcome;
pub mod process;
pub mod wire;

use taskparty_common::dispatch::ResultRecord;
use taskparty_common::outcome::{Code, Outcome};

/// Checks how an attempt ended.
#[track_caller]
fn expect(result: &ResultRecord, outcome: Outcome, code: impl Into<Option<Code>>) {
    assert_eq!((result.outcome, result.code), (outcome, code.into()), "{result:?}");
}
