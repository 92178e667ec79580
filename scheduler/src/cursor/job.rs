//! The cursors of jobs that lag: each up to where one job is handled, while the watermark is ahead.
//!
//! *Invariants.* The watermark passes an instant of a job that lags only when the job's cursor is
//! stored before that instant; and the cursor goes only when a watermark that counts the job again
//! is stored. A cursor is changed by compare-and-set on the own revision: who finds that another
//! has written or deleted it leaves it so, and the own watermark waits for the job. Only who leaves
//! does not move it back for what another has written: that is the job's next scheduler, whose cursor or
//! watermark counts the job. Where there is none any more, nobody may count it: it is moved back.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use taskparty_common::name::{Instance, JobId};
use taskparty_nats::bucket::{BucketError, Buckets, Entry, Swap};
use taskparty_nats::history::ReadError;
use taskparty_nats::subject::Bucket;

const PREFIX: &str = "job.";

/// Up to where a job that lags is handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    /// The start of the job's past: of any other past the cursor says nothing.
    pub(crate) since: DateTime<Utc>,
    /// Every instant that was due up to here is handled, in milliseconds.
    pub(crate) handled_ms: i64,
}

/// What is to become of a job's cursor. Of a job that is not named it stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The watermark is ahead of the job.
    At(Cursor),
    /// The watermark counts the job again, or the job is gone.
    Covered,
    /// The job is another member's, and so is its cursor.
    GivenUp,
}

/// What is to become of the cursors of jobs.
pub(crate) type Marks = BTreeMap<JobId, Wanted>;

/// A cursor as it is stored.
#[derive(Debug, Serialize, Deserialize)]
struct Stored {
    v: u32,
    since: DateTime<Utc>,
    handled: DateTime<Utc>,
    /// Who wrote it.
    owner: Instance,
}

/// The cursors that a scheduler keeps, as far as it knows.
#[derive(Debug, Default)]
pub(crate) struct Own {
    places: HashMap<JobId, Place>,
}

/// What is known of one cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It is stored.
    At { revision: u64, cursor: Cursor },
    /// This revision is there, or one that was not confirmed.
    Unsure { revision: u64 },
    /// This revision was there when it was looked for, whoever wrote it.
    Found { revision: u64 },
    /// Somebody else has written it.
    Lost,
    /// Somebody else has removed it.
    Removed,
}

/// A cursor that is to be stored.
#[derive(Debug, Clone)]
pub(crate) struct Put {
    pub(crate) job: JobId,
    pub(crate) cursor: Cursor,
    /// The revision that is known to be there; nothing: whatever there is was left by another one.
    known: Option<u64>,
}

/// What became of a [`Put`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    /// It is stored, at this revision.
    At(u64),
    /// Somebody else has written it.
    Lost,
    /// Somebody else has removed it.
    Removed,
    /// Nobody knows.
    Unknown,
}

impl Own {
    /// The jobs whose cursors are kept.
    pub(crate) fn jobs(&self) -> impl Iterator<Item = &JobId> {
        let kept = |(_, place): &(&JobId, &Place)| !place.is_anothers();
        self.places.iter().filter(kept).map(|(job, _)| job)
    }

    /// This cursor is there, and may be the own one.
    fn found(&mut self, job: JobId, revision: u64) {
        self.places.entry(job).or_insert(Place::Found { revision });
    }

    /// Forgets what is another's, and what was lost and is no longer needed.
    pub(crate) fn settle(&mut self, marks: &Marks) {
        self.places.retain(|job, place| match marks.get(job) {
            Some(Wanted::GivenUp) => false,
            Some(Wanted::At(_)) => true,
            Some(Wanted::Covered) | None => !place.is_anothers(),
        });
    }

