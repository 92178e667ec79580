//! Which jobs may follow which, when jobs are saved: those that there are, and never in a circle.
//!
//! What was saved before and stays as it is, is no error: a job that follows may have been deleted
//! since. Its triggers are then recorded as refused.

use std::collections::{BTreeMap, BTreeSet};

use taskparty_common::job::FieldError;
use taskparty_common::job::nearest;
use taskparty_common::name::JobId;

use super::Api;
use super::apply::Planned;
use super::problem::{Problem, ProblemField};

/// Which jobs follow which.
type Followers = BTreeMap<String, Vec<String>>;

/// What is wrong with `then` of the jobs that are to be saved.
pub(super) async fn check(api: &Api, plans: &[Planned]) -> Result<Vec<ProblemField>, Problem> {
    let changed: Vec<&Planned> = plans.iter().filter(|plan| is_new(plan)).collect();
    if changed.is_empty() {
        return Ok(Vec::new());
    }
    let mut followers = Followers::new();
    for (id, stored) in api.definitions.all().await? {
        let spec = stored.job().and_then(Result::ok).map(|job| job.spec);
        followers.insert(id, spec.map(|spec| texts(&spec.then)).unwrap_or_default());
    }
    for plan in plans {
        followers.insert(plan.spec.id.to_string(), texts(&plan.spec.then));
    }
    let mut errors = Vec::new();
    for plan in changed {
        let id = plan.spec.id.as_str();
        let problem = plan.spec.then.iter().find_map(|next| unknown(&followers, next.as_str()));
        let problem = problem.or_else(|| {
            let circle = circle(&followers, id)?;
            Some(format!("the jobs would follow each other in a circle: {}", circle.join(" → ")))
        });
        if let Some(problem) = problem {
            let error = FieldError { field: "then".into(), value: None, problem };
            errors.push(ProblemField { job: Some(id.into()), ..ProblemField::new(error) });
        }
    }
    Ok(errors)
}

fn is_new(plan: &Planned) -> bool {
    let before = plan.stored.job().and_then(Result::ok).map(|job| job.spec.then);
    !plan.spec.then.is_empty() && before.as_ref() != Some(&plan.spec.then)
}

fn texts(then: &[JobId]) -> Vec<String> {
    then.iter().map(ToString::to_string).collect()
}

fn unknown(followers: &Followers, next: &str) -> Option<String> {
    if followers.contains_key(next) {
        return None;
    }
    Some(match nearest(next, followers.keys().map(String::as_str)) {
        Some(near) => format!("there is no job {next}; did you mean {near}?"),
        None => format!("there is no job {next}; save it before, or in the same request"),
    })
}

/// A way from `start` back to it.
fn circle<'a>(followers: &'a Followers, start: &'a str) -> Option<Vec<&'a str>> {
    let mut seen = BTreeSet::new();
    let mut paths = vec![vec![start]];
    while let Some(path) = paths.pop() {
        let last = path.last().copied().unwrap_or(start);
        for next in followers.get(last).into_iter().flatten() {
            let mut path = path.clone();
            path.push(next);
            if next == start {
                return Some(path);
            }
            if seen.insert(next.as_str()) {
                paths.push(path);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_and_a_diamond_is_none() {
        let of = |pairs: &[(&str, &[&str])]| -> Followers {
            let texts = |then: &[&str]| then.iter().map(ToString::to_string).collect();
            pairs.iter().map(|(id, then)| ((*id).to_owned(), texts(then))).collect()
        };
        let diamond = of(&[("a", &["b", "c"]), ("b", &["d"]), ("c", &["d"]), ("d", &[])]);
        assert_eq!(circle(&diamond, "a"), None);
        let round = of(&[("a", &["b"]), ("b", &["c", "d"]), ("c", &["a"]), ("d", &[])]);
        assert_eq!(circle(&round, "a"), Some(vec!["a", "b", "c", "a"]));
        assert_eq!(circle(&round, "d"), None);
        assert!(unknown(&round, "e").is_some() && unknown(&round, "d").is_none());
    }
}
