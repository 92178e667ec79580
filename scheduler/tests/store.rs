//! Opening a store, and what is said when it cannot be opened.

use std::path::Path;

use taskparty_common::outcome::RunState;
use taskparty_scheduler::store::{Store, StoreError};

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

#[tokio::test]
async fn a_store_is_made_with_its_folder_and_keeps_its_id() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("deep/down/history.db");
    let store = Store::open(&url(&path)).await.unwrap();
    let id = store.id();
    store.close().await;
    store.close().await;
    let again = Store::open(&url(&path)).await.unwrap();
    assert_eq!(again.id(), id);
    let other = Store::open(&url(&dir.path().join("other.db"))).await.unwrap();
    assert_ne!(other.id(), id);
}

#[tokio::test]
async fn questions_go_on_while_the_file_is_away_and_touch_nothing_that_is_in_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let (here, away) = (dir.path().join("history.db"), dir.path().join("away.db"));
    let store = Store::open(&url(&here)).await.unwrap();
    std::fs::rename(&here, &away).unwrap();
    std::fs::write(&here, "").unwrap();
    // More at once than there are connections.
    let ask = || futures::future::join_all((0..20).map(|_| store.count(RunState::Succeeded)));
    for count in ask().await {
        assert_eq!(count.unwrap(), 0);
    }
    assert_eq!(std::fs::metadata(&here).unwrap().len(), 0);
    std::fs::rename(&away, &here).unwrap();
    for count in ask().await {
        assert_eq!(count.unwrap(), 0);
    }
    store.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_several_that_open_a_new_file_at_once_each_has_it() {
    for _ in 0..5 {
        let dir = tempfile::tempdir().unwrap();
        let url = url(&dir.path().join("history.db"));
        let opened = (0..6).map(|_| {
            let url = url.clone();
            tokio::spawn(async move { Store::open(&url).await.map(|store| store.id()) })
        });
        let mut ids = std::collections::BTreeSet::new();
        for one in opened.collect::<Vec<_>>() {
            ids.insert(one.await.unwrap().unwrap());
        }
        assert_eq!(ids.len(), 1);
    }
}

#[tokio::test]
async fn a_url_that_is_none_says_what_would_be_right() {
    for (url, words) in [
        ("history.db", "sqlite:PATH"),
        ("sqlite:", "path is missing"),
        ("postgres://u:secret@host/db", "not yet"),
        ("mysql://host/db", "not yet"),
        ("oracle:x", "no such kind"),
        ("sqlite::memory:", "name a file"),
    ] {
        let error = Store::open(url).await.unwrap_err();
        assert!(matches!(error, StoreError::Url { .. }), "{error}");
        assert!(error.to_string().contains(words), "{error}");
        assert!(!error.to_string().contains("secret"), "{error}");
    }
}

#[tokio::test]
async fn a_file_that_cannot_be_used_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let folder = Store::open(&url(dir.path())).await.unwrap_err();
    assert!(folder.to_string().contains("it is a folder"), "{folder}");
    let text = dir.path().join("text.db");
    std::fs::write(&text, "this is no database, only a long enough line of text\n".repeat(100))
        .unwrap();
    let text = Store::open(&url(&text)).await.unwrap_err();
    assert!(text.to_string().contains("no SQLite database"), "{text}");
    let blocked = Store::open(&url(&dir.path().join("text.db/history.db"))).await.unwrap_err();
    assert!(blocked.to_string().contains("folder cannot be made"), "{blocked}");
}

#[tokio::test]
async fn a_file_of_a_newer_version_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("history.db");
    Store::open(&url(&path)).await.unwrap().close().await;
    let pool = sqlx::SqlitePool::connect(&url(&path)).await.unwrap();
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
         VALUES (900, 'of the future', 1, x'00', 0)",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;
    let error = Store::open(&url(&path)).await.unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 900, .. }), "{error}");
}
