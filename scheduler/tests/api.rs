//! The NATS service against a real server: whatever is sent, the right answer and no harm.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "what helps tests is a test")]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use async_nats::Message;
use serde_json::{Value, json};
use taskparty_common::dispatch::SchedulerEntry;
use taskparty_common::name::Instance;
use taskparty_nats::bucket::Buckets;
use taskparty_nats::clock::Clock;
use taskparty_nats::connect::{ConnectConfig, Nats, connect};
use taskparty_nats::publish::Publisher;
use taskparty_nats::server::{Search, Server, ServerConfig, find};
use taskparty_nats::subject::Bucket;
use taskparty_nats::topology::TopologyConfig;
use taskparty_scheduler::api::ENDPOINTS;
use taskparty_scheduler::{Node, NodeConfig, NodeError, Role};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(30);

struct Rig {
    nats: Nats,
    node: Node,
    shutdown: CancellationToken,
    _server: Server,
    dir: tempfile::TempDir,
}

impl Rig {
    async fn start(roles: &[Role]) -> Self {
        let binary = find(&Search::from_env()).expect("nats/install.sh has been run").path;
        let server =
            Server::start(ServerConfig { max_store: 64 << 30, ..ServerConfig::new(binary) })
                .await
                .unwrap();
        let nats = connect(&ConnectConfig::new(server.url())).await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let shutdown = CancellationToken::new();
        let config = config(roles, dir.path(), "history.db");
        let node =
            Node::start(config, nats.clone(), Clock::system(), shutdown.clone()).await.unwrap();
        Self { nats, node, shutdown, _server: server, dir }
    }

    /// A second node, with a file of its own.
    async fn beside(&self, roles: &[Role], file: &str) -> Result<Node, NodeError> {
        let config = config(roles, self.dir.path(), file);
        let shutdown = self.shutdown.child_token();
        Node::start(config, self.nats.clone(), Clock::system(), shutdown).await
    }

    async fn send(&self, noun: &str, verb: &str, body: impl Into<bytes::Bytes>) -> Message {
        let subject = self.nats.names().api(noun, verb);
        let request = async_nats::Request::new().payload(body.into()).timeout(Some(PATIENCE));
        self.nats.client().send_request(subject, request).await.unwrap()
    }

    /// The answer; an error's document where it is one.
    async fn ask(&self, noun: &str, verb: &str, body: Value) -> Result<Value, Value> {
        let message = self.send(noun, verb, body.to_string()).await;
        let body: Value = serde_json::from_slice(&message.payload).unwrap();
        let code =
            message.headers.and_then(|headers| headers.get("Nats-Service-Error-Code").cloned());
        if code.is_some() { Err(body) } else { Ok(body) }
    }

    /// The run, as soon as it is in `state`.
    async fn run_in_state(&self, run: &Value, state: &str) -> Value {
        let look = async {
            loop {
                match self.ask("run", "get", json!({"run": run})).await {
                    Ok(found) if found["state"] == state => return found,
                    Ok(_) => {}
                    Err(problem) => assert_eq!(problem["code"], "not_found", "{problem}"),
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, look).await.expect("the run comes to this state")
    }

    async fn buckets(&self) -> Buckets {
        Buckets::new(self.nats.clone(), Publisher::start(self.nats.client()).await.unwrap())
    }

    async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.node.ended()).await.unwrap();
    }
}

fn config(roles: &[Role], dir: &Path, file: &str) -> NodeConfig {
    NodeConfig {
        roles: roles.iter().copied().collect(),
        topology: TopologyConfig::default(),
        store: format!("sqlite:{}", dir.join(file).display()),
        host: "test".into(),
        drain: Duration::from_secs(5),
        clock_tolerance: None,
    }
}

fn spec(id: &str) -> Value {
    json!({"id": id, "app": "order-service", "handler": "settle", "overlap": "allow"})
}

#[tokio::test]
async fn garbage_gets_an_error_and_harms_nobody() {
    let rig = Rig::start(&[Role::Api]).await;
    let deep = format!("{{\"jobs\": {}1{}}}", "[".repeat(5_000), "]".repeat(5_000));
    let garbage = [
        "\u{0}\u{1}",
        "{",
        "[]",
        "null",
        "7",
        "{\"id\": 7}",
        "{\"nonsense\": 1}",
        "{\"jobs\": [1]}",
        &deep,
    ];
    for (noun, verb) in ENDPOINTS {
        for body in garbage {
            let message = rig.send(noun, verb, body.to_owned()).await;
            let headers = message.headers.expect("an error is said in the headers");
            let code: u16 =
                headers.get("Nats-Service-Error-Code").unwrap().as_str().parse().unwrap();
            assert!((400..500).contains(&code), "{noun}.{verb} {body:.20}: {code}");
            let line = headers.get("Nats-Service-Error").unwrap().to_string();
            let problem: Value = serde_json::from_slice(&message.payload).unwrap();
            let detail: String = problem["detail"].as_str().unwrap().chars().take(40).collect();
            assert!(line.replace(' ', "").contains(&detail.replace([' ', '\n'], "")), "{line}");
            assert!(problem["code"].is_string() && problem["detail"].is_string(), "{problem}");
        }
        // What no request is needed for is answered, and so is no body at all.
        let message = rig.send(noun, verb, "").await;
        serde_json::from_slice::<Value>(&message.payload).unwrap();
    }
    assert_eq!(
        rig.ask("job", "list", json!({})).await.unwrap(),
        json!({"items": [], "next": null})
    );
    rig.stop().await;
}

