//! The documentation says what is so: its jobs are valid, its commands and flags exist, its
//! schedules fire when it says, its links lead somewhere.
//!
//! What its commands do beside a running demo is tested where a demo runs.
#![allow(clippy::unwrap_used, reason = "what helps tests is a test")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::Desk;
use taskparty_common::job::{JobSpec, Unknown};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// README, CHANGELOG, the map, and everything in docs/, by name.
fn pages() -> BTreeMap<String, String> {
    let docs = std::fs::read_dir(root().join("docs")).unwrap();
    let docs = docs.map(|entry| format!("docs/{}", entry.unwrap().file_name().display()));
    let tops = ["README.md", "CHANGELOG.md", "ARCHITECTURE.md"].map(str::to_owned);
    let names = docs.filter(|name| name.ends_with(".md")).chain(tops);
    names.map(|name| (name.clone(), std::fs::read_to_string(root().join(name)).unwrap())).collect()
}

/// The fenced blocks of `language`, each with its page and line.
fn blocks(language: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (page, text) in pages() {
        let mut open: Option<(String, String)> = None;
        for (number, line) in text.lines().enumerate() {
            match (line.strip_prefix("```"), &mut open) {
                (Some(info), None) => open = Some((info.into(), String::new())),
                (Some(_), Some(_)) => {
                    let (info, body) = open.take().unwrap();
                    if info == language {
                        found.push((format!("{page}, before line {}", number + 1), body));
                    }
                }
                (None, Some((_, body))) => {
                    body.push_str(line);
                    body.push('\n');
                }
                (None, None) => {}
            }
        }
        assert!(open.is_none(), "{page}: a block has no end");
    }
    assert!(!found.is_empty(), "there is no {language} block");
    found
}

/// The jobs of a YAML text, as `job apply` finds them.
fn jobs(text: &str) -> Vec<Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    let list = |document: Value| match document.get("jobs").and_then(Value::as_array) {
        Some(jobs) => jobs.clone(),
        None => vec![document],
    };
    documents.into_iter().filter(|document| !document.is_null()).flat_map(list).collect()
}

#[test]
fn every_job_in_the_documentation_is_valid() {
    let mut all = blocks("yaml");
    for entry in std::fs::read_dir(root().join("examples/jobs")).unwrap() {
        let path = entry.unwrap().path();
        all.push((path.display().to_string(), std::fs::read_to_string(&path).unwrap()));
    }
    for (place, text) in all {
        let jobs = jobs(&text);
        assert!(!jobs.is_empty(), "{place}: there is no job");
        for job in jobs {
            if let Err(invalid) = JobSpec::from_json(&job, Unknown::Refuse) {
                panic!("{place}: {invalid}");
            }
        }
    }
}

