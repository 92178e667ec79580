//! Check 1: each nominal instant of each job is accounted for exactly once: by a run, or by a
//! record that it was left out. A record of several stands for as many of the instants from its
//! first to its last as it says; those between that have a record of their own are not among them.

use taskparty_common::outcome::SkipReason;
use taskparty_common::schedule::OccurrenceKind;

use super::eras::{Era, Eras, Known};
use super::held::{instant, length, ms, shown};
use super::ledger::Ledger;
use super::report::{Findings, Kind, NoteKind, Place};

/// What is accounted for of one job.
#[derive(Debug, Default)]
pub(super) struct Account {
    singles: Vec<(i64, How)>,
    stretches: Vec<Stretch>,
}

/// How one instant is accounted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// It was fired.
    Ran,
    /// It was left out.
    Skipped(SkipReason),
    /// It is locked, and nothing is recorded.
    Locked,
}

/// Instants that were left out together.
#[derive(Debug, Clone, Copy)]
struct Stretch {
    first: i64,
    last: i64,
    count: u64,
}

/// Stretches that overlap, and how many instants they cover that have no record of their own.
#[derive(Debug)]
struct Cluster {
    first: i64,
    last: i64,
    claimed: u64,
    covered: u64,
}

impl Account {
    pub(super) fn single(&mut self, at: i64, how: How) {
        self.singles.push((at, how));
    }

    pub(super) fn stretch(&mut self, first: i64, last: i64, count: u64) {
        self.stretches.push(Stretch { first, last, count });
    }

    /// One entry a lock, in order. Repeated records are compared elsewhere.
    fn sort(&mut self) {
        self.singles.sort_by_key(|(at, _)| *at);
        self.singles.dedup_by_key(|(at, _)| *at);
        self.stretches.sort_by_key(|stretch| stretch.last);
        self.stretches.dedup_by_key(|stretch| stretch.last);
        self.stretches.sort_by_key(|stretch| stretch.first);
    }

    fn clusters(&self) -> Vec<Cluster> {
        let mut clusters: Vec<Cluster> = Vec::new();
        for Stretch { first, last, count } in &self.stretches {
            match clusters.last_mut() {
                Some(cluster) if *first <= cluster.last => {
                    cluster.last = cluster.last.max(*last);
                    cluster.claimed = cluster.claimed.saturating_add(*count);
                }
                _ => clusters.push(Cluster {
                    first: *first,
                    last: *last,
                    claimed: *count,
                    covered: 0,
                }),
            }
        }
        clusters
    }
}

/// Instants in a row that nobody accounted for.
#[derive(Debug, Clone, Copy)]
struct Hole {
    first: i64,
    last: i64,
    count: u64,
}

/// From when to when an instant must be accounted for.
#[derive(Debug, Clone, Copy)]
struct Window {
    from: i64,
    to: i64,
    /// Instants before this may have been before anything fired, or their records have gone.
    begin: i64,
    /// What is due from here on may be under way.
    settled: i64,
    margin: i64,
}

impl Window {
    fn must_have(&self, era: &Era<'_>, at: i64) -> bool {
        let due = at.saturating_add(era.spread);
        at >= self.begin
            && due < self.settled
            && at > era.stored
            && era.end.is_none_or(|(end, _)| due < end.saturating_sub(self.margin))
    }
}

impl Ledger {
    pub(super) fn judge_instants(&mut self, jobs: &[u32]) {
        let window = self.window();
        for job in jobs {
            let account = self.accounts.remove(job);
            let Some(mut revisions) = self.revisions.remove(job) else {
                if let Some(account) = account {
                    self.judged.instants_open += account.singles.len() as u64;
                    let place = self.of_job(*job);
                    let found = "nothing is known of the job: its instants were not judged";
                    self.findings.note(NoteKind::HistoryCut, place, found);
                }
                continue;
            };
            self.judged.jobs += 1;
            let mut account = account.unwrap_or_default();
            account.sort();
            self.judge_job(*job, &revisions.eras(), &account, window);
        }
    }

    fn window(&mut self) -> Window {
        let from = self.bounds.from.timestamp_millis();
        let mut begin = from;
        match self.installation.began {
            Some(began) => begin = begin.max(began.timestamp_millis()),
            None => {
                begin = i64::MAX;
                let found = "no fired record and no scheduler: no instant was judged";
                self.findings.note(NoteKind::NothingFired, Place::default(), found);
            }
        }
        if let Some(kept) = self.installation.records_from.map(|at| at.timestamp_millis())
            && kept > from
        {
            begin = begin.max(kept.saturating_add(60_000));
            let found = format!("records from before {} have left RESULTS", shown(kept));
            self.findings.note(NoteKind::RecordsGone, Place::default(), found);
        }
        Window {
            from,
            to: self.bounds.to.timestamp_millis(),
            begin,
            settled: self.bounds.settled_ms(),
            margin: ms(self.bounds.edit_margin),
        }
    }