#[tokio::test]
async fn the_service_is_found_as_any_nats_service_is() {
    let rig = Rig::start(&[Role::Api]).await;
    let pong = rig.nats.client().request("$SRV.INFO.taskparty", "".into()).await.unwrap();
    let info: Value = serde_json::from_slice(&pong.payload).unwrap();
    let subjects = info["endpoints"]
        .as_array()
        .unwrap()
        .iter()
        .map(|endpoint| endpoint["subject"].as_str().unwrap());
    let subjects: BTreeSet<&str> = subjects.collect();
    assert!(
        subjects.contains("taskparty.api.job.apply") && subjects.len() == ENDPOINTS.len(),
        "{subjects:?}"
    );
    rig.stop().await;
}

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
async fn a_key_makes_one_run_however_many_ask_at_once() {
    let rig = Rig::start(&[Role::Api, Role::Scheduler]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("demand")]})).await.unwrap();
    let asks = (0..20).map(|_| {
        rig.ask("job", "trigger", json!({"id": "demand", "key": "order-1", "params": null}))
    });
    let answers: Vec<Value> =
        futures::future::join_all(asks).await.into_iter().map(Result::unwrap).collect();
    let runs: BTreeSet<&str> =
        answers.iter().map(|answer| answer["run"].as_str().unwrap()).collect();
    assert_eq!(runs.len(), 1, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer["created"] == true).count(), 1);
    // The run that was named is the run that is fired.
    let buckets = rig.buckets().await;
    let lock = async {
        loop {
            if let Some(entry) =
                buckets.get_leader(Bucket::Fires, "demand.x.order-1").await.unwrap()
            {
                return serde_json::from_slice::<Value>(&entry.value.unwrap()).unwrap();
            }
            tokio::task::yield_now().await;
        }
    };
    let intent = tokio::time::timeout(PATIENCE, lock).await.unwrap();
    assert_eq!(intent["run"].as_str(), runs.first().copied());
    let again = rig.ask("job", "trigger", json!({"id": "demand", "key": "order-1"})).await.unwrap();
    assert_eq!((&again["run"], &again["created"]), (&intent["run"], &json!(false)));
    rig.stop().await;
}

#[tokio::test]
async fn a_scheduler_that_lags_is_named_and_the_edit_is_not_called_confirmed() {
    let rig = Rig::start(&[Role::Api, Role::Scheduler]).await;
    let applied = rig.ask("job", "apply", json!({"jobs": [spec("one")]})).await.unwrap();
    assert_eq!(applied["confirmed"], true);
    let entry = SchedulerEntry {
        late: None,
        sent_at: None,
        v: 1,
        instance: Instance::new("laggard").unwrap(),
        jobs_revision: 0,
        jobs: 0,
        host: "elsewhere".into(),
        pid: 1,
        version: "0".into(),
        started_at: Clock::system().now(),
    };
    let entry = serde_json::to_vec(&entry).unwrap();
    rig.buckets().await.put(Bucket::Schedulers, "laggard", entry, None).await.unwrap();
    let paused = rig.ask("job", "pause", json!({"id": "one"})).await.unwrap();
    assert_eq!((&paused["changed"], &paused["confirmed"]), (&json!(true), &json!(false)));
    assert_eq!(paused["waiting_for"], json!(["laggard"]));
    rig.stop().await;
}

#[tokio::test]
async fn runs_are_answered_from_the_log_writers_history_and_from_no_other() {
    // No log writer has been here: nothing has happened, and nothing is wrong with saying so.
    let rig = Rig::start(&[Role::Api]).await;
    assert_eq!(rig.ask("run", "list", json!({})).await.unwrap()["items"], json!([]));
    let writer = rig.beside(&[Role::LogWriter], "other.db").await.unwrap();

    let problem = rig.ask("run", "list", json!({})).await.unwrap_err();
    assert_eq!(problem["code"], "unavailable");
    assert!(problem["detail"].as_str().unwrap().contains("in another store"), "{problem}");
    let run = json!({"run": uuid::Uuid::nil()});
    for verb in ["get", "logs"] {
        assert_eq!(rig.ask("run", verb, run.clone()).await.unwrap_err()["code"], "unavailable");
    }
    let checks = rig.ask("doctor", "run", json!({})).await.unwrap();
    let history = checks["items"].as_array().unwrap().iter().find(|c| c["check"] == "history");
    assert_eq!(history.unwrap()["verdict"], "fail", "{checks}");

    let refused = rig.beside(&[Role::Api], "third.db").await.unwrap_err().to_string();
    assert!(refused.contains("in another store") && refused.contains("third.db"), "{refused}");
    tokio::join!(rig.stop(), async {
        tokio::time::timeout(PATIENCE, writer.ended()).await.unwrap()
    });
}

