//! NATS that cannot be used: one sentence that says which trouble it is and what to do, exit 1.

mod support;

use std::io::{Read, Write};
use std::net::TcpListener;

use support::{Desk, Ran, Rig, server_config};
use taskparty_nats::server::{JetStream, Server, ServerConfig};
use taskparty_scheduler::Role;

/// Listens, and greets whoever comes with `greeting`.
#[allow(clippy::unwrap_used, reason = "what helps tests is a test")]
fn listener(greeting: &'static str) -> String {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in socket.incoming() {
            let Ok(mut stream) = stream else { return };
            std::thread::spawn(move || {
                let _ = stream.write_all(greeting.as_bytes());
                let _ = stream.read(&mut [0; 1024]);
            });
        }
    });
    format!("nats://127.0.0.1:{port}")
}

async fn list(url: &str) -> Ran {
    let ran = Desk::with_url(url).run(&["job", "list"]).await.exits(1);
    assert!(ran.stdout.is_empty(), "{ran:#?}");
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "one sentence: {ran:#?}");
    ran
}

#[tokio::test]
async fn each_trouble_is_one_sentence_of_its_own() {
    list(&listener("HTTP/1.1 400 Bad Request\r\n\r\n")).await.says("no NATS server");
    list("nats://127.0.0.1:1").await.says("nothing listens").says("taskparty dev");
    let old =
        "INFO {\"server_id\":\"x\",\"version\":\"2.9.0\",\"proto\":1,\"max_payload\":1048576}\r\n";
    let ran = Desk::with_url(listener(old)).run(&["job", "list", "--timeout", "1s"]).await.exits(1);
    assert_eq!(ran.stderr.trim_end().lines().count(), 1, "{ran:#?}");

    let plain = ServerConfig { jetstream: JetStream::Off, ..server_config() };
    let plain = Server::start(plain).await.unwrap();
    list(&plain.url()).await.says("JetStream is off");
}

#[tokio::test]
async fn wrong_credentials_and_a_missing_right_are_told_apart() {
    let users = r#"authorization { users: [
        { user: root, password: right }
        { user: guest, password: right, permissions: { publish: { deny: ["taskparty.api.>"] } } }
    ] }"#;
    let server =
        Server::start(ServerConfig { extra: users.into(), ..server_config() }).await.unwrap();
    let url = |user: &str| server.url().replace("nats://", &format!("nats://{user}@"));
    let ran = list(&url("root:wrong")).await.says("does not accept");
    assert!(!ran.stderr.contains("wrong"), "{ran:#?}");
    list(&url("root:right")).await.says("no TaskParty node answers").says("taskparty serve");
    list(&url("guest:right")).await.says("right to publish").says("grant it");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_the_api_is_said_to_be_missing_it() {
    let rig = Rig::start_with(&[Role::Scheduler]).await;
    rig.run(&["job", "list"]).await.exits(1).says("no TaskParty node answers");
    rig.run(&["doctor"]).await.exits(3);
    rig.stop().await;
}

#[tokio::test]
async fn a_problem_is_a_document_where_json_is_asked_for() {
    let ran =
        Desk::with_url("nats://127.0.0.1:1").run(&["run", "list", "-o", "json"]).await.exits(1);
    assert_eq!(ran.problem()["code"], "unavailable");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_inboxes_of_its_own_is_answered() {
    let users = r#"authorization { users: [
        { user: node, password: right }
        { user: ada, password: right, permissions: {
            publish: ["taskparty.api.>", "$JS.API.INFO"], subscribe: ["_INBOX_ada.>"] } }
    ] }"#;
    let config = ServerConfig { extra: users.into(), ..server_config() };
    let rig = Rig::start_on(config, "node:right", &[Role::Api]).await;
    let url = rig.url("ada:right");
    let desk = Desk::with_url(&url);
    desk.run(&["job", "list", "--inbox-prefix", "_INBOX_ada"]).await.exits(0);
    desk.run(&["job", "list", "--timeout", "2s"]).await.exits(1).says("right to subscribe");
    desk.run(&["job", "list", "--inbox-prefix", "_INBOX.>"]).await.exits(2).says("--inbox-prefix");
    rig.stop().await;
}
