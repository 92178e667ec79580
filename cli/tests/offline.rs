//! What needs no server: upcoming fires, configuration, wrong use, and job files that are wrong.

mod support;

use support::{Desk, job};

#[tokio::test]
async fn upcoming_fires_of_an_expression_need_no_server() {
    let desk = Desk::with_url("nats://127.0.0.1:1");
    let args = [
        "job",
        "next",
        "--cron",
        "0 30 2 * * ?",
        "--timezone",
        "Europe/Berlin",
        "--after",
        "2027-03-26T00:00:00Z",
    ];
    insta::assert_snapshot!(desk.run(&args).await.exits(0).stdout, @r"
    WEEKDAY   LOCAL (Europe/Berlin)      UTC
    Friday    2027-03-26T02:30:00+01:00  2027-03-26T01:30:00Z
    Saturday  2027-03-27T02:30:00+01:00  2027-03-27T01:30:00Z
    Sunday    2027-03-28T03:00:00+02:00  2027-03-28T01:00:00Z
    Monday    2027-03-29T02:30:00+02:00  2027-03-29T00:30:00Z
    Tuesday   2027-03-30T02:30:00+02:00  2027-03-30T00:30:00Z
    ");
    let skip = [&args[..], &["--gap", "skip", "-n", "3"]].concat();
    assert!(desk.run(&skip).await.exits(0).stdout.contains("skipped"));
    let json = desk.run(&[&args[..], &["-o", "json"]].concat()).await.exits(0).json();
    assert_eq!(json["items"][2]["weekday"], "Sunday");
    assert_eq!(json["items"][2]["at"], "2027-03-28T01:00:00Z");
}

#[tokio::test]
async fn a_duration_or_time_with_a_minus_gets_the_rule_and_not_a_word_about_options() {
    let desk = Desk::new();
    for (args, said) in [
        (["job", "trigger", "a", "--in", "-1s"], "a number is missing"),
        (["job", "trigger", "a", "--at", "-1d"], "is no time"),
        (["job", "pause", "a", "--until", "-2h"], "is no time"),
    ] {
        desk.run(&args).await.exits(2).says(args[3]).says(said);
    }
    desk.run(&["run", "list", "--since", "-1h"]).await.exits(2).says("a number is missing");
}

#[tokio::test]
async fn an_expression_that_is_wrong_or_never_fires_is_said_to_be() {
    let desk = Desk::new();
    desk.run(&["job", "next", "--cron", "61 * * * *"]).await.exits(2).says("--cron");
    desk.run(&["job", "next", "--cron", "0 0 0 30 2 ?"]).await.exits(0).says("never fires");
    desk.run(&["job", "next", "--cron", "0 0 * * *", "--gap", "jump"])
        .await
        .exits(2)
        .says("shift, skip");
    for (zone, near) in
        [("Asia/Beijing", "Asia/Shanghai"), ("UTC+8", "offset"), ("CST", "abbreviation")]
    {
        desk.run(&["job", "next", "--cron", "0 0 * * *", "--timezone", zone])
            .await
            .exits(2)
            .says(near);
    }
}

#[tokio::test]
async fn the_configuration_says_where_each_value_came_from_and_hides_secrets() {
    let desk = Desk::with_url("nats://ada:hushed@one:4222,nats://two");
    desk.file("taskparty.toml", "prefix = \"team-2\"\n[nats]\ntoken = \"hushed\"\n");
    let ran = desk.run(&["config", "--timeout", "2s", "-o", "json"]).await.exits(0);
    assert!(!ran.stdout.contains("hushed"), "{}", ran.stdout);
    let json = ran.json();
    let find = |name: &str| {
        let items = json["items"].as_array().unwrap();
        let item = items.iter().find(|item| item["name"] == name).unwrap();
        (
            item["value"].as_str().unwrap_or_default().to_owned(),
            item["source"].as_str().unwrap().to_owned(),
        )
    };
    assert_eq!(find("prefix"), ("team-2".into(), "file taskparty.toml".into()));
    assert_eq!(find("timeout"), ("2s".into(), "flag --timeout".into()));
    assert_eq!(
        find("nats.url"),
        ("nats://(hidden)@one:4222,nats://two".into(), "environment NATS_URL".into())
    );
    assert_eq!(find("store.url").1, "default");
    assert_eq!(find("triggers_bytes"), ("1GiB".into(), "default".into()));
}

#[tokio::test]
async fn how_much_may_wait_as_triggers_is_configured_like_the_sizes_of_streams() {
    let desk = Desk::new();
    desk.file("taskparty.toml", "triggers_bytes = \"64MiB\"\n");
    let json = desk.run(&["config", "-o", "json"]).await.exits(0).json();
    let found = json["items"].as_array().unwrap().iter().find(|i| i["name"] == "triggers_bytes");
    assert_eq!(found.unwrap()["value"], "64MiB");
    desk.file("taskparty.toml", "triggers_bytes = \"7\"\n");
    desk.run(&["serve"]).await.exits(2).says("triggers_bytes").says("4MiB");
}

#[tokio::test]
async fn a_wrong_configuration_is_named_with_file_and_nearest_name() {
    let desk = Desk::new();
    desk.file("taskparty.toml", "[nats]\nulr = \"x\"\n");
    desk.run(&["config"]).await.exits(2).says("taskparty.toml").says("nats.url");
    desk.run(&["config", "--config", "missing.toml"]).await.exits(2).says("missing.toml");
    for (setting, right) in [("results_bytes = \"2GB\"", "2GiB"), ("replicas = \"2\"", "1, 3 or 5")]
    {
        desk.file("taskparty.toml", &format!("{setting}\n"));
        desk.run(&["serve"]).await.exits(2).says("from file taskparty.toml").says(right);
    }
    desk.file("taskparty.toml", "prefix = \"Upper\"\n");
    desk.run(&["job", "list"]).await.exits(2).says("prefix (from file taskparty.toml)");
}

#[tokio::test]
async fn wrong_use_is_exit_code_2_and_what_is_not_there_yet_says_so() {
    let desk = Desk::new();
    desk.run(&["job", "aply"]).await.exits(2);
    desk.run(&["job", "get"]).await.exits(2);
    desk.run(&["bench"]).await.exits(2);
    desk.run(&["bench", "fires"]).await.exits(2);
    desk.run(&["job", "apply", "-f", "x", "--prune"]).await.exits(2).says("--label");
    desk.run(&["job", "backfill", "a", "--from", "x"]).await.exits(2).says("--to");
    for args in [&["executor", "drain", "i", "-o", "json"]] {
        assert_eq!(desk.run(args).await.exits(2).problem()["code"], "not_yet");
    }
    // Before anything is connected.
    let postgres = ["serve", "--store-url", "postgres://ada:secret@db/history"];
    let ran = desk.run(&postgres).await.exits(2).says("not yet").says("sqlite:PATH");
    assert!(!ran.stderr.contains("secret"), "{ran:#?}");
    desk.run(&["run", "retry", "x", "--nonsense"]).await.exits(2).says("--nonsense");
}

#[tokio::test]
async fn every_command_has_help_with_examples() {
    let desk = Desk::new();
    for command in [
        "dev",
        "serve",
        "config",
        "doctor",
        "job apply",
        "job list",
        "job get",
        "job delete",
        "job pause",
        "job resume",
        "job next",
        "job trigger",
        "job backfill",
        "run list",
        "run get",
        "run logs",
        "run cancel",
        "run retry",
        "executor list",
        "scheduler list",
        "schedulers",
        "topology show",
        "topology apply",
        "topology acl",
    ] {
        let args: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        let help = desk.run(&args).await.exits(0).stdout;
        assert!(
            help.contains(&format!("taskparty {command}")) && help.contains("Examples:"),
            "{command}: {help}"
        );
    }
}

#[tokio::test]
async fn names_that_are_no_names_are_refused_with_the_rule() {
    let desk = Desk::new();
    let long = "x".repeat(65);
    for id in ["user/234", "a b", "a.b", "*", ">", "_a", "a-", "", &long, "日本語"] {
        let file = desk.file("job.yaml", &job(&format!("{id:?}"), ""));
        desk.run(&["job", "apply", "-f", &file])
            .await
            .exits(2)
            .says("job.yaml:1")
            .says("1 to 64 letters");
    }
}

#[tokio::test]
async fn what_is_advised_instead_of_a_wrong_time_is_taken() {
    let desk = Desk::new();
    let refused = desk.run(&["job", "trigger", "a", "--at", "tomorrow"]).await.exits(2);
    for form in ["2027-01-31T09:00:00Z", "2027-01-31T09:00:00+08:00"] {
        assert!(refused.stderr.contains(form), "{refused:#?}");
        // It comes further: there is no server.
        desk.run(&["job", "trigger", "a", "--at", form, "--nats-url", "127.0.0.1:1"])
            .await
            .exits(1);
    }
    desk.run(&["run", "list", "--limit", "0"]).await.exits(2).says("--limit");
}

#[tokio::test]
async fn durations_are_exact_or_refused() {
    let desk = Desk::new();
    for bad in ["-30s", "42", "1e9h"] {
        let file = desk.file("job.yaml", &job("a", &format!("timeout: {bad}\n")));
        desk.run(&["job", "apply", "-f", &file]).await.exits(2).says("timeout").says("job.yaml:1");
    }
}

#[tokio::test]
async fn what_is_wrong_in_a_file_is_said_with_place_field_and_nearest_name() {
    let desk = Desk::new();
    let apply = |name: &'static str, text: String| {
        let file = desk.file(name, &text);
        let desk = &desk;
        async move {
            desk.run(&["job", "apply", "-f", &file]).await.exits(2).says("nothing was changed")
        }
    };
    apply("unknown.yaml", job("a", "schedul: {cron: '@daily'}\n"))
        .await
        .says("did you mean \"schedule\"");
    apply("type.yaml", job("a", "shards: many\n")).await.says("shards").says("whole number");
    let two = format!("{}---\n{}", job("a", ""), job("a", ""));
    apply("twice.yaml", two).await.says("twice.yaml:6").says("it is also in twice.yaml:1");
    apply("empty.yaml", "# nothing here\n".into()).await.says("there is no job in it");
    apply("key.yaml", job("a", "title: x\ntitle: y\n")).await.says("duplicate").says("line 6");
    apply("broken.yaml", "id: [a\n".into()).await.says("broken.yaml");
    apply("list.yaml", "jobs:\n  - id: a\n    app: b\n".into())
        .await
        .says("list.yaml:2")
        .says("handler");
    apply("urgent.yaml", job("a", "priority: 10\n")).await.says("whole number from 0 to 9");
    apply("zone.yaml", job("a", "schedule: {cron: '@daily', timezone: Asia/Beijing}\n"))
        .await
        .says("Asia/Shanghai");
    apply("on.yaml", job("a", "alert: {on: [failed]}\n")).await.says("alert.on");
    desk.run(&["job", "apply", "-f", "nowhere.yaml"]).await.exits(2).says("nowhere.yaml");
    let problem =
        desk.run(&["job", "apply", "-f", "type.yaml", "-o", "json"]).await.exits(2).problem();
    assert_eq!(problem["code"], "invalid");
    assert_eq!(problem["errors"][0]["field"], "shards");
    assert_eq!(problem["errors"][0]["value"], "\"many\"");
}