#[tokio::test]
async fn a_delayed_trigger_is_a_scheduled_run_until_its_time() {
    let rig = Rig::start(&[Role::Scheduler, Role::LogWriter, Role::Api]).await;
    let mut job = spec("demand");
    job["no_executor_wait"] = json!("0s");
    rig.ask("job", "apply", json!({"jobs": [job]})).await.unwrap();
    let later = json!({"id": "demand", "in": "1h", "key": "order-1", "params": {"order": 1}});
    let made = rig.ask("job", "trigger", later.clone()).await.unwrap();
    let run = rig.run_in_state(&made["run"], "scheduled").await;
    assert_eq!(
        (&run["trigger"], &run["handler"], &run["params"], &run["lock"]),
        (&json!("delayed"), &json!("settle"), &json!({"order": 1}), &json!("demand.x.order-1"))
    );
    assert_eq!(run["fire_time"], made["at"]);
    let again = rig.ask("job", "trigger", later).await.unwrap();
    assert_eq!((&again["run"], &again["created"]), (&made["run"], &json!(false)));
    let waits = rig.ask("run", "list", json!({"state": "scheduled"})).await.unwrap();
    assert_eq!(waits["items"].as_array().unwrap().len(), 1, "{waits}");

    let soon = rig.ask("job", "trigger", json!({"id": "demand", "in": "300ms"})).await.unwrap();
    let run = rig.run_in_state(&soon["run"], "not_started").await;
    assert_eq!(run["trigger_result"], "no_executor");
    rig.stop().await;
}

#[tokio::test]
async fn a_run_is_named_by_the_key_that_it_was_triggered_with() {
    let rig = Rig::start(&[Role::Scheduler, Role::LogWriter, Role::Api]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("a"), spec("b")]})).await.unwrap();
    let mut runs = Vec::new();
    for (job, when) in [("a", json!("1h")), ("b", Value::Null)] {
        let mut trigger = json!({"id": job, "key": "order-1"});
        if when.is_string() {
            trigger["in"] = when;
        }
        runs.push(rig.ask("job", "trigger", trigger).await.unwrap()["run"].clone());
    }
    for (run, (job, state)) in runs.iter().zip([("a", "scheduled"), ("b", "waiting")]) {
        rig.run_in_state(run, state).await;
        let named = json!({"job": job, "key": "order-1"});
        assert_eq!(rig.ask("run", "get", named.clone()).await.unwrap()["run"], *run);
        assert_eq!(rig.ask("run", "logs", named).await.unwrap()["ended"], false);
    }
    let nobody = rig.ask("run", "get", json!({"job": "a", "key": "order-2"})).await.unwrap_err();
    assert_eq!(
        (&nobody["code"], &nobody["title"]),
        (&json!("not_found"), &json!("There is no such run"))
    );
    for wrong in [json!({"key": "order-1"}), json!({"run": runs[0], "key": "order-1"})] {
        assert_eq!(rig.ask("run", "get", wrong).await.unwrap_err()["code"], "invalid");
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

#[tokio::test]
async fn the_topology_lists_what_jobs_and_executors_name_and_makes_it_on_demand() {
    let rig = Rig::start(&[Role::Api]).await;
    rig.ask("job", "apply", json!({"jobs": [spec("one")]})).await.unwrap();
    let entry = json!({
        "v": 1, "app": "mail", "instance": "m1", "handlers": {"send": {"slots": 1}},
        "started_at": Clock::system().now(),
    });
    let buckets = rig.buckets().await;
    buckets.put(Bucket::Executors, "mail.m1", entry.to_string(), None).await.unwrap();
    let names = [
        "TASKPARTY_DISPATCH_order-service",
        "TASKPARTY_DISPATCH_order-service/settle",
        "TASKPARTY_DISPATCH_mail",
        "TASKPARTY_DISPATCH_mail/send",
        "TASKPARTY_DISPATCH_mail/on_m1",
    ];
    let states = async |verb: &str| {
        let shown = rig.ask("topology", verb, json!({})).await.unwrap();
        let items = shown["items"].as_array().unwrap().clone();
        names.map(|name| {
            let item = items.iter().find(|item| item["name"] == name);
            item.unwrap_or_else(|| panic!("{name}: {shown}"))["state"].as_str().unwrap().to_owned()
        })
    };
    assert_eq!(states("show").await, ["later", "later", "missing", "missing", "missing"]);
    assert_eq!(states("apply").await, ["created"; 5]);
    assert_eq!(states("show").await, ["ok"; 5]);
    rig.stop().await;
}
