//! Triggers that wait in NATS, by their ids.

use taskparty_common::fire::TriggerRequest;
use taskparty_common::name::JobId;
use taskparty_nats::connect::Nats;
use taskparty_nats::history::{ReadError, last_by_subject, next_by_subject};

/// Triggers of a job that are looked through; one is found among so many that wait to be taken.
const MOST: usize = 256;

/// The trigger `id` of `job`, for its time or to be taken; none when it is not there.
///
/// Until it is fired nothing else tells that it was made: the server forgets the ids of messages that are
/// gone when it restarts.
///
/// # Errors
/// [`ReadError`].
pub(crate) async fn trigger(
    nats: &Nats,
    job: &JobId,
    id: &str,
) -> Result<Option<TriggerRequest>, ReadError> {
    let (js, names) = (nats.js(), nats.names());
    let stream = names.triggers_stream();
    let delayed = last_by_subject(js, &stream, &names.delay_at(job, id)).await?;
    if let Some(found) = delayed.and_then(|record| read(&record.payload, id)) {
        return Ok(Some(found));
    }
    let (subject, mut seq) = (names.trigger(job), 0);
    for _ in 0..MOST {
        let Some(next) = next_by_subject(js, &stream, &subject, seq).await? else { break };
        if let Some(found) = read(&next.payload, id) {
            return Ok(Some(found));
        }
        seq = next.seq + 1;
    }
    Ok(None)
}

/// The trigger in `payload`, if it is `id`.
pub(crate) fn read(payload: &[u8], id: &str) -> Option<TriggerRequest> {
    serde_json::from_slice::<TriggerRequest>(payload).ok().filter(|found| found.id == id)
}