    fn of_job(&self, job: u32) -> Place {
        Place { job: Some(self.jobs.name(job).into()), ..Place::default() }
    }

    fn judge_job(&mut self, job: u32, eras: &Eras<'_>, account: &Account, window: Window) {
        let place = self.of_job(job);
        if let Known::Since(since) = eras.known
            && since > window.from
        {
            let found = format!("what it was before {} is no longer kept", shown(since));
            self.findings.note(NoteKind::HistoryCut, place.clone(), found);
        }
        let mut walk = Walk {
            singles: &account.singles,
            next: 0,
            strays: Vec::new(),
            clusters: account.clusters(),
            cluster: 0,
            judged: 0,
            open: 0,
        };
        let mut from = window.from;
        for era in &eras.all {
            if era.unreadable {
                let found = format!("saved at {}: nobody can read it", shown(era.stored));
                self.findings.note(NoteKind::DefinitionUnreadable, place.clone(), found);
            }
            let window = self.of_lagging(job, era, window, &place);
            let hole = walk.era(era, from, window, &place, &mut self.findings);
            if let Some(hole) = hole {
                self.end_of_era(era, hole, &place);
            }
            from = era.end.map_or(from, |(end, _)| end.max(from));
        }
        walk.rest();
        self.judged.instants += walk.judged;
        self.judged.instants_open += walk.open;
        for (at, how) in std::mem::take(&mut walk.strays) {
            self.judge_stray(eras, at, how, window, &place);
        }
        for cluster in &walk.clusters {
            judge_cluster(cluster, eras, window, &place, &mut self.findings);
        }
    }

    /// A job that lags fires the instants after its cursor later: they are open.
    fn of_lagging(&mut self, job: u32, era: &Era<'_>, window: Window, place: &Place) -> Window {
        let lagging = self.lagging.get(&job).filter(|lagging| era.is_last_since(lagging.since));
        let handled = lagging.map(|lagging| lagging.handled.timestamp_millis());
        let Some(handled) = handled.filter(|handled| *handled < window.settled) else {
            return window;
        };
        let found = format!("it lags: it is handled up to {}, and catches up", shown(handled));
        self.findings.note(NoteKind::Lagging, place.clone(), found);
        Window { settled: handled.saturating_add(1), ..window }
    }

    /// Instants that are missing up to the end of their era.
    fn end_of_era(&mut self, era: &Era<'_>, hole: Hole, place: &Place) {
        let Some((end, _)) = era.end else {
            let watermark = self.installation.watermark.map(|at| shown(at.timestamp_millis()));
            let watermark = watermark.map_or_else(
                || "there is no watermark".into(),
                |at| format!("the watermark is {at}"),
            );
            return missing(hole, place, &watermark, &mut self.findings);
        };
        let place = Place { instant: instant(hole.first), ..place.clone() };
        let found = format!(
            "{} instants up to {} had not been fired when it changed at {}",
            hole.count,
            shown(hole.last),
            shown(end)
        );
        self.findings.note(NoteKind::BeforeEdit, place, found);
    }

    /// Something was recorded for an instant that was in no era.
    fn judge_stray(&mut self, eras: &Eras<'_>, at: i64, how: How, window: Window, place: &Place) {
        let unknown = eras.all.first().is_none_or(|first| at < first.since);
        let open = |era: &Era<'_>| {
            let seen = era.end.map_or(i64::MAX, |(_, seen)| seen.saturating_add(window.margin));
            at >= era.since && at <= seen && (era.unreadable || era.has(at))
        };
        if unknown || eras.all.iter().any(open) {
            self.judged.instants_open += 1;
            return;
        }
        let place = Place { instant: instant(at), ..place.clone() };
        let found = match how {
            How::Ran => "a fired record".into(),
            How::Skipped(reason) => format!("a record that it was skipped: {reason}"),
            How::Locked => "a lock".into(),
        };
        let expected = "nothing: the job has no such instant";
        self.findings.wrong(Kind::InstantUnexpected, place, expected, found);
    }
}

