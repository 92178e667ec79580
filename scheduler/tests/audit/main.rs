//! The audit against a real installation: a node, executors, some thousand fires. What was done
//! right is clean; whatever is tampered with is found, and named.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests")]

mod shop;
mod site;

use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::json;
use taskparty_common::fire::Fired;
use taskparty_common::name::{App, Handler};
use taskparty_common::outcome::{RunState, TriggerResult};
use taskparty_nats::history::delete_message;
use taskparty_nats::publish::Draft;
use taskparty_nats::subject::Bucket;
use taskparty_scheduler::audit::{self, AuditConfig, AuditError, Kind, NoteKind, Report};
use taskparty_scheduler::store::Store;
use uuid::Uuid;

use crate::site::{Site, spec};

/// How long jobs fire before they are audited.
const FIRING: TimeDelta = TimeDelta::seconds(15);

/// About a hundred jobs: most are well; some fail first, or for good, or take too long, or have
/// shards, or were missed for a while.
async fn save_all(site: &Site) {
    let every = |time: &str| json!({ "fixed_rate": time });
    for n in 0..50 {
        site.save(spec(&format!("well-{n}"), "well", every("1s"))).await;
    }
    for n in 0..15 {
        let mut job = spec(&format!("flaky-{n}"), "flaky", every("1s"));
        job["retry"] = json!({ "max": 2, "initial": "300ms" });
        site.save(job).await;
    }
    for n in 0..5 {
        let mut job = spec(&format!("broken-{n}"), "broken", every("2s"));
        job["retry"] = json!({ "max": 1, "initial": "300ms" });
        site.save(job).await;
    }
    for n in 0..5 {
        let mut job = spec(&format!("slow-{n}"), "slow", every("2s"));
        (job["timeout"], job["retry"]) = (json!("300ms"), json!({ "max": 1, "initial": "300ms" }));
        site.save(job).await;
    }
    for n in 0..15 {
        let mut job = spec(&format!("sharded-{n}"), "well", every("3s"));
        job["shards"] = json!(3);
        site.save(job).await;
    }
    for (n, policy) in ["once", "all", "skip"].into_iter().cycle().take(9).enumerate() {
        let mut job = spec(&format!("missed-{n}"), "well", every("1s"));
        job["misfire"] = json!({ "policy": policy, "grace": "2s" });
        site.save_as_of(job, site.now() - TimeDelta::seconds(60)).await;
    }
    for n in 0..3 {
        let cron = json!({ "cron": "*/2 * * * * *", "timezone": "Asia/Shanghai", "spread": "1s" });
        site.save(spec(&format!("cron-{n}"), "well", cron)).await;
    }
    site.save(spec("delayed", "well", json!({ "fixed_delay": "1s" }))).await;
}

struct Tamper<'a> {
    site: &'a Site,
    config: AuditConfig,
}

impl Tamper<'_> {
    async fn audit(&self) -> Report {
        audit::run(&self.site.buckets, self.site.store(), self.config.clone()).await.unwrap()
    }

    /// Asserts that `kind` is found for `run`.
    async fn finds(&self, kind: Kind, run: Uuid) {
        let report = self.audit().await;
        named(&report, kind, run);
    }
}

fn named(report: &Report, kind: Kind, run: Uuid) {
    let found = report.violations.iter().any(|v| v.kind == kind && v.place.run == Some(run));
    assert!(found, "{kind} of {run} is not among:\n{}", shown(report));
}

