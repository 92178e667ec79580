//! Asking executors whether they are there, and whether they run a job: side by side, under one
//! deadline, as long as the answer is still open.

use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt};
use serde::Deserialize;
use serde_json::json;
use taskparty_common::job::JobSpec;
use taskparty_common::name::Instance;
use taskparty_nats::connect::Nats;
use tokio::time::{Instant, timeout_at};

/// How long all of them have to answer. Who is alive takes a millisecond; a dead one whose entry
/// is still there is known at once, unless its machine is gone.
const PATIENCE: Duration = Duration::from_millis(500);

/// Questions that are open at once.
const AT_ONCE: usize = 64;

/// What is known of one candidate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// It has not answered.
    Open,
    /// It is one to choose.
    Good,
    /// It is none, or answers no more.
    Bad,
}

/// What makes a candidate one to choose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// It answers.
    Alive,
    /// It answers, and does not run this job.
    Idle,
}

#[derive(Debug, Default, Deserialize)]
struct Said {
    #[serde(default)]
    running: bool,
}

/// The first `count` good candidates, in their order; fewer when there are no more. Nothing while
/// an earlier one could still be good.
pub(super) fn first_good(answers: &[Answer], count: usize) -> Option<Vec<usize>> {
    let mut good = Vec::new();
    for (place, answer) in answers.iter().enumerate() {
        if good.len() == count {
            break;
        }
        match answer {
            Answer::Open => return None,
            Answer::Good => good.push(place),
            Answer::Bad => {}
        }
    }
    Some(good)
}

/// The first `count` of `candidates` that are as `wanted`; fewer when there are no more in time.
pub(super) async fn ask(
    nats: &Nats,
    spec: &JobSpec,
    candidates: &[Instance],
    wanted: Wanted,
    count: usize,
) -> Vec<Instance> {
    let mut answers = vec![Answer::Open; candidates.len()];
    let question = json!({ "job": spec.id, "handler": spec.handler }).to_string();
    let question = Bytes::from(question);
    let end = Instant::now() + PATIENCE;
    let questions: Vec<_> = candidates
        .iter()
        .enumerate()
        .map(|(place, instance)| {
            let (client, question) = (nats.client(), question.clone());
            let subject = nats.names().probe(&spec.app, instance);
            async move {
                let asked = timeout_at(end, client.request(subject, question)).await;
                (place, judge(asked.ok(), wanted))
            }
        })
        .collect();
    let mut said = stream::iter(questions).buffer_unordered(AT_ONCE);
    let chosen = loop {
        if let Some(chosen) = first_good(&answers, count) {
            break chosen;
        }
        match timeout_at(end, said.next()).await {
            Ok(Some((place, answer))) => {
                if let Some(known) = answers.get_mut(place) {
                    *known = answer;
                }
            }
            // Whoever has not answered by now is not chosen.
            Ok(None) | Err(_) => {
                for answer in answers.iter_mut().filter(|answer| **answer == Answer::Open) {
                    *answer = Answer::Bad;
                }
            }
        }
    };
    chosen.into_iter().filter_map(|place| candidates.get(place).cloned()).collect()
}

type Asked = Result<async_nats::Message, async_nats::RequestError>;

fn judge(asked: Option<Asked>, wanted: Wanted) -> Answer {
    let Some(Ok(message)) = asked else { return Answer::Bad };
    match serde_json::from_slice::<Said>(&message.payload) {
        Ok(said) if wanted == Wanted::Idle && said.running => Answer::Bad,
        Ok(_) => Answer::Good,
        Err(_) => Answer::Bad,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_good_ones_are_chosen_as_soon_as_nobody_before_them_is_open() {
        let answers = |text: &str| -> Vec<Answer> {
            let answer = |letter| match letter {
                '?' => Answer::Open,
                '+' => Answer::Good,
                _ => Answer::Bad,
            };
            text.chars().map(answer).collect()
        };
        for (text, count, chosen) in [
            ("+??", 1, Some(vec![0])),
            ("?+?", 1, None),
            ("-+?", 1, Some(vec![1])),
            ("-+?", 2, None),
            ("+-+", 2, Some(vec![0, 2])),
            ("+-+", 5, Some(vec![0, 2])),
            ("---", 1, Some(vec![])),
            ("", 1, Some(vec![])),
        ] {
            assert_eq!(first_good(&answers(text), count), chosen, "{text} {count}");
        }
    }

    #[test]
    fn one_that_runs_the_job_is_there_and_is_not_idle() {
        let said = |text: &'static str| async_nats::Message {
            subject: "_INBOX.x".into(),
            reply: None,
            payload: Bytes::from_static(text.as_bytes()),
            headers: None,
            status: None,
            description: None,
            length: text.len(),
        };
        for (text, alive, idle) in [
            (Some(r#"{"free":1,"running":false}"#), Answer::Good, Answer::Good),
            (Some(r#"{"free":1,"running":true}"#), Answer::Good, Answer::Bad),
            (Some("{}"), Answer::Good, Answer::Good),
            (Some("what?"), Answer::Bad, Answer::Bad),
            (None, Answer::Bad, Answer::Bad),
        ] {
            let judged = |wanted| judge(text.map(|text| Ok(said(text))), wanted);
            assert_eq!((judged(Wanted::Alive), judged(Wanted::Idle)), (alive, idle), "{text:?}");
        }
    }
}
