//! What a run waits for that waits for its turn, as it is now: by the entry of its job, and the job.
//!
//! For people: where it cannot be seen, nothing is said.

use taskparty_common::outcome::{RunState, TriggerResult};
use taskparty_common::overlap::Places;
use taskparty_nats::subject::Bucket;
use uuid::Uuid;

use super::Api;
use crate::overlap::{self, Bounds, words_of_rate};
use crate::store::RunRow;

/// What `run` waits for; nothing when it does not wait for its turn.
pub(super) async fn of(api: &Api, run: &RunRow) -> Option<String> {
    let queued = run.trigger_result == Some(TriggerResult::Queued) && run.start_by.is_none();
    if run.state != RunState::Waiting || !queued {
        return None;
    }
    let entry = api.buckets.get_leader(Bucket::Overlap, run.job.as_str()).await.ok()??;
    let places = overlap::read(&run.job, &entry.value?);
    let (job, _) = api.definitions.job(run.job.as_str()).await.ok()?;
    let bounds = Bounds::of(&job.spec).unwrap_or_default();
    words(&places, run.run, bounds, api.clock.now_ms())
}

fn words(places: &Places, run: Uuid, bounds: Bounds, now_ms: i64) -> Option<String> {
    let before = places.waiting.iter().position(|waiting| *waiting == run)?;
    let held =
        places.held_until(bounds.at(now_ms)).and_then(chrono::DateTime::from_timestamp_millis);
    if let (Some(rate), Some(at)) = (bounds.rate, held) {
        return Some(words_of_rate(rate, at, before));
    }
    let goes_on = match places.active.len() {
        0 => return Some("it is its turn".into()),
        1 => "an earlier run goes on".to_owned(),
        several => format!("{several} earlier runs go on"),
    };
    Some(match before {
        0 => goes_on,
        1 => format!("{goes_on}, and one waits before it"),
        _ => format!("{goes_on}, and {before} wait before it"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use taskparty_common::overlap::WhenFull;

    #[test]
    fn a_run_waits_for_its_rate_or_for_earlier_runs() {
        let (mut places, wait) = (Places::default(), WhenFull::Wait { limit: None });
        let bounds = Bounds { places: 2, rate: Some("1/m".parse().unwrap()) };
        for n in 1..=4 {
            places.admit(Uuid::from_u128(n), bounds.at(0), wait);
        }
        let said = |places: &Places, n, bounds, now| words(places, Uuid::from_u128(n), bounds, now);
        let shown = [1, 2, 3, 4].map(|n| said(&places, n, bounds, 30_000).unwrap_or_default());
        assert_eq!(
            shown.join("\n"),
            "\n\
             its rate, 1/m, allows it at 1970-01-01T00:01:00.000Z\n\
             its rate, 1/m, allows the next run at 1970-01-01T00:01:00.000Z, and one waits before it\n\
             its rate, 1/m, allows the next run at 1970-01-01T00:01:00.000Z, and 2 wait before it"
        );
        places.promote(bounds.at(60_000));
        assert_eq!(
            said(&places, 4, bounds, 60_000).unwrap(),
            "2 earlier runs go on, and one waits before it"
        );
        places.release(Uuid::from_u128(1));
        places.release(Uuid::from_u128(2));
        assert_eq!(said(&places, 3, Bounds::default(), 60_000).unwrap(), "it is its turn");
    }
}
