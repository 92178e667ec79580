//! Jobs that are saved and shown.

use std::time::Duration;

use serde_json::{Value, json};
use taskparty_nats::clock::Clock;
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::Role;

use crate::rig::{PATIENCE, Rig, spec};

#[tokio::test]
async fn a_broken_definition_is_shown_as_broken_and_hides_no_other() {
    let rig = Rig::start(&[Role::Api, Role::Scheduler]).await;
    for n in 0..20 {
        rig.ask("job", "apply", json!({"jobs": [spec(&format!("job-{n}"))], "dry_run": false}))
            .await
            .unwrap();
    }
    let buckets = rig.buckets().await;
    for (id, body) in [
        ("broken-json", "{"),
        ("broken-format", "{\"format\": 9}"),
        ("broken-spec", "{\"format\": 1, \"spec\": {}, \"meta\": {}}"),
    ] {
        buckets.put(Bucket::Jobs, id, body, None).await.unwrap();
    }
    let list = rig.ask("job", "list", json!({"limit": 1000})).await.unwrap();
    let items = list["items"].as_array().unwrap();
    let broken: Vec<&Value> = items.iter().filter(|job| job["broken"].is_string()).collect();
    assert_eq!((items.len(), broken.len()), (23, 3));
    assert!(
        rig.ask("job", "get", json!({"id": "broken-json"})).await.unwrap()["broken"].is_string()
    );
    assert_eq!(
        rig.ask("job", "trigger", json!({"id": "broken-spec"})).await.unwrap_err()["code"],
        "conflict"
    );
    // It is mended by saving it again, or deleted.
    let applied = rig.ask("job", "apply", json!({"jobs": [spec("broken-json")]})).await.unwrap();
    assert_eq!(applied["results"][0]["change"], "updated");
    assert_eq!(
        rig.ask("job", "delete", json!({"id": "broken-spec"})).await.unwrap()["changed"],
        true
    );
    rig.stop().await;
}

#[tokio::test]
async fn many_who_save_at_once_leave_one_winner_and_tell_the_others() {
    let rig = Rig::start(&[Role::Api]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("one")]})).await.unwrap();
    let saves = (0..16).map(|n| {
        let mut spec = spec("one");
        spec["title"] = json!(format!("from {n}"));
        rig.ask("job", "apply", json!({"jobs": [spec], "check_revision": 1}))
    });
    let answers = futures::future::join_all(saves).await;
    let (won, lost): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert_eq!(won.len(), 1, "{won:?}");
    let revision = &won[0].as_ref().unwrap()["results"][0]["revision"];
    for problem in lost.into_iter().map(Result::unwrap_err) {
        assert_eq!((&problem["code"], &problem["revision"]), (&json!("conflict"), revision));
    }
    rig.stop().await;
}

#[tokio::test]
async fn the_next_fire_of_a_fixed_delay_is_the_first_or_the_one_that_waits() {
    let rig = Rig::start(&[Role::Scheduler, Role::LogWriter, Role::Api]).await;
    let mut ahead = spec("ahead");
    ahead["schedule"] = json!({"fixed_delay": "1h", "from": "2099-01-01T00:00:00"});
    let mut chain = spec("chain");
    chain["schedule"] = json!({"fixed_delay": "1h"});
    chain["no_executor_wait"] = json!("0s");
    rig.ask("job", "apply", json!({"jobs": [ahead, chain]})).await.unwrap();
    let next = rig.ask("job", "next", json!({"id": "ahead"})).await.unwrap();
    assert_eq!(next["after_each_run"], "1h");
    assert_eq!(next["items"][0]["at"], "2099-01-01T00:00:00Z", "{next}");
    // The first run of the other ends at once, as nobody can run it.
    let look = async {
        loop {
            let next = rig.ask("job", "next", json!({"id": "chain"})).await.unwrap();
            if let Some(at) = next["items"][0]["at"].as_str() {
                return at.parse::<chrono::DateTime<chrono::Utc>>().unwrap();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let at = tokio::time::timeout(PATIENCE, look).await.unwrap();
    let wait = at - Clock::system().now();
    assert!((3_000..=3_600).contains(&wait.num_seconds()), "{wait}");
    rig.stop().await;
}
