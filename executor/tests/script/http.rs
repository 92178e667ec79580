//! Requests: their status decides, and they go only where the operator lets them.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use taskparty_common::dispatch::{Cancel, MAX_OUTPUT, ResultRecord};
use taskparty_common::outcome::Outcome;
use taskparty_executor::script::{AllowList, HttpConfig, ScriptConfig};
use taskparty_nats::connect::Secret;

use crate::bench::{Bench, output};
use crate::rig::{Started, assert_outcome, until};
use crate::web::Web;

fn allowing<S: AsRef<str>>(rules: &[S]) -> HttpConfig {
    HttpConfig { allow: AllowList::new(rules).unwrap(), ..HttpConfig::default() }
}

fn run(bench: &Bench, http: HttpConfig) -> Started {
    bench.run(ScriptConfig { http: Some(http), ..ScriptConfig::default() })
}

async fn ask(bench: &Bench, params: Value) -> ResultRecord {
    bench.rig.outcome(&bench.rig.work("http", params)).await
}

#[tokio::test]
async fn the_status_decides_and_the_body_is_the_output() {
    let (bench, web) = (Bench::start().await, Web::start());
    let executor = run(&bench, allowing(&["127.0.0.0/8"]));
    let result = ask(&bench, json!({"url": web.url("/json")})).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(output(&result), json!({"settled": 42}));
    for (status, expected, outcome, retryable) in [
        (200, json!("2xx"), Outcome::Succeeded, true),
        (201, json!(200), Outcome::Failed, false),
        (404, json!("2xx"), Outcome::Failed, false),
        (404, json!([200, 404]), Outcome::Succeeded, true),
        (408, json!("2xx"), Outcome::Failed, true),
        (429, json!("2xx"), Outcome::Failed, true),
        (500, json!("2xx"), Outcome::Failed, true),
        (503, json!("2xx"), Outcome::Failed, true),
    ] {
        let url = web.url(&format!("/status/{status}"));
        let result = ask(&bench, json!({"url": url, "expected_status": expected})).await;
        assert_eq!(
            (result.outcome, result.retryable),
            (outcome, retryable),
            "{status}: {result:?}"
        );
        if outcome == Outcome::Failed {
            assert!(result.message.contains(&format!("{status}")), "{}", result.message);
            assert!(result.message.ends_with(&format!("this is {status}")), "{}", result.message);
        }
    }
    let result = ask(&bench, json!({"url": web.url("/big")})).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert!(result.truncated && result.output.unwrap().get().len() <= MAX_OUTPUT);
    executor.stop().await;
}

