//! Jobs from file to NATS and back, by way of the real binary and a real node.

mod support;

use support::{Rig, job};

#[tokio::test(flavor = "multi_thread")]
async fn a_job_is_applied_shown_paused_resumed_and_deleted() {
    let rig = Rig::start().await;
    rig.desk
        .file("job.yaml", &job("nightly", "title: 每日对账\nschedule: {cron: '0 0 2 * * ?'}\n"));
    let apply = ["job", "apply", "-f", "job.yaml"];
    let dry = rig.run(&[&apply[..], &["--dry-run"]].concat()).await.exits(4);
    assert!(dry.stdout.contains("would create nightly"), "{dry:#?}");
    rig.run(&["job", "get", "nightly"]).await.exits(1).says("no job");

    let created = rig.run(&apply).await.exits(0).says("timezone");
    assert!(
        created.stdout.contains("created nightly") && created.stdout.contains("fires next"),
        "{created:#?}"
    );
    rig.run(&[&apply[..], &["--dry-run"]].concat()).await.exits(0);
    rig.desk.file("chosen.yaml", &job("chosen", "priority: 0\nroute: first\n"));
    let chosen = rig.run(&["job", "apply", "-f", "chosen.yaml", "--dry-run"]).await.exits(4);
    chosen.says("chosen: priority 0 orders what any executor may take");
    let list = rig.run(&["job", "ls", "-o", "json"]).await.exits(0).json();
    assert_eq!(list["items"][0]["id"], "nightly");
    assert_eq!(list["items"][0]["meta"]["updated_by"], "ada@desk");
    assert_eq!(list["items"][0]["spec"]["title"], "每日对账");

    let paused = rig
        .run(&["job", "pause", "nightly", "--reason", "holiday", "-o", "json"])
        .await
        .exits(0)
        .json();
    assert_eq!((&paused["changed"], &paused["confirmed"]), (&true.into(), &true.into()));
    // What an operator has stopped, a file does not start.
    rig.run(&apply).await.exits(0);
    let job = rig.run(&["job", "get", "nightly", "-o", "json"]).await.exits(0).json();
    assert_eq!(
        (&job["paused"], &job["meta"]["paused"]["reason"]),
        (&true.into(), &"holiday".into())
    );
    assert!(job["next_fire"].is_null());
    assert_eq!(
        rig.run(&["job", "list", "--paused=false", "-o", "json"]).await.json()["items"],
        serde_json::json!([])
    );

    rig.run(&["job", "resume", "nightly"]).await.exits(0);
    let next = rig.run(&["job", "next", "nightly", "-n", "2", "-o", "json"]).await.exits(0).json();
    assert_eq!(next["items"].as_array().unwrap().len(), 2);
    rig.run(&["job", "rm", "nightly"]).await.exits(0);
    rig.run(&["job", "delete", "nightly"]).await.exits(1).says("no job");
    rig.run(&apply).await.exits(0);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn applying_the_same_again_makes_no_revision_however_it_is_written() {
    let rig = Rig::start().await;
    let many: Vec<String> = (0..300)
        .map(|n| job(&format!("job-{n}"), "timeout: 60s\nlabels: {team: billing}\n"))
        .collect();
    rig.desk.file("jobs/many.yaml", &many.join("---\n"));
    let apply = ["job", "apply", "-f", "jobs"];
    let first = rig.run(&apply).await.exits(0);
    assert!(first.stdout.contains("300 created"), "{}", first.stdout);
    let revision = rig.jobs_revision().await;
    for _ in 0..3 {
        let again = rig.run(&apply).await.exits(0);
        assert!(again.stdout.contains("0 created, 0 updated, 300 unchanged"), "{}", again.stdout);
    }
    rig.desk.file("jobs/many.yaml", &many.join("---\n").replace("60s", "1m"));
    rig.run(&[&apply[..], &["--dry-run"]].concat()).await.exits(0);
    rig.run(&apply).await.exits(0);
    let yaml = rig.run(&["job", "get", "job-7", "-o", "yaml"]).await.exits(0).stdout;
    let piped = rig.desk.run_with(&["job", "apply", "-f", "-"], &yaml).await.exits(0);
    assert!(piped.stdout.contains("1 unchanged"), "{piped:#?}\n{yaml}");
    assert_eq!(rig.jobs_revision().await, revision);

    let list = rig.run(&["job", "list", "-o", "json"]).await.exits(0).json();
    assert_eq!(list["items"].as_array().unwrap().len(), 300);
    let page = rig.run(&["job", "list", "--limit", "2", "-o", "json"]).await.exits(0).json();
    assert_eq!((page["items"].as_array().unwrap().len(), &page["next"]), (2, &"job-1".into()));
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_who_change_one_job_one_gets_a_conflict_with_the_revision() {
    let rig = Rig::start().await;
    rig.desk.file("job.yaml", &job("one", ""));
    rig.run(&["job", "apply", "-f", "job.yaml", "--check-revision", "0"]).await.exits(0);
    let seen = rig.run(&["job", "get", "one", "-o", "json"]).await.json()["revision"].to_string();
    rig.desk.file("a.yaml", &job("one", "title: from a\n"));
    rig.desk.file("b.yaml", &job("one", "title: from b\n"));
    let apply = |file: &'static str| {
        let (rig, seen) = (&rig, &seen);
        async move {
            rig.run(&["job", "apply", "-f", file, "--check-revision", seen, "-o", "json"]).await
        }
    };
    let (a, b) = tokio::join!(apply("a.yaml"), apply("b.yaml"));
    let (won, lost) = if a.code == 0 { (a, b) } else { (b, a) };
    let revision = &won.exits(0).json()["results"][0]["revision"];
    let problem = lost.exits(1).problem();
    assert_eq!((&problem["code"], &problem["revision"]), (&"conflict".into(), revision));
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_wrong_job_leaves_all_as_they_were() {
    let rig = Rig::start().await;
    let before = rig.jobs_revision().await;
    rig.desk.file(
        "never.yaml",
        &format!("{}---\n{}", job("good", ""), job("never", "schedule: {cron: '0 0 0 30 2 ?'}\n")),
    );
    let ran = rig.run(&["job", "apply", "-f", "never.yaml"]).await.exits(2);
    ran.says("never.yaml:6").says("schedule.cron").says("nothing was changed");
    rig.desk.file("past.yaml", &job("past", "schedule: {at: '2001-01-01T00:00:00'}\n"));
    rig.run(&["job", "apply", "-f", "past.yaml"]).await.exits(2).says("schedule.at");
    assert_eq!(rig.jobs_revision().await, before);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn prune_deletes_what_carries_the_labels_and_is_in_no_file() {
    let rig = Rig::start().await;
    let labelled = |id: &str| job(id, "labels: {team: billing}\n");
    rig.desk.file("all.yaml", &[labelled("a"), labelled("b"), job("c", "")].join("---\n"));
    rig.run(&["job", "apply", "-f", "all.yaml"]).await.exits(0);
    rig.desk.file("less.yaml", &labelled("a"));
    let prune = ["job", "apply", "-f", "less.yaml", "--prune", "--label", "team=billing"];
    let dry = rig.run(&[&prune[..], &["--dry-run"]].concat()).await.exits(4);
    assert!(dry.stdout.contains("would delete b"), "{dry:#?}");
    rig.run(&prune).await.exits(0);
    let left = rig.run(&["job", "list", "-o", "json"]).await.json();
    let left: Vec<&str> =
        left["items"].as_array().unwrap().iter().map(|job| job["id"].as_str().unwrap()).collect();
    assert_eq!(left, ["a", "c"]);
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn params_are_taken_up_to_their_limit_and_refused_beyond_with_both_sizes() {
    const LIMIT: usize = 256 * 1024;
    let rig = Rig::start().await;
    // A JSON text has two quotes.
    let params = |size: usize| format!("params: \"{}\"\n", "x".repeat(size - 2));
    for (size, code) in [(LIMIT - 1, 0), (LIMIT, 0), (LIMIT + 1, 2), (1 << 20, 2)] {
        rig.desk.file("job.yaml", &job("large", &params(size)));
        let ran = rig.run(&["job", "apply", "-f", "job.yaml"]).await.exits(code);
        if code == 2 {
            ran.says(&size.to_string()).says("262144");
        }
    }
    let json = rig.run(&["job", "get", "large", "-o", "json"]).await.exits(0).json();
    assert_eq!(json["spec"]["params"].as_str().unwrap().len(), LIMIT - 2);
    rig.desk.file(
        "deep.yaml",
        &job("deep", &format!("params: {}{}\n", "[".repeat(300), "]".repeat(300))),
    );
    rig.run(&["job", "apply", "-f", "deep.yaml"]).await.exits(2).says("deep.yaml");
    rig.desk.file("params.json", &format!("\"{}\"", "x".repeat(LIMIT)));
    let ran = rig
        .run(&["job", "trigger", "large", "--params", "@params.json", "-o", "json"])
        .await
        .exits(2);
    assert_eq!(ran.problem()["code"], "too_large");
    rig.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_key_triggers_once_and_both_calls_name_the_same_run() {
    let rig = Rig::start().await;
    rig.desk.file("job.yaml", &job("demand", ""));
    rig.run(&["job", "apply", "-f", "job.yaml"]).await.exits(0);
    let run = |ran: support::Ran| ran.exits(0).json()["run"].as_str().unwrap().to_owned();
    let now = ["job", "trigger", "demand", "--key", "order-1", "-o", "json"];
    let (a, b) = tokio::join!(rig.run(&now), rig.run(&now));
    let (a, b) = (run(a), run(b));
    assert_eq!(a, b);
    assert_eq!(run(rig.run(&now).await), a);
    let later = ["job", "trigger", "demand", "--in", "1h", "--key", "order-2", "-o", "json"];
    let first = rig.run(&later).await.exits(0).json();
    let second = rig
        .run(&["job", "trigger", "demand", "--key", "order-2", "-o", "json"])
        .await
        .exits(0)
        .json();
    assert_eq!((&first["run"], &first["created"]), (&second["run"], &true.into()));
    assert_eq!(second["created"], false);
    assert_ne!(run(rig.run(&["job", "trigger", "demand", "-o", "json"]).await), a);

    rig.run(&["job", "trigger", "demand", "--at", "2001-01-01T00:00:00Z"])
        .await
        .exits(2)
        .says("past");
    rig.run(&["job", "trigger", "demand", "--at", "2099-01-01T00:00:00"])
        .await
        .exits(2)
        .says("offset");
    rig.run(&["job", "trigger", "demand", "--in", "soon"]).await.exits(2).says("--in");
    rig.run(&["job", "trigger", "demand", "--params", "{"]).await.exits(2).says("no JSON");
    rig.run(&["job", "trigger", "nobody"]).await.exits(1).says("no job");
    rig.stop().await;
}