    /// What is to be stored: each cursor, also one that stands where it was, since somebody may have
    /// removed it. Until it [`was_put`](Self::was_put) none of it counts as stored.
    pub(crate) fn begin_puts(&mut self, marks: &Marks) -> Vec<Put> {
        let mut puts = Vec::new();
        for (job, wanted) in marks {
            let Wanted::At(cursor) = *wanted else { continue };
            let known = match self.places.get_mut(job) {
                Some(place) if place.is_anothers() => continue,
                Some(place) => place.doubt(),
                None => None,
            };
            puts.push(Put { job: job.clone(), cursor, known });
        }
        puts
    }

    /// So it went.
    pub(crate) fn was_put(&mut self, put: Put, written: Written) {
        let place = match written {
            Written::At(revision) => Place::At { revision, cursor: put.cursor },
            Written::Lost => Place::Lost,
            Written::Removed => Place::Removed,
            Written::Unknown => return,
        };
        self.places.insert(put.job, place);
    }

    /// How far the watermark may go: no job before `others_ms` counts but those whose cursors are
    /// not stored.
    pub(crate) fn watermark(&self, others_ms: i64, marks: &Marks) -> i64 {
        self.watermark_but_of(others_ms, marks, |_| false)
    }

    /// The same for who leaves, and whose watermark is at `stored_ms`: that does not go back for what
    /// its successors keep by now.
    pub(crate) fn last_watermark(&self, others_ms: i64, marks: &Marks, stored_ms: i64) -> i64 {
        let others = self.watermark_but_of(others_ms, marks, |place| place == Place::Lost);
        others.min(self.watermark(others_ms, marks).max(stored_ms))
    }

    fn watermark_but_of(
        &self,
        others_ms: i64,
        marks: &Marks,
        left_out: impl Fn(Place) -> bool,
    ) -> i64 {
        let missing = |(job, wanted): (&JobId, &Wanted)| match (wanted, self.places.get(job)) {
            (Wanted::At(wanted), Some(Place::At { cursor, .. })) if cursor == wanted => None,
            (Wanted::At(_), Some(place)) if left_out(*place) => None,
            (Wanted::At(wanted), _) => Some(wanted.handled_ms),
            _ => None,
        };
        marks.iter().filter_map(missing).fold(others_ms, i64::min)
    }

    /// What is to be deleted once that watermark is stored, and up to which revision.
    pub(crate) fn deletes(&self, marks: &Marks) -> Vec<(JobId, u64)> {
        let covered = |(job, wanted): (&JobId, &Wanted)| match (wanted, self.places.get(job)?) {
            (Wanted::Covered, place) => Some((job.clone(), place.revision()?)),
            _ => None,
        };
        marks.iter().filter_map(covered).collect()
    }

    /// This one is deleted.
    pub(crate) fn was_deleted(&mut self, job: &JobId) {
        self.places.remove(job);
    }

    /// Looks for cursors that may be the own ones: left by who had the job before, by a write that
    /// was not confirmed, or of jobs that are gone.
    pub(crate) async fn look(&mut self, buckets: &Buckets) -> Result<(), ReadError> {
        for entry in entries(buckets).await? {
            if let Some(job) = job_of(&entry) {
                self.found(job, entry.revision);
            }
        }
        Ok(())
    }

    /// Stores a cursor.
    pub(crate) async fn put(buckets: &Buckets, owner: &Instance, put: &Put) -> Written {
        match store(buckets, owner, put).await {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!(job = %put.job, %error, "The cursor of a job that lags is not stored; the watermark waits for it.");
                Written::Unknown
            }
        }
    }

    /// Deletes a cursor, unless it was written since `revision`. True when that is over.
    pub(crate) async fn delete(buckets: &Buckets, job: &JobId, revision: u64) -> bool {
        let deleted = buckets.delete_if(Bucket::Cursors, &key(job), revision).await;
        let logged = deleted.inspect_err(|error| {
            tracing::warn!(%job, %error, "The cursor of a job that lags no more is not removed; it is tried again.");
        });
        logged.is_ok()
    }
}

impl Place {
    /// What another has done to it stays so.
    fn is_anothers(self) -> bool {
        matches!(self, Place::Lost | Place::Removed)
    }

