//! Real servers start, are steered, and never outlive the process that started them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, test_kill_process};
use taskparty_nats::server::{
    Cluster, ClusterConfig, FindError, JetStream, Port, Search, Server, ServerConfig, ServerError,
    find,
};

fn binary() -> std::path::PathBuf {
    find(&Search::from_env()).expect("nats/install.sh has been run").path
}

async fn stored(server: &Server) -> u64 {
    let client = async_nats::connect(server.url()).await.unwrap();
    let js = async_nats::jetstream::new(client);
    let config = async_nats::jetstream::stream::Config {
        name: "S".into(),
        subjects: vec!["s".into()],
        ..Default::default()
    };
    js.get_or_create_stream(config).await.unwrap().get_info().await.unwrap().state.messages
}

async fn store(server: &Server, body: &'static str) {
    stored(server).await;
    let js = async_nats::jetstream::new(async_nats::connect(server.url()).await.unwrap());
    js.publish("s", body.into()).await.unwrap().await.unwrap();
}

/// Waits until the process is gone; a zombie that nobody reaps counts as gone.
fn wait_until_gone(pid: i32) {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let zombie = state.rsplit(") ").next().is_some_and(|rest| rest.starts_with('Z'));
        if zombie || test_kill_process(Pid::from_raw(pid).unwrap()).is_err() {
            return;
        }
        assert!(Instant::now() < deadline, "nats-server {pid} outlived its parent");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[tokio::test]
async fn a_restart_keeps_port_and_store_and_a_drop_leaves_nothing() {
    let mut server = Server::start(ServerConfig::new(binary())).await.unwrap();
    let (url, dir) = (server.url(), server.dir().to_owned());
    store(&server, "one").await;

    server.restart().await.unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(stored(&server).await, 1);

    server.stop().await;
    server.stop().await;
    assert!(matches!(server.pause(), Err(ServerError::NotRunning)));
    server.restart().await.unwrap();
    assert_eq!(stored(&server).await, 1);

    let pid = server.pid().unwrap() as i32;
    drop(server);
    wait_until_gone(pid);
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_given_folder_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let config = ServerConfig { dir: Some(dir.path().join("data")), ..ServerConfig::new(binary()) };
    let mut server = Server::start(config.clone()).await.unwrap();
    store(&server, "one").await;
    server.stop().await;
    drop(server);
    assert_eq!(stored(&Server::start(config).await.unwrap()).await, 1);
}

#[tokio::test]
async fn a_frozen_server_answers_again_once_it_is_let_go() {
    let server = Server::start(ServerConfig::new(binary())).await.unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    let js = async_nats::jetstream::new(client);
    js.query_account().await.unwrap();
    server.pause().unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(200), js.query_account()).await.is_err());
    server.resume().unwrap();
    js.query_account().await.unwrap();
}

#[tokio::test]
async fn a_server_without_jetstream_starts_too() {
    let config = ServerConfig { jetstream: JetStream::Off, ..ServerConfig::new(binary()) };
    let server = Server::start(config).await.unwrap();
    let client = async_nats::connect(server.url()).await.unwrap();
    assert!(!client.server_info().jetstream);
}

#[tokio::test]
async fn failures_say_what_is_wrong() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let config = ServerConfig { port: Port::Fixed(port), ..ServerConfig::new(binary()) };
    let error = Server::start(config).await.unwrap_err();
    assert!(matches!(error, ServerError::PortTaken { port: said } if said == port), "{error}");

    let running = Server::start(ServerConfig::new(binary())).await.unwrap();
    let port: u16 = running.address().rsplit(':').next().unwrap().parse().unwrap();
    let config = ServerConfig { port: Port::Fixed(port), ..ServerConfig::new(binary()) };
    let error = Server::start(config).await.unwrap_err();
    assert!(matches!(error, ServerError::PortTaken { .. }), "{error}");

    let config = ServerConfig { extra: "no_such_setting: 1".into(), ..ServerConfig::new(binary()) };
    let error = Server::start(config).await.unwrap_err();
    assert!(
        matches!(&error, ServerError::Ended { tail, .. } if tail.contains("no_such_setting")),
        "{error}"
    );

    let error = Server::start(ServerConfig::new("/nowhere/nats-server")).await.unwrap_err();
    assert!(matches!(error, ServerError::Spawn { .. }), "{error}");
}