fn shown(report: &Report) -> String {
    report.violations.iter().map(|violation| format!("{violation}\n")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_installation_is_clean_and_whatever_is_tampered_with_is_found() {
    let site = Site::start().await;
    let shops = [site.shop("one"), site.shop("two")];
    site.executors_are_live(2).await;
    let begin = site.now();
    // What some of the jobs missed before is in the period, too.
    let from = begin - TimeDelta::seconds(90);
    save_all(&site).await;
    for n in 0..20 {
        site.trigger("well-0", &format!("key-{n}")).await;
    }
    site.edited(begin).await;
    let cut = begin + FIRING;
    site.handled_up_to(cut).await;
    site.all_ended(from, cut).await;

    let starts: Vec<_> = shops.iter().map(|shop| shop.file.clone()).collect();
    let mut config = AuditConfig { starts, ..AuditConfig::new(from, cut) };
    // As if the audit came later: everything of the period has settled.
    config.clock = site.clock_ahead(TimeDelta::seconds(90));
    let mut tamper = Tamper { site: &site, config };
    let report = tamper.audit().await;
    assert!(report.is_clean(), "{}", shown(&report));
    let judged = report.judged;
    assert!(judged.instants > 900 && judged.runs > 900, "{judged:?}");
    assert!(judged.runs == judged.runs_ended && judged.attempts > judged.runs, "{judged:?}");
    assert!(judged.starts >= judged.attempts && judged.locks > 900, "{judged:?}");
    assert_eq!(report.notes_by_kind.get(&NoteKind::Redelivered), None);

    let fired = site.fired(from, cut).await;
    assert!(fired.iter().any(|(_, fired)| fired.skipped.as_ref().is_some_and(|s| s.count > 1)));
    let mut ran = fired.iter().filter(|(_, fired)| fired.result == TriggerResult::Dispatched);
    let mut next = || ran.next().map(|(seq, fired)| (*seq, fired.clone())).unwrap();

    a_row_is_gone(&tamper, next().1.run).await;
    a_start_is_there_twice(&mut tamper, next().1.run).await;
    a_start_is_cut_off_or_garbage(&tamper).await;
    a_second_record_says_otherwise(&tamper, next().1).await;
    a_lock_is_gone(&tamper, next().1).await;
    a_dispatch_is_left(&tamper, next().1).await;
    a_record_is_gone(&tamper, next()).await;
    for shop in shops {
        shop.stop().await;
    }
    site.stop().await;
}

async fn a_row_is_gone(tamper: &Tamper<'_>, run: Uuid) {
    let path = tamper.site.copy_of_history(run).await;
    let store = Store::open(&format!("sqlite:{}", path.display())).await.unwrap();
    let report = audit::run(&tamper.site.buckets, &store, tamper.config.clone()).await.unwrap();
    named(&report, Kind::RunMissing, run);
    assert_eq!(report.violations_total, 1, "{}", shown(&report));
    store.close().await;
}

async fn a_start_is_there_twice(tamper: &mut Tamper<'_>, run: Uuid) {
    let mut config = tamper.config.clone();
    for file in &mut config.starts {
        let text = std::fs::read_to_string(&*file).unwrap();
        let Some(line) = text.lines().find(|line| line.contains(&run.to_string())) else {
            continue;
        };
        *file = file.with_extension("tampered");
        std::fs::write(file, format!("{text}{line}\n")).unwrap();
    }
    let before = std::mem::replace(&mut tamper.config, config);
    let report = tamper.audit().await;
    named(&report, Kind::StartTwice, run);
    assert_eq!(report.violations_total, 1, "{}", shown(&report));
    tamper.config = before;
}

async fn a_start_is_cut_off_or_garbage(tamper: &Tamper<'_>) {
    let mut config = tamper.config.clone();
    let append = |path: &Path, end: &str| {
        let file = path.with_extension("garbage");
        let text = std::fs::read_to_string(path).unwrap();
        std::fs::write(&file, format!("{text}{end}")).unwrap();
        file
    };
    let whole = config.starts[0].clone();
    config.starts[0] = append(&whole, "{\"run\": \"01");
    let report = audit::run(&tamper.site.buckets, tamper.site.store(), config.clone()).await;
    let report = report.unwrap();
    assert!(report.is_clean() && report.notes_by_kind.contains_key(&NoteKind::Unreadable));
    config.starts[0] = append(&whole, "{\"run\": \"01\n");
    let refused = audit::run(&tamper.site.buckets, tamper.site.store(), config).await;
    assert!(matches!(refused, Err(AuditError::Starts { .. })), "{refused:?}");
}

async fn a_second_record_says_otherwise(tamper: &Tamper<'_>, fired: Fired) {
    let run = fired.run;
    let other = Fired { result: TriggerResult::Expired, ..fired };
    let site = tamper.site;
    let subject = site.nats.names().fired(&other.app);
    let draft = Draft::new(subject, serde_json::to_vec(&other).unwrap());
    site.buckets.publisher().publish(draft).await.unwrap();
    tamper.finds(Kind::RecordConflict, run).await;
}

async fn a_lock_is_gone(tamper: &Tamper<'_>, fired: Fired) {
    assert_eq!(tamper.site.buckets.forget(Bucket::Fires, &fired.lock).await.unwrap(), 1);
    tamper.finds(Kind::LockMissing, fired.run).await;
}

async fn a_dispatch_is_left(tamper: &Tamper<'_>, fired: Fired) {
    let site = tamper.site;
    let (app, nobody) = (App::new("shop").unwrap(), Handler::new("nobody").unwrap());
    let subject = site.nats.names().dispatch(&app, &nobody, fired.run, 0, 1);
    site.buckets.publisher().publish(Draft::new(subject, "{}")).await.unwrap();
    tamper.finds(Kind::DispatchLeft, fired.run).await;
}

async fn a_record_is_gone(tamper: &Tamper<'_>, (seq, fired): (u64, Fired)) {
    let site = tamper.site;
    let stream = site.nats.names().results_stream();
    assert!(delete_message(site.nats.js(), &stream, seq).await.unwrap());
    let report = tamper.audit().await;
    named(&report, Kind::LockUnrecorded, fired.run);
    named(&report, Kind::RecordMissing, fired.run);
}

#[tokio::test]
async fn a_period_that_is_none_or_has_too_much_in_it_is_refused() {
    let site = Site::start().await;
    let now: DateTime<Utc> = site.now();
    let empty = AuditConfig::new(now + TimeDelta::hours(1), now + TimeDelta::hours(2));
    let refused = audit::run(&site.buckets, site.store(), empty).await;
    assert!(matches!(refused, Err(AuditError::Empty { .. })));
    let shop = site.shop("one");
    site.executors_are_live(1).await;
    site.save(spec("on-demand", "well", json!(null))).await;
    for n in 0..3 {
        site.trigger("on-demand", &format!("key-{n}")).await;
    }
    site.runs_in(RunState::Succeeded, 3).await;
    let small = AuditConfig { max_runs: 2, ..AuditConfig::new(now, now + TimeDelta::hours(1)) };
    let refused = audit::run(&site.buckets, site.store(), small).await;
    assert!(matches!(refused, Err(AuditError::TooLarge(2))), "{refused:?}");
    let report = audit::run(
        &site.buckets,
        site.store(),
        AuditConfig {
            settle: Duration::from_secs(1),
            ..AuditConfig::new(now, now + TimeDelta::hours(1))
        },
    )
    .await;
    assert!(report.unwrap().is_clean());
    shop.stop().await;
    site.stop().await;
}