    /// It is being written: only the answer says what is there. The revision before, if it was the
    /// own one: what was only found is taken over as it is by then.
    fn doubt(&mut self) -> Option<u64> {
        if let Place::At { revision, .. } = *self {
            *self = Place::Unsure { revision };
        }
        match *self {
            Place::Found { .. } => None,
            place => place.revision(),
        }
    }

    /// What was there when it was last seen.
    fn revision(self) -> Option<u64> {
        match self {
            Place::At { revision, .. } | Place::Unsure { revision } | Place::Found { revision } => {
                Some(revision)
            }
            Place::Lost | Place::Removed => None,
        }
    }
}

/// The cursors of all jobs that lag. One that cannot be read is nothing, and its job lags all the same:
/// who takes it for one that does not would begin at the watermark, which has passed the job.
pub(crate) async fn all(buckets: &Buckets) -> Result<HashMap<JobId, Option<Cursor>>, ReadError> {
    let read = |entry: Entry| {
        let job = job_of(&entry)?;
        let cursor = match read(&entry)? {
            Ok(Stored { since, handled, .. }) => {
                Some(Cursor { since, handled_ms: handled.timestamp_millis() })
            }
            Err(error) => {
                tracing::error!(key = %entry.key, %error, "The cursor of a job that lags cannot be read. Whoever takes the job over goes through its last days anew: what was recorded is left alone, and the job fires when all of that is read.");
                None
            }
        };
        Some((job, cursor))
    };
    Ok(entries(buckets).await?.into_iter().filter_map(read).collect())
}

async fn entries(buckets: &Buckets) -> Result<Vec<Entry>, ReadError> {
    buckets.entries(Bucket::Cursors, &format!("{PREFIX}*")).await
}

async fn store(buckets: &Buckets, owner: &Instance, put: &Put) -> Result<Written, BucketError> {
    let handled = DateTime::from_timestamp_millis(put.cursor.handled_ms);
    let since = put.cursor.since;
    let stored = handled.map(|handled| Stored { v: 1, since, handled, owner: owner.clone() });
    let Some(value) = stored.and_then(|stored| serde_json::to_vec(&stored).ok()) else {
        return Ok(Written::Unknown);
    };
    let (key, value) = (key(&put.job), Bytes::from(value));
    let mut expected = put.known.unwrap_or(0);
    // Once more over what is there instead, if that may be.
    for again in [true, false] {
        let write = buckets.put_if(Bucket::Cursors, &key, expected, value.clone(), None);
        let current = match write.await? {
            Swap::Done { revision } => return Ok(Written::At(revision)),
            Swap::Lost { current } => current,
        };
        expected = match current {
            // Not even a mark that it was deleted: the bucket was made anew.
            None if again => 0,
            // Who has just begun to keep it takes it over as it is; else it may be an own write whose
            // answer was lost.
            Some(entry) if again && (put.known.is_none() || is_by(&entry, owner)) => entry.revision,
            // In the meantime the bucket was made anew, or an own write came late.
            None => return Ok(Written::Unknown),
            Some(entry) if is_by(&entry, owner) => return Ok(Written::Unknown),
            Some(Entry { value: None, .. }) => return Ok(Written::Removed),
            Some(_) => break,
        };
    }
    Ok(Written::Lost)
}

/// Whether `owner` has written this.
fn is_by(entry: &Entry, owner: &Instance) -> bool {
    read(entry).is_some_and(|stored| stored.is_ok_and(|stored| stored.owner == *owner))
}

fn key(job: &JobId) -> String {
    format!("{PREFIX}{job}")
}

fn job_of(entry: &Entry) -> Option<JobId> {
    JobId::new(entry.key.strip_prefix(PREFIX)?).ok()
}