#[test]
fn a_search_says_what_it_found_instead() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("nats-server");
    script(&old, "echo 'nats-server: v2.10.26'");
    let path = Some(dir.path().as_os_str().to_owned());

    let nowhere = Search { path: path.clone(), ..Search::default() };
    let error = find(&nowhere).unwrap_err();
    assert_eq!(error, FindError::Missing { too_old: vec![(old.clone(), "2.10.26".into())] });
    assert!(error.to_string().contains("run nats/install.sh"));

    let explicit = Search { explicit: Some(old), ..Search::default() };
    assert!(matches!(find(&explicit), Err(FindError::TooOld { .. })));
    let explicit = Search { explicit: Some("/bin/sh".into()), ..Search::default() };
    assert!(matches!(find(&explicit), Err(FindError::NotRunnable { .. })));

    std::fs::create_dir_all(dir.path().join("nats/.bin")).unwrap();
    let installed = dir.path().join("nats/.bin/nats-server");
    script(&installed, "echo 'nats-server: v2.15.1'");
    let inside =
        Search { path, checkouts: vec![dir.path().join("target/debug/taskparty")], explicit: None };
    assert_eq!(find(&inside).unwrap().path, installed);
}

fn script(path: &Path, body: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

const AS_PARENT: &str = "TASKPARTY_TEST_AS_PARENT";

/// Not a test by itself: the process that the next test kills.
#[tokio::test]
async fn as_a_parent() {
    if std::env::var_os(AS_PARENT).is_none() {
        return;
    }
    let server = Server::start(ServerConfig::new(binary())).await.unwrap();
    println!("\nserver {} {}", server.pid().unwrap(), server.dir().display());
    tokio::time::sleep(Duration::from_secs(60)).await;
}

#[test]
fn a_server_ends_with_a_parent_that_is_killed_and_is_not_in_its_process_group() {
    let mut parent = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "as_a_parent", "--nocapture", "--test-threads=1"])
        .env(AS_PARENT, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("server ")).unwrap();
    let (pid, dir) = line.strip_prefix("server ").unwrap().split_once(' ').unwrap();
    let pid: i32 = pid.parse().unwrap();
    let group = rustix::process::getpgid(Pid::from_raw(pid)).unwrap();
    assert_eq!(group, Pid::from_raw(pid).unwrap(), "Ctrl-C would reach it");

    parent.kill().unwrap();
    parent.wait().unwrap();
    wait_until_gone(pid);
    std::fs::remove_dir_all(dir).unwrap();
}

#[tokio::test]
async fn a_cluster_stores_three_times_and_goes_on_without_its_leader() {
    let mut cluster = Cluster::start(ClusterConfig::new(binary())).await.unwrap();
    let client = async_nats::connect(cluster.url().split(',').collect::<Vec<_>>()).await.unwrap();
    let js = async_nats::jetstream::new(client);
    let config = async_nats::jetstream::stream::Config {
        name: "S".into(),
        subjects: vec!["s".into()],
        num_replicas: 3,
        ..Default::default()
    };
    js.create_stream(config).await.unwrap();
    js.publish("s", "one".into()).await.unwrap().await.unwrap();

    let leader = cluster.leader().await.unwrap();
    cluster.node(leader).kill();
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let sent = js.publish("s", "two".into()).await.unwrap();
        if sent.await.is_ok() {
            break;
        }
        assert!(Instant::now() < deadline, "two nodes of three do not store");
    }
    cluster.restart(leader).await.unwrap();
    cluster.wait_ready().await.unwrap();
    cluster.restart_all().await.unwrap();
    assert_eq!(cluster.nodes().len(), 3);
}
