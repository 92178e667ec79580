//! Jobs that follow on a success: once, and never round in a circle.

use chrono::TimeDelta;
use serde_json::{Value, json};
use taskparty_common::ask::{Ask, Asked, Which};
use taskparty_common::fire::{FireId, Fired, TriggerRequest, then_id};
use taskparty_common::name::{JobId, Prefix};
use taskparty_common::outcome::{Outcome, RunState, Trigger};

use crate::rig::{Rig, app, fired_again, in_state, job, result, spec, until};

/// The record of the run that `trigger` makes, of a job with these followers.
fn fired_by(rig: &Rig, trigger: &TriggerRequest, then: Value) -> Fired {
    let mut definition = spec(json!({ "then": then }));
    definition["id"] = json!(trigger.job);
    let fired = rig.fired(0, definition);
    Fired {
        lock: FireId::trigger(trigger.job.clone(), trigger.id.clone()).lock_key(),
        run: trigger.run,
        job: trigger.job.clone(),
        trigger: trigger.trigger,
        fire_time: trigger.at,
        ..fired
    }
}

fn report() -> JobId {
    JobId::new("report").unwrap()
}

#[tokio::test]
async fn what_follows_has_the_instant_of_what_it_follows_and_comes_once_whenever_that_succeeds() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let mut triggers = rig.triggers();
    // Longer ago than any lock lives.
    let mut fired = rig.fired(1, spec(json!({ "then": ["report"] })));
    fired.fire_time = chrono::SubsecRound::trunc_subsecs(fired.fire_time - TimeDelta::days(10), 3);
    fired.run = FireId::trigger(job(), "1").run(&Prefix::default(), 0, fired.fire_time);
    rig.fire(&fired).await;
    rig.end(&result(&fired, Outcome::Succeeded)).await;
    let follows = rig.trigger(&mut triggers).await;
    assert_eq!((follows.trigger, &follows.job), (Trigger::Dependency, &report()));
    assert_eq!((follows.id.clone(), follows.at), (then_id(fired.run), fired.fire_time));
    let child = fired_by(&rig, &follows, json!([]));
    rig.fire(&child).await;
    in_state(&writer.store, child.run, RunState::Dispatched).await;

    let ask = Ask::Retry { shards: Which::All, round: 0 };
    let (by, at) = (String::new(), rig.clock.now());
    let asked = Asked { v: 1, run: fired.run, job: job(), app: app(), ask, by, at };
    rig.publish(&rig.nats.names().asked(&app()), &asked).await;
    let again = fired_again(&fired, &rig.trigger(&mut triggers).await);
    rig.fire(&again).await;
    rig.end(&result(&again, Outcome::Succeeded)).await;
    until("it has succeeded again, and nothing is left to do", || async {
        let run = writer.store.run(fired.run).await.unwrap().unwrap();
        (run.run.round == 1 && run.run.state == RunState::Succeeded && run.pending.is_empty())
            .then_some(())
    })
    .await;
    assert_eq!(rig.messages("TASKPARTY_TRIGGERS").await, 0, "nothing follows a second time");
    writer.stop().await;
}

#[tokio::test]
async fn jobs_that_two_people_made_a_circle_of_go_round_once_and_an_alert_says_so() {
    let rig = Rig::start().await;
    let writer = rig.log_writer().await;
    let mut triggers = rig.triggers();
    let first = rig.fired(1, spec(json!({ "then": ["report"] })));
    rig.fire(&first).await;
    rig.end(&result(&first, Outcome::Succeeded)).await;
    let follows = rig.trigger(&mut triggers).await;
    assert_eq!((&follows.job, follows.refused.as_str()), (&report(), ""));
    let second = fired_by(&rig, &follows, json!(["settle", "archive"]));
    rig.fire(&second).await;
    rig.end(&result(&second, Outcome::Succeeded)).await;
    let mut next = [rig.trigger(&mut triggers).await, rig.trigger(&mut triggers).await];
    next.sort_unstable_by_key(|trigger| trigger.job.to_string());
    let [archive, settle] = next;
    assert_eq!((archive.job.as_str(), archive.refused.as_str()), ("archive", ""));
    assert_eq!(settle.job, job());
    let circle = "the jobs follow each other in a circle: settle → report → settle";
    assert_eq!(settle.refused, circle);
    let alerts =
        until("an alert", || async { Some(rig.alerts().await).filter(|a| !a.is_empty()) }).await;
    assert_eq!((alerts.len(), alerts[0].kind.as_str()), (1, "circle"));
    assert!(alerts[0].message.contains(circle), "{}", alerts[0].message);
    writer.stop().await;
}