#[tokio::test]
async fn a_request_carries_what_the_job_says_and_the_idempotency_key() {
    let (bench, web) = (Bench::start().await, Web::start());
    let secrets = BTreeMap::from([("API_TOKEN".to_owned(), Secret::new("s3cret"))]);
    let executor = run(&bench, HttpConfig { secrets, ..allowing(&[web.address.to_string()]) });
    let token = json!({"from_env": "API_TOKEN", "prefix": "Bearer "});
    let params = json!({
        "method": "post", "url": web.url("/echo/authorization"), "body": {"day": 1},
        "headers": {"Authorization": token, "X-Team": "billing"},
    });
    let work = bench.rig.work("http", params.clone());
    let result = bench.rig.outcome(&work).await;
    assert_outcome(&result, Outcome::Succeeded, "");
    assert_eq!(output(&result), json!("Bearer (hidden)"), "a secret that is echoed is not kept");
    let asked = web.asked().pop().unwrap();
    assert_eq!(
        (asked.line.as_str(), asked.body.as_str()),
        ("POST /echo/authorization HTTP/1.1", r#"{"day":1}"#)
    );
    assert_eq!(asked.header("authorization"), "Bearer s3cret");
    assert_eq!(
        (asked.header("x-team"), asked.header("content-type")),
        ("billing", "application/json")
    );
    assert_eq!(asked.header("idempotency-key"), work["idempotency_key"].as_str().unwrap());
    assert_eq!(asked.header("taskparty-shard-total"), "1");

    let mut refused = params;
    refused["headers"] = json!({"Authorization": {"from_env": "HOME"}});
    let result = ask(&bench, refused).await;
    assert_outcome(&result, Outcome::Failed, "bad_params");
    assert!(result.message.contains("HOME"));
    executor.stop().await;
    let log = bench.log().await;
    assert!(log.iter().any(|(_, line)| line.starts_with("POST http://127.0.0.1")), "{log:?}");
    assert!(!format!("{log:?}").contains("s3cret"));
}

#[tokio::test]
async fn only_listed_addresses_are_reached_whatever_leads_to_others() {
    let (bench, web, closed) = (Bench::start().await, Web::start(), Web::start());
    // `localhost` is a name that leads to an address which is not public; by name it is listed.
    let executor =
        run(&bench, allowing(&[web.address.to_string(), "localhost".into(), "*".into()]));
    let port = closed.address.port();
    for (url, why) in [
        (closed.url("/json"), "no public address"),
        (format!("http://localhost:{port}/json"), "no public address"),
        (format!("http://[::1]:{port}/json"), "no public address"),
        (format!("http://0x7f.1:{port}/json"), "no public address"),
        (format!("http://[::ffff:127.0.0.1]:{port}/json"), "no public address"),
        (format!("http://0.0.0.0:{port}/json"), "no public address"),
        ("http://169.254.169.254/latest/meta-data/".into(), "no public address"),
        ("file:///etc/passwd".into(), "does not begin with http"),
    ] {
        let result = ask(&bench, json!({"url": url})).await;
        assert_outcome(&result, Outcome::Failed, "bad_params");
        assert!(!result.retryable && result.message.contains(why), "{url}: {}", result.message);
    }
    let local = format!("http://localhost:{}/json", web.address.port());
    let reached = ask(&bench, json!({"url": local})).await;
    // On a machine where localhost is ::1 too, that one is not listed.
    assert!(
        reached.outcome == Outcome::Succeeded || reached.message.contains("::1"),
        "{reached:?}"
    );
    let result = ask(&bench, json!({"url": web.url(&format!("/to/{port}"))})).await;
    assert_outcome(&result, Outcome::Failed, "handler_error");
    assert!(!result.retryable && result.message.contains("302"), "{}", result.message);
    assert!(closed.asked().is_empty(), "{:?}", closed.asked());
    executor.stop().await;

    let executor = run(&bench, allowing(&["api.example.com"]));
    let result = ask(&bench, json!({"url": "http://elsewhere.example.com/"})).await;
    assert_outcome(&result, Outcome::Failed, "bad_params");
    assert!(result.message.contains("did not list it"), "{}", result.message);
    executor.stop().await;
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_left_at_the_timeout_and_at_a_cancel() {
    let (bench, web) = (Bench::start().await, Web::start());
    let executor = run(&bench, allowing(&["127.0.0.1"]));
    let result = ask(&bench, json!({"url": web.url("/slow"), "timeout": "300ms"})).await;
    assert_outcome(&result, Outcome::Failed, "handler_error");
    assert!(result.retryable && result.message.contains("no whole answer within 300ms"));
    let result = ask(&bench, json!({"url": "http://127.0.0.1:1/"})).await;
    assert_outcome(&result, Outcome::Failed, "handler_error");
    assert!(result.retryable && result.message.contains("onnect"), "{}", result.message);

    let run = bench.rig.run("http", json!({"url": web.url("/slow"), "timeout": "10m"})).await;
    until("the second request", async || (web.asked().len() == 2).then_some(())).await;
    let cancel = serde_json::to_vec(&Cancel { run, shard: None, by: "ada".into() }).unwrap();
    let subject = bench.rig.nats.names().cancel(&bench.rig.app, run);
    bench.rig.nats.client().publish(subject, cancel.into()).await.unwrap();
    assert_outcome(&bench.rig.result(run).await, Outcome::Cancelled, "cancelled");
    executor.stop().await;
}

#[tokio::test]
async fn over_tls_a_server_must_be_the_one_it_says_it_is() {
    let bench = Bench::start().await;
    let issued = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let ca = bench.dir.path().join("ca.pem");
    std::fs::write(&ca, issued.cert.pem()).unwrap();
    let key =
        rustls::pki_types::PrivateKeyDer::try_from(issued.signing_key.serialize_der()).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![issued.cert.der().clone()], key)
        .unwrap();
    let web = Web::with_tls(config);
    let url = web.url("/json").replace("http:", "https:");
    let params = json!({"url": url, "timeout": "20s"});
    let executor = run(&bench, allowing(&["127.0.0.1"]));
    let result = ask(&bench, params.clone()).await;
    assert_outcome(&result, Outcome::Failed, "handler_error");
    assert!(result.message.contains("certificate"), "{}", result.message);
    executor.stop().await;
    let executor = run(&bench, HttpConfig { ca: Some(ca), ..allowing(&["127.0.0.1"]) });
    let result = ask(&bench, params).await;
    assert_eq!(output(&result), json!({"settled": 42}), "{}", result.message);
    executor.stop().await;
}
