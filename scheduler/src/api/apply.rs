//! `job.apply`: save jobs. Everything is checked before anything is changed.

use bytes::Bytes;
use chrono::{DateTime, Utc};
use serde_json::Value;
use taskparty_common::job::{FieldError, Job, JobSpec, Paused, Route, Unknown};
use taskparty_common::priority::Priority;

use super::Api;
use super::confirm::confirm;
use super::definitions::{Stored, Written};
use super::diff::diff;
use super::problem::{Code, Problem, ProblemField};
use super::then;
use super::wire::{Applied, AppliedAll, Apply, Change, Confirmation};

/// More jobs in one request are refused: the command line sends them in pieces.
const MOST_JOBS: usize = 1_000;

/// How many fires are shown before and after.
const SHOWN: usize = 5;

/// How often a save is decided anew because somebody else was faster, when nobody asked to be told.
const TRIES: usize = 5;

/// A spec with what the leader has for its job.
pub(super) struct Planned {
    pub(super) spec: JobSpec,
    pub(super) stored: Stored,
}

/// Saves the jobs of `request`.
pub(super) async fn apply(api: &Api, request: Apply) -> Result<AppliedAll, Problem> {
    let plans = plan(api, &request).await;
    let plans = plans.map_err(|problem| Problem { saved: Some(0), ..problem })?;
    let mut results = Vec::with_capacity(plans.len());
    for plan in plans {
        let saved = save(api, &request, plan).await;
        results.push(saved.map_err(|problem| match request.dry_run {
            true => Problem { saved: Some(0), ..problem },
            false => Problem { saved: Some(results.len()), ..problem },
        })?);
    }
    let newest = results.iter().filter(|r| r.change != Change::Unchanged).map(|r| r.revision).max();
    let confirmation = match newest {
        Some(revision) if !request.dry_run => confirm(api, revision).await,
        _ => Confirmation { confirmed: true, waiting_for: Vec::new() },
    };
    Ok(AppliedAll { results, confirmation })
}

/// What is to be saved, when nothing is wrong with any of it.
async fn plan(api: &Api, request: &Apply) -> Result<Vec<Planned>, Problem> {
    let specs = read(request)?;
    let now = api.clock.now();
    let mut plans = Vec::with_capacity(specs.len());
    let mut errors = Vec::new();
    for spec in specs {
        let stored = api.definitions.read(&spec.id).await?;
        if let Some(expected) = request.check_revision
            && expected != stored.visible_revision()
        {
            return Err(Problem::conflict(spec.id.as_str(), stored.visible_revision()));
        }
        errors.extend(check_schedule(&spec, &stored, now));
        plans.push(Planned { spec, stored });
    }
    errors.extend(then::check(api, &plans).await?);
    if errors.is_empty() { Ok(plans) } else { Err(all(errors)) }
}

/// All specs, or everything that is wrong with any of them.
fn read(request: &Apply) -> Result<Vec<JobSpec>, Problem> {
    if request.jobs.is_empty() {
        return Err(Problem::field("jobs", None, "it is empty: send at least one job"));
    }
    if request.jobs.len() > MOST_JOBS {
        let detail =
            format!("{} jobs in one request; send at most {MOST_JOBS}", request.jobs.len());
        return Err(Problem::new(Code::TooLarge, detail));
    }
    if request.check_revision.is_some() && request.jobs.len() != 1 {
        return Err(Problem::field("check_revision", None, "it is for one job; send one job"));
    }
    let mut specs: Vec<JobSpec> = Vec::with_capacity(request.jobs.len());
    let mut errors = Vec::new();
    for value in &request.jobs {
        match JobSpec::from_json(value, Unknown::Refuse) {
            Ok(spec) if specs.iter().any(|other| other.id == spec.id) => {
                let problem =
                    "there are two jobs of this id in the request; give each its own".into();
                let error =
                    FieldError { field: "id".into(), value: Some(spec.id.to_string()), problem };
                errors.push(ProblemField {
                    job: Some(spec.id.to_string()),
                    ..ProblemField::new(error)
                });
            }
            Ok(spec) => specs.push(spec),
            Err(invalid) => {
                let id = value.get("id").and_then(Value::as_str);
                errors.extend(ProblemField::of_job(id, invalid));
            }
        }
    }
    if errors.is_empty() { Ok(specs) } else { Err(all(errors)) }
}

fn all(errors: Vec<ProblemField>) -> Problem {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let code = if errors.iter().all(|error| error.problem.contains("not yet")) {
        Code::NotYet
    } else if errors
        .iter()
        .all(|error| error.problem.contains("the limit is") && error.problem.contains("bytes"))
    {
        Code::TooLarge
    } else {
        Code::Invalid
    };
    Problem::new(code, lines.join("\n")).with(errors)
}

