//! Edits, pauses and deletions hold from the moment they are confirmed.

use chrono::TimeDelta;
use serde_json::json;
use taskparty_common::fire::Fired;

use crate::rig::{Rig, checked, instants, job};

#[tokio::test]
async fn after_a_confirmed_edit_nothing_of_the_old_schedule_fires() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let mut saved = rig.save(job("tick", json!({ "fixed_rate": "100ms" }))).await;
    // Two schedules that never meet: instants at whole and at odd multiples of 50 ms.
    let anchor = saved.meta.anchor;
    let schedules = [TimeDelta::zero(), TimeDelta::milliseconds(50)].map(|shift| {
        let from = (anchor + shift).to_rfc3339_opts(chrono::SecondsFormat::Millis, true);
        json!({ "fixed_rate": "100ms", "from": from })
    });
    let mut edits = Vec::new();
    for n in 0..200 {
        let spec = checked(job("tick", schedules[n % 2].clone()));
        saved = saved.with_spec(spec, rig.clock.now(), "test");
        let revision = rig.store(&saved).await;
        rig.seen(revision).await;
        edits.push((rig.clock.now(), revision));
        tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(0..60))).await;
    }
    scheduler.stop().await;
    let fired = rig.fired().await;
    assert_old_is_over(&fired, &edits);
    let instants = instants(&fired);
    assert!(instants.windows(2).all(|pair| pair[0].0 < pair[1].0), "no instant twice");
    assert!(fired.len() > 50, "it did fire meanwhile");
}

/// Nothing that is due after an edit was confirmed is of an earlier revision.
fn assert_old_is_over(fired: &[Fired], edits: &[(chrono::DateTime<chrono::Utc>, u64)]) {
    for fired in fired {
        for (confirmed, revision) in edits {
            let old = fired.revision < *revision;
            assert!(
                !(old && fired.fire_time > *confirmed),
                "{} of {} after {confirmed}",
                fired.lock,
                fired.revision
            );
        }
    }
}

#[tokio::test]
async fn after_a_confirmed_pause_nothing_later_fires() {
    let rig = Rig::start().await;
    let scheduler = rig.scheduler().await;
    let mut saved = rig.save(job("tick", json!({ "fixed_rate": "50ms" }))).await;
    let mut pauses = Vec::new();
    for _ in 0..200 {
        let (paused, revision) = rig.pause(&saved).await;
        rig.seen(revision).await;
        let from = rig.clock.now();
        // Long enough for an instant or two.
        tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(0..120))).await;
        saved = paused.with_pause(None, rig.clock.now(), "test");
        pauses.push((from, saved.meta.since));
        rig.store(&saved).await;
        tokio::time::sleep(std::time::Duration::from_millis(rand::random_range(0..100))).await;
    }
    scheduler.stop().await;
    let fired = rig.fired().await;
    for fired in &fired {
        let during =
            pauses.iter().find(|(from, to)| *from < fired.fire_time && fired.fire_time < *to);
        assert_eq!(during, None, "{}", fired.lock);
    }
    assert!(fired.len() > 20, "it did fire meanwhile");
}