/// What an entry says; nothing when it was removed.
fn read(entry: &Entry) -> Option<Result<Stored, serde_json::Error>> {
    Some(serde_json::from_slice(entry.value.as_deref()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_lost_a_cursor_leaves_it_and_holds_the_watermark_back() {
        let job = JobId::new("a").unwrap();
        let cursor = Cursor { since: DateTime::UNIX_EPOCH, handled_ms: 5 };
        let marks = |wanted| Marks::from([(job.clone(), wanted)]);
        let lags = marks(Wanted::At(cursor));
        let mut own = Own::default();
        let write = |own: &mut Own, written| {
            let puts = own.begin_puts(&lags);
            let count = puts.len();
            puts.into_iter().for_each(|put| own.was_put(put, written));
            (count, own.watermark(100, &lags))
        };
        assert_eq!(write(&mut own, Written::At(7)), (1, 100));
        assert_eq!(write(&mut own, Written::Unknown), (1, 5));
        assert_eq!(own.deletes(&marks(Wanted::Covered)), [(job.clone(), 7)]);
        assert_eq!(write(&mut own, Written::At(8)), (1, 100));
        assert_eq!(write(&mut own, Written::Lost), (1, 5));
        assert_eq!(write(&mut own, Written::At(9)), (0, 5), "it stays lost");
        assert_eq!(own.deletes(&marks(Wanted::Covered)), []);
        own.settle(&Marks::new());
        assert_eq!(write(&mut own, Written::At(10)), (1, 100), "it lags once more");
        own.settle(&marks(Wanted::GivenUp));
        assert_eq!(own.jobs().count(), 0);
    }

    #[test]
    fn what_was_only_found_is_taken_over_as_it_is_by_then() {
        let job = JobId::new("a").unwrap();
        let cursor = Cursor { since: DateTime::UNIX_EPOCH, handled_ms: 5 };
        let marks = |wanted| Marks::from([(job.clone(), wanted)]);
        let mut own = Own::default();
        let knows = |own: &mut Own, written| {
            let put = own.begin_puts(&marks(Wanted::At(cursor))).remove(0);
            let known = put.known;
            own.was_put(put, written);
            known
        };
        own.found(job.clone(), 7);
        assert_eq!(own.deletes(&marks(Wanted::Covered)), [(job.clone(), 7)]);
        assert_eq!(knows(&mut own, Written::Unknown), None);
        assert_eq!(knows(&mut own, Written::At(9)), None, "nobody knows whether it was stored");
        own.found(job.clone(), 8);
        assert_eq!(knows(&mut own, Written::At(10)), Some(9), "the own one is known better");
        own.settle(&marks(Wanted::GivenUp));
        assert_eq!(knows(&mut own, Written::At(12)), None, "others may have written it meanwhile");
    }

    #[test]
    fn who_leaves_does_not_go_back_for_what_its_successor_keeps() {
        let job = |name: &str| JobId::new(name).unwrap();
        let at = |handled_ms| Wanted::At(Cursor { since: DateTime::UNIX_EPOCH, handled_ms });
        let marks = Marks::from([(job("a"), at(5)), (job("b"), at(40))]);
        let mut own = Own::default();
        let write = |own: &mut Own, a, b| {
            for put in own.begin_puts(&marks) {
                let written = if put.job == job("a") { a } else { b };
                own.was_put(put, written);
            }
        };
        write(&mut own, Written::At(7), Written::At(8));
        assert_eq!(own.last_watermark(100, &marks, 90), 100);
        write(&mut own, Written::Lost, Written::At(9));
        assert_eq!(own.watermark(100, &marks), 5);
        assert_eq!(own.last_watermark(100, &marks, 90), 90, "it does not go on either");
        assert_eq!(own.last_watermark(60, &marks, 90), 60, "for others it goes back");
        assert_eq!(own.last_watermark(100, &marks, 3), 5);
        write(&mut own, Written::Lost, Written::Unknown);
        assert_eq!(own.last_watermark(100, &marks, 90), 40, "also for what is not confirmed");
        own = Own::default();
        write(&mut own, Written::Removed, Written::At(9));
        assert_eq!(own.last_watermark(100, &marks, 90), 5, "of what was removed nobody may know");
        assert_eq!((own.jobs().count(), own.begin_puts(&marks).len()), (1, 1), "it stays so");
    }
}