/// A schedule that can never fire is refused where it is new; one that was saved in time and has
/// run out since is no error.
fn check_schedule(spec: &JobSpec, stored: &Stored, now: DateTime<Utc>) -> Vec<ProblemField> {
    let Some(schedule) = &spec.schedule else { return Vec::new() };
    let before = stored.job().and_then(Result::ok);
    if before.as_ref().is_some_and(|job| job.spec.schedule.as_ref() == Some(schedule)) {
        return Vec::new();
    }
    let anchor = before.map_or(now, |job| job.meta.anchor);
    let errors = schedule.check_can_fire(anchor, now).err().unwrap_or_default();
    errors
        .into_iter()
        .map(|error| {
            let field = match error.field() {
                field if field.is_empty() => "schedule".to_owned(),
                field => format!("schedule.{field}"),
            };
            let error = FieldError { field, value: None, problem: error.reason().to_string() };
            ProblemField { job: Some(spec.id.to_string()), ..ProblemField::new(error) }
        })
        .collect()
}

/// Saves one job, or says what saving it would do.
async fn save(api: &Api, request: &Apply, plan: Planned) -> Result<Applied, Problem> {
    let Planned { spec, mut stored } = plan;
    for _ in 0..TRIES {
        let now = api.clock.now();
        let before = stored.job().and_then(Result::ok);
        let after = next(before.as_ref(), spec.clone(), request, now);
        let change = match &before {
            None if stored.body.is_none() => Change::Created,
            Some(job) if job.spec == after.spec => Change::Unchanged,
            _ => Change::Updated,
        };
        let mut applied = Applied {
            id: spec.id.to_string(),
            change,
            revision: stored.visible_revision(),
            diff: diff(before.as_ref().map(|job| &job.spec), &after.spec),
            upcoming_before: before.as_ref().map(|job| fires(job, now)).unwrap_or_default(),
            upcoming_after: fires(&after, now),
            warnings: warnings(&after.spec),
        };
        if change == Change::Unchanged || request.dry_run {
            return Ok(applied);
        }
        let body = Bytes::from(after.to_json().to_string());
        match api.definitions.write(&spec.id, body, stored.revision).await? {
            Written::Stored(revision) => {
                applied.revision = revision;
                return Ok(applied);
            }
            Written::Conflict(found) => {
                // Decided anew where nobody is overruled: only a pause came between, or somebody
                // else saved the very same, or the write was not confirmed.
                let there = found.job().and_then(Result::ok).map(|job| job.spec);
                let theirs = before.map(|job| job.spec);
                let harmless = there == theirs || there.as_ref() == Some(&after.spec);
                let moved = found.revision != stored.revision;
                if moved && (request.check_revision.is_some() || !harmless) {
                    return Err(Problem::conflict(spec.id.as_str(), found.visible_revision()));
                }
                stored = found;
            }
        }
    }
    Err(Problem::unavailable(format!(
        "job {} could not be saved: NATS did not confirm it; try again",
        spec.id
    )))
}

fn next(before: Option<&Job>, spec: JobSpec, request: &Apply, now: DateTime<Utc>) -> Job {
    let by = if request.by.is_empty() { "unknown" } else { &request.by };
    match before {
        Some(job) => job.with_spec(spec, now, by),
        None => {
            let job = Job::new(spec, now, by);
            if !request.paused {
                return job;
            }
            let paused =
                Paused { at: now, by: by.into(), reason: "applied paused".into(), until: None };
            job.with_pause(Some(paused), now, by)
        }
    }
}

/// The next fires of `job`; none while it is paused.
pub(super) fn fires(job: &Job, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
    let Some(schedule) = &job.spec.schedule else { return Vec::new() };
    let from = match &job.meta.paused {
        Some(paused) if job.is_paused(now) => match paused.until {
            Some(until) => until,
            None => return Vec::new(),
        },
        _ => now,
    };
    let first = schedule.first_delayed(job.meta.anchor).filter(|first| *first > from);
    first.into_iter().chain(schedule.fires(job.meta.anchor, from)).take(SHOWN).collect()
}

fn warnings(spec: &JobSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    if spec.schedule.as_ref().is_some_and(|schedule| schedule.lacks_timezone()) {
        warnings.push(format!(
            "{}: the cron expression is read in UTC, as schedule.timezone is not given; write timezone: UTC to say that it is meant",
            spec.id
        ));
    }
    if spec.priority != Priority::default() && !matches!(spec.route, Route::Any) {
        warnings.push(format!(
            "{}: priority {} orders what any executor may take; with a route other than any its work begins in the order in which it was sent",
            spec.id, spec.priority
        ));
    }
    warnings
}
