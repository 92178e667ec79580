//! `taskparty dev` and `serve`: everything comes up, ends in order, and nothing is left behind.
#![allow(clippy::unwrap_used, reason = "what helps tests is a test")]

mod support;

use std::path::Path;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use support::Desk;
use taskparty_nats::server::Server;
use tokio::io::{AsyncBufReadExt, BufReader};

/// The folders that a `dev` without `--data` makes.
fn left_behind(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder)
        .unwrap()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("taskparty-")).collect()
}

#[tokio::test]
async fn the_demo_shows_everything_once_and_all_is_well() {
    let desk = Desk::new();
    let mut command = desk.command(&["dev", "--demo", "--demo-exit"]);
    command.env("TMPDIR", desk.dir.path());
    let output =
        tokio::time::timeout(Duration::from_secs(180), command.output()).await.unwrap().unwrap();
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{stdout}\n{stderr}");
    assert!(stdout.contains("demo: all is well"), "{stdout}\n{stderr}");
    assert!(stdout.contains("100000 of 100000 settled, 0 more than once"), "{stdout}");
    for word in ["fired", "result", "retry", "alert"] {
        assert!(stdout.lines().any(|line| line.contains(word)), "no {word}: {stdout}");
    }
    assert_eq!(left_behind(desk.dir.path()), Vec::<String>::new());
}

#[tokio::test]
async fn an_interrupt_stops_all_of_it_in_order_and_the_data_is_kept() {
    let desk = Desk::new();
    let mut dev = desk.command(&["dev", "--data", "data"]).spawn().unwrap();
    let mut lines = BufReader::new(dev.stderr.take().unwrap()).lines();
    let wait_for = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("Ctrl-C stops all of it") {
                return;
            }
        }
        panic!("it ended before it was up");
    };
    tokio::time::timeout(Duration::from_secs(60), wait_for).await.unwrap();
    let pid = Pid::from_raw(i32::try_from(dev.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    // Whoever writes must be read: a full pipe would hold up the end.
    let drain = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    let status = tokio::time::timeout(Duration::from_secs(40), dev.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
    drain.await.unwrap();
    assert!(desk.dir.path().join("data/history.db").exists());
    assert!(desk.dir.path().join("data/nats").is_dir());
}

#[tokio::test]
async fn a_node_says_what_it_serves_and_ends_in_order_when_it_is_told_to() {
    let server = Server::start(support::server_config()).await.unwrap();
    let desk = Desk::with_url(server.url());
    let mut node = desk.command(&["serve", "--store-url", "sqlite:history.db"]).spawn().unwrap();
    let mut lines = BufReader::new(node.stderr.take().unwrap()).lines();
    let up = async {
        while let Some(line) = lines.next_line().await.unwrap() {
            if line.contains("serves scheduler,log-writer,api") {
                return;
            }
        }
        panic!("it ended before it was up");
    };
    tokio::time::timeout(Duration::from_secs(60), up).await.unwrap();
    let drain = tokio::spawn(async move { while let Ok(Some(_)) = lines.next_line().await {} });
    desk.run(&["job", "list"]).await.exits(0);
    let doctor = desk.run(&["doctor", "-o", "json"]).await.exits(0).json();
    assert!(doctor["items"].as_array().unwrap().iter().any(|check| check["check"] == "log writer"));
    let pid = Pid::from_raw(i32::try_from(node.id().unwrap()).unwrap()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
    let status = tokio::time::timeout(Duration::from_secs(40), node.wait()).await.unwrap().unwrap();
    assert_eq!(status.code(), Some(0));
    drain.await.unwrap();
    desk.run(&["job", "list"]).await.exits(1).says("no TaskParty node answers");
}