/// The words of a command, as a shell takes them; quotes are the only thing that is special.
fn words(command: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quote = None;
    for c in command.chars() {
        match (quote, c) {
            (None, '#') if words.last().is_some_and(String::is_empty) => break,
            (None, ' ') => words.push(String::new()),
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            (_, c) => words.last_mut().unwrap().push(c),
        }
    }
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

/// Every call of `taskparty` in the blocks that are commands: what follows its name.
fn calls() -> Vec<(String, Vec<String>)> {
    let mut calls = Vec::new();
    for (place, text) in blocks("console").into_iter().chain(blocks("sh")) {
        for line in text.lines() {
            let words = words(line.strip_prefix("$ ").unwrap_or(line));
            // At the beginning of a command; elsewhere it is a word like any other.
            let begins = |before: &[String]| {
                before.last().is_none_or(|word| word == "|" || word.starts_with("TASKPARTY_"))
            };
            let at = words.iter().position(|word| word == "taskparty");
            if let Some(at) = at.filter(|at| begins(&words[..*at])) {
                calls.push((format!("{place}: {line}"), words[at + 1..].to_vec()));
            }
        }
    }
    calls
}

#[tokio::test]
async fn every_command_and_flag_in_the_documentation_exists() {
    let desk = Desk::new();
    let nouns = ["job", "run", "executor", "scheduler", "topology", "bench"];
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for (place, call) in calls() {
        let depth = if nouns.contains(&call[0].as_str()) { 2 } else { 1 };
        let command = call[..depth].to_vec();
        if !helps.contains_key(&command) {
            let mut args: Vec<&str> = command.iter().map(String::as_str).collect();
            args.push("--help");
            let ran = desk.run(&args).await;
            assert_eq!(ran.code, 0, "{place}: there is no such command: {}", ran.stderr);
            helps.insert(command.clone(), ran.stdout);
        }
        let known: BTreeSet<&str> = helps[&command]
            .split([' ', ',', '\n', '=', '['])
            .filter(|w| w.starts_with('-'))
            .collect();
        for flag in call[depth..].iter().filter(|word| word.starts_with('-') && *word != "-") {
            let flag = flag.split('=').next().unwrap();
            assert!(known.contains(flag), "{place}: there is no flag {flag}");
        }
        for file in call.iter().filter(|word| word.starts_with("examples/")) {
            assert!(root().join(file).exists(), "{place}: there is no {file}");
        }
    }
}

#[tokio::test]
async fn the_schedules_in_the_documentation_fire_when_it_says() {
    let desk = Desk::new();
    let mut checked = 0;
    for (place, text) in blocks("console") {
        for shown in text.split("$ ").filter(|shown| shown.starts_with("taskparty job next --cron"))
        {
            let (command, expected) = shown.split_once('\n').unwrap();
            if expected.trim().is_empty() {
                continue;
            }
            let args = words(command);
            let args: Vec<&str> = args[1..].iter().map(String::as_str).collect();
            let ran = desk.run(&args).await;
            let said = format!("{}{}", ran.stdout, ran.stderr);
            assert_eq!(said.trim_end(), expected.trim_end(), "{place}: {command}");
            checked += 1;
        }
    }
    assert!(checked > 10, "only {checked} were found");
}

#[tokio::test]
async fn every_command_and_setting_is_documented() {
    let (desk, pages) = (Desk::new(), pages());
    let commands = async |args: &[&str]| -> Vec<String> {
        let help = desk.run(&[args, &["--help"]].concat()).await.stdout;
        let list = help.split("Commands:\n").nth(1).unwrap_or_default();
        let lines = list.lines().take_while(|line| line.starts_with("  "));
        let names = lines.filter(|line| !line.starts_with("   "));
        names.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
    };
    for noun in commands(&[]).await.into_iter().filter(|noun| noun != "help") {
        let verbs = commands(&[&noun]).await;
        let with_verbs = verbs.iter().filter(|verb| *verb != "help").map(|v| format!("{noun} {v}"));
        let all: Vec<String> =
            if verbs.is_empty() { vec![noun.clone()] } else { with_verbs.collect() };
        for command in all {
            let command = format!("taskparty {command}");
            assert!(pages["docs/cli.md"].contains(&command), "docs/cli.md has no {command}");
        }
    }
    let settings = desk.run(&["config", "-o", "json"]).await.exits(0).json();
    for setting in settings["items"].as_array().unwrap() {
        let name = setting["name"].as_str().unwrap();
        let documented = pages["docs/operations.md"].contains(&format!("`{name}`"));
        assert!(documented, "docs/operations.md has no {name}");
    }
}

#[test]
fn every_link_leads_to_a_file() {
    for (page, text) in pages() {
        let folder = root().join(&page).parent().unwrap().to_owned();
        // What is code is no link.
        let text: String = text.split('`').step_by(2).collect();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let file = link.split('#').next().unwrap();
            let elsewhere = link.starts_with("http") || file.is_empty();
            assert!(elsewhere || folder.join(file).exists(), "{page}: {link} leads nowhere");
        }
    }
}