/// A walk along the instants of a job, beside what is recorded.
struct Walk<'a> {
    singles: &'a [(i64, How)],
    next: usize,
    /// Recorded instants that the job does not have.
    strays: Vec<(i64, How)>,
    clusters: Vec<Cluster>,
    cluster: usize,
    judged: u64,
    open: u64,
}

impl Walk<'_> {
    /// The instants of one era from `from` on; gives back a hole at its end.
    fn era(
        &mut self,
        era: &Era<'_>,
        from: i64,
        window: Window,
        place: &Place,
        findings: &mut Findings,
    ) -> Option<Hole> {
        let mut hole: Option<Hole> = None;
        for (at, kind) in era.instants(from, window.to) {
            let single = self.single(at);
            let covered = self.is_covered(at, single.is_some());
            if single.is_some() || covered {
                self.judged += 1;
                if let Some(hole) = hole.take() {
                    missing(hole, place, "later instants are recorded", findings);
                }
                if let Some(how) = single {
                    judge_kind(at, kind, how, place, findings);
                }
            } else if window.must_have(era, at) {
                self.judged += 1;
                let new = Hole { first: at, last: at, count: 0 };
                let hole = hole.get_or_insert(new);
                (hole.last, hole.count) = (at, hole.count + 1);
            } else {
                self.open += 1;
            }
        }
        hole
    }

    /// The record of `at` alone; those before it are strays.
    fn single(&mut self, at: i64) -> Option<How> {
        while let Some((found, how)) = self.singles.get(self.next) {
            if *found > at {
                return None;
            }
            self.next += 1;
            if *found == at {
                return Some(*how);
            }
            self.strays.push((*found, *how));
        }
        None
    }

    fn is_covered(&mut self, at: i64, single: bool) -> bool {
        while self.clusters.get(self.cluster).is_some_and(|cluster| cluster.last < at) {
            self.cluster += 1;
        }
        match self.clusters.get_mut(self.cluster) {
            Some(cluster) if cluster.first <= at => {
                cluster.covered += u64::from(!single);
                true
            }
            _ => false,
        }
    }

    fn rest(&mut self) {
        self.strays.extend(&self.singles[self.next.min(self.singles.len())..]);
        self.next = self.singles.len();
    }
}

fn judge_kind(at: i64, kind: OccurrenceKind, how: How, place: &Place, findings: &mut Findings) {
    let gap = matches!(how, How::Skipped(SkipReason::Gap));
    let (expected, found) = match kind {
        OccurrenceKind::Gap if how == How::Ran => {
            ("a record that it was skipped: this local time does not exist", "a run")
        }
        OccurrenceKind::Fire if gap => ("a run: this local time exists", "a record of a gap"),
        _ => return,
    };
    let place = Place { instant: instant(at), ..place.clone() };
    findings.wrong(Kind::InstantUnexpected, place, expected, found);
}

fn missing(hole: Hole, place: &Place, why: &str, findings: &mut Findings) {
    let place = Place { instant: instant(hole.first), ..place.clone() };
    let found = match hole.count {
        1 => format!("nothing; {why}"),
        count => {
            format!("nothing, nor for the {} after it up to {}; {why}", count - 1, shown(hole.last))
        }
    };
    let expected = "a run, or a record that it was skipped";
    findings.wrong_times(hole.count, Kind::InstantMissing, place, expected, found);
}

/// Compares what stretches claim with what there is, where all of it is known.
fn judge_cluster(
    cluster: &Cluster,
    eras: &Eras<'_>,
    window: Window,
    place: &Place,
    findings: &mut Findings,
) {
    let Cluster { first, last, claimed, covered } = *cluster;
    let whole = |era: &&Era<'_>| {
        first >= era.since && era.end.is_none_or(|(end, _)| last < end) && !era.unreadable
    };
    let known = first >= window.from && last < window.to && eras.all.iter().any(|era| whole(&era));
    if !known || claimed == covered {
        return;
    }
    let place = Place { instant: instant(first), ..place.clone() };
    let reach = length(last - first);
    if claimed > covered {
        let expected = format!("each of {covered} instants in {reach} once");
        let found = format!("records that stand for {claimed}, beside those of single instants");
        findings.wrong_times(claimed - covered, Kind::InstantTwice, place, expected, found);
    } else {
        let expected = format!("records for {covered} instants in {reach}");
        let found = format!("records that stand for {claimed}");
        findings.wrong_times(covered - claimed, Kind::InstantMissing, place, expected, found);
    }
}
