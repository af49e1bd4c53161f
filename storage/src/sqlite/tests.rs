//! The conformance suite over both kinds of SQLite store, and tests of the file.

mod corruption;
mod crash;
mod state;

use std::{fs, os::unix::fs::PermissionsExt};

use records::{AdminChange, AuditFilter, AuditKind, AuditRecord, SessionKey, TenantRecord};
use sqlx::{ConnectOptions as _, Connection as _};

use super::*;
use crate::{AuditChainStore, AuditStore, ConfigStore, DurableStore as _, EventStore as _};

/// Returns a store in its own folder, which is removed with the test.
async fn in_file() -> (tempfile::TempDir, SqliteStore) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&options(&folder)).await.unwrap();
    (folder, store)
}

fn options(folder: &tempfile::TempDir) -> SqliteOptions {
    SqliteOptions { path: folder.path().join("data/broker.db"), migrate: true }
}

crate::store_conformance!(file, crate::sqlite::tests::in_file().await);
crate::store_conformance!(memory, ((), crate::SqliteStore::in_memory().await.unwrap()));
crate::durable_conformance!(durable_file, crate::sqlite::tests::in_file().await);
crate::durable_conformance!(durable_memory, ((), crate::SqliteStore::in_memory().await.unwrap()));
crate::event_conformance!(events_file, crate::sqlite::tests::in_file().await);
crate::event_conformance!(events_memory, ((), crate::SqliteStore::in_memory().await.unwrap()));

#[tokio::test]
async fn records_survive_a_restart() {
    let (folder, store) = in_file().await;
    crate::conformance::fill(&store).await.unwrap();
    let before = (
        store.tenants().await.unwrap(),
        store.keys().await.unwrap(),
        store.backends().await.unwrap(),
    );
    assert!(!before.0.is_empty() && !before.1.is_empty() && !before.2.is_empty());
    store.close().await;
    drop(store);
    let store = SqliteStore::open(&options(&folder)).await.unwrap();
    assert_eq!(store.migration().from, store.migration().to, "nothing left to migrate");
    assert_eq!(
        before,
        (
            store.tenants().await.unwrap(),
            store.keys().await.unwrap(),
            store.backends().await.unwrap()
        )
    );
}

#[tokio::test]
async fn records_survive_without_a_close() {
    let (folder, store) = in_file().await;
    crate::conformance::fill(&store).await.unwrap();
    let tenants = store.tenants().await.unwrap();
    // The copy has the files as a killed process leaves them: the state on disk at this moment.
    let copy = tempfile::tempdir().unwrap();
    fs::create_dir(copy.path().join("data")).unwrap();
    for name in ["broker.db", "broker.db-wal"] {
        fs::copy(folder.path().join("data").join(name), copy.path().join("data").join(name))
            .unwrap();
    }
    let copied = SqliteStore::open(&options(&copy)).await.unwrap();
    assert_eq!(copied.tenants().await.unwrap(), tenants);
}

#[tokio::test]
async fn f_42_a_second_broker_on_the_same_file_is_refused() {
    let (folder, store) = in_file().await;
    let error = SqliteStore::open(&options(&folder)).await.unwrap_err();
    assert_eq!(error, StoreError::InUse { path: options(&folder).path });
    drop(store);
    SqliteStore::open(&options(&folder)).await.expect("free again once the first is gone");
}

#[tokio::test]
async fn the_database_of_another_program_is_refused_and_not_changed() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(&folder);
    fs::create_dir(folder.path().join("data")).unwrap();
    let connect = sqlx::sqlite::SqliteConnectOptions::new().filename(&options.path);
    let mut other = connect.clone().create_if_missing(true).connect().await.unwrap();
    sqlx::query("CREATE TABLE accounts (id INTEGER)").execute(&mut other).await.unwrap();
    other.close().await.unwrap();
    let error = SqliteStore::open(&options).await.unwrap_err();
    assert!(error.to_string().contains("tables of another program"), "{error}");
    let mut other = connect.connect().await.unwrap();
    let tables: Vec<String> =
        sqlx::query_scalar("SELECT name FROM sqlite_schema").fetch_all(&mut other).await.unwrap();
    assert_eq!(tables, ["accounts"]);
}

#[tokio::test]
async fn an_old_schema_is_refused_unless_migrating_is_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let only_open = SqliteOptions { migrate: false, ..options(&folder) };
    let error = SqliteStore::open(&only_open).await.unwrap_err();
    assert_eq!(error, StoreError::SchemaOlder { found: 0, known: schema::latest_version() });
    assert!(!only_open.path.exists(), "no empty file is left");
    assert!(error.to_string().contains("mcp-broker migrate"), "{error}");
    drop(SqliteStore::open(&options(&folder)).await.unwrap());
    SqliteStore::open(&only_open).await.expect("up to date now");
}

#[tokio::test]
async fn r_8_a_newer_schema_is_refused() {
    let (folder, store) = in_file().await;
    sqlx::query("UPDATE _sqlx_migrations SET version = 999 WHERE version = 2")
        .execute(&store.writer)
        .await
        .unwrap();
    drop(store);
    let error = SqliteStore::open(&options(&folder)).await.unwrap_err();
    assert_eq!(error, StoreError::SchemaNewer { found: 999, known: schema::latest_version() });
}

#[tokio::test]
async fn an_edited_migration_is_noticed() {
    let (folder, store) = in_file().await;
    sqlx::query("UPDATE _sqlx_migrations SET checksum = x'00'")
        .execute(&store.writer)
        .await
        .unwrap();
    drop(store);
    let error = SqliteStore::open(&options(&folder)).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt { detail } if detail.contains("migration 1")),
        "{error}"
    );
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("data")).unwrap();
    fs::write(options(&folder).path, "shopping list\n".repeat(100)).unwrap();
    let error = SqliteStore::open(&options(&folder)).await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
}

#[tokio::test]
async fn an_impossible_path_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data"), "a file where a folder should be").unwrap();
    let error = SqliteStore::open(&options(&folder)).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Unavailable { detail } if detail.contains("data")),
        "{error}"
    );
}

#[tokio::test]
async fn only_the_owner_may_read_the_files() {
    let (folder, store) = in_file().await;
    crate::conformance::fill(&store).await.unwrap();
    for entry in fs::read_dir(folder.path().join("data")).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(
            entry.metadata().unwrap().permissions().mode() & 0o077,
            0,
            "{}",
            entry.path().display()
        );
    }
}

#[tokio::test]
async fn a_full_disk_is_reported_as_full_and_loses_no_data() {
    let (_folder, store) = in_file().await;
    crate::conformance::fill(&store).await.unwrap();
    let pages: i64 =
        sqlx::query_scalar("PRAGMA page_count").fetch_one(&store.writer).await.unwrap();
    sqlx::query_scalar::<_, i64>(sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}")))
        .fetch_one(&store.writer)
        .await
        .unwrap();
    let before = store.tenants().await.unwrap();
    let big = TenantRecord { settings: "x".repeat(1 << 20), ..before[0].clone() };
    for _ in 0..3 {
        assert_eq!(
            store.apply(AdminChange::PutTenant(&big), None).await.unwrap_err(),
            StoreError::Full
        );
        assert_eq!(store.tenants().await.unwrap(), before);
    }
    // With free space the store works again without a restart.
    sqlx::query_scalar::<_, i64>("PRAGMA max_page_count = 1000000")
        .fetch_one(&store.writer)
        .await
        .unwrap();
    store.apply(AdminChange::PutTenant(&big), None).await.unwrap();
    assert!(store.tenants().await.unwrap().contains(&big));
}

#[tokio::test]
async fn no_reader_stays_at_an_old_state_after_a_disk_fault() {
    let (_folder, store) = in_file().await;
    let mut reading = Vec::new();
    for _ in 0..READERS_MAX {
        let mut reader = store.readers.begin().await.unwrap();
        // SQLite does the same by itself if it cannot read the file.
        sqlx::query("ROLLBACK").execute(&mut *reader).await.unwrap();
        reading.push(reader);
    }
    drop(reading);
    for _ in 0..READERS_MAX {
        assert_eq!(store.stream(&SessionKey::new([1; 32]), 1, 0).await.unwrap(), None);
    }
    crate::conformance::fill(&store).await.unwrap();
    for _ in 0..READERS_MAX {
        assert!(!store.tenants().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn settings_reach_the_disk_before_a_write_returns() {
    let (_folder, store) = in_file().await;
    let mode: String =
        sqlx::query_scalar("PRAGMA journal_mode").fetch_one(&store.writer).await.unwrap();
    let synchronous: i64 =
        sqlx::query_scalar("PRAGMA synchronous").fetch_one(&store.writer).await.unwrap();
    assert_eq!((mode.as_str(), synchronous), ("wal", 2), "2 is FULL");
}

#[tokio::test]
async fn the_database_refuses_changes_of_audit_records() {
    let store = SqliteStore::in_memory().await.unwrap();
    let record = AuditRecord {
        id: [1; 16],
        at_us: 5,
        kind: AuditKind::Admin,
        tenant: None,
        body: "{}".into(),
    };
    store.append_audit(&[record]).await.unwrap();
    for statement in ["UPDATE audit SET body = ''", "DELETE FROM audit"] {
        let mut writing = store.begin().await.unwrap();
        sqlx::query(statement).execute(writing.connection()).await.unwrap_err();
    }
    assert_eq!(store.audit_records(&AuditFilter::default(), None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn s15_the_database_itself_refuses_to_replace_records_and_chains() {
    let store = SqliteStore::in_memory().await.unwrap();
    let record = AuditRecord {
        id: [1; 16],
        at_us: 5,
        kind: AuditKind::Admin,
        tenant: None,
        body: "{}".into(),
    };
    store.append_audit(std::slice::from_ref(&record)).await.unwrap();
    let columns = "(number, id, at_us, kind, tenant, body, chain_position, chain_hash)";
    let (old, new) = ("x'01010101010101010101010101010101'", "x'02020202020202020202020202020202'");
    for statement in [
        format!("REPLACE INTO audit {columns} VALUES (1, {new}, 5, 'admin', NULL, 'forged', 9, x'00')"),
        format!("REPLACE INTO audit {columns} VALUES (9, {old}, 5, 'admin', NULL, 'forged', 9, x'00')"),
        format!("REPLACE INTO audit {columns} VALUES (9, {new}, 5, 'admin', NULL, 'forged', 1, x'00')"),
        format!("INSERT OR REPLACE INTO audit {columns} VALUES (1, {old}, 5, 'admin', NULL, 'forged', 1, x'00')"),
        "REPLACE INTO audit SELECT number, id, at_us, kind, tenant, 'forged', chain_position, chain_hash FROM audit".to_owned(),
        "UPDATE OR REPLACE audit SET number = 2".to_owned(),
        "REPLACE INTO audit_chains (chain, length, head, start_hash) VALUES ('', 0, x'00', x'00')".to_owned(),
    ] {
        let mut writing = store.begin().await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(statement.clone())).execute(writing.connection()).await.expect_err(&statement);
    }
    // The broker itself adds the same record once, and further ones behind it.
    let next = AuditRecord { id: [3; 16], at_us: 6, ..record.clone() };
    store.append_audit(&[record, next]).await.unwrap();
    let kept = store.audit_records(&AuditFilter::default(), None, 10).await.unwrap();
    assert_eq!(kept.len(), 2);
    assert_eq!(
        store
            .audit_chain_page("", 0, 10)
            .await
            .unwrap()
            .records
            .iter()
            .map(|link| link.position)
            .collect::<Vec<_>>(),
        [1, 2]
    );
}

#[tokio::test]
async fn a_change_that_cannot_be_recorded_is_not_made() {
    let store = SqliteStore::in_memory().await.unwrap();
    let refuses = sqlx::query(
        "CREATE TRIGGER refuses BEFORE INSERT ON audit BEGIN SELECT RAISE(ABORT, 'no'); END",
    );
    let mut writing = store.begin().await.unwrap();
    refuses.execute(writing.connection()).await.unwrap();
    writing.commit().await.unwrap();
    let record = AuditRecord {
        id: [1; 16],
        at_us: 1,
        kind: AuditKind::Admin,
        tenant: None,
        body: "{}".into(),
    };
    let acme = TenantRecord {
        tenant: protocol::ids::TenantId::parse("acme").unwrap(),
        settings: "{}".into(),
        created_at_us: 1,
        updated_at_us: 1,
    };
    store.apply(AdminChange::PutTenant(&acme), Some(&record)).await.unwrap_err();
    assert_eq!(store.tenants().await.unwrap(), []);
}

#[tokio::test]
async fn s15_records_from_before_the_chains_stay_outside_and_are_removed_by_their_age() {
    let folder = tempfile::tempdir().unwrap();
    let path = options(&folder).path;
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    schema::make_older(&path, 4).await;
    let pool = SqlitePool::connect(&format!("sqlite:{}", path.display())).await.unwrap();
    for number in [1_i64, 2] {
        let insert = sqlx::query(
            "INSERT INTO audit (id, at_us, kind, tenant, body) VALUES (?, ?, 'call', 'acme', '{}')",
        );
        insert
            .bind(vec![u8::try_from(number).unwrap(); 16])
            .bind(number)
            .execute(&pool)
            .await
            .unwrap();
    }
    pool.close().await;
    let store = SqliteStore::open(&options(&folder)).await.unwrap();
    let record = AuditRecord {
        id: [3; 16],
        at_us: 3,
        kind: AuditKind::Call,
        tenant: Some("acme".into()),
        body: "{}".into(),
    };
    store.append_audit(&[record]).await.unwrap();
    let outside = store.unchained_audit().await.unwrap();
    assert_eq!((outside.until, outside.first_unchained), (2, None));
    let chained = store.audit_chain_page("acme", 0, 10).await.unwrap();
    assert_eq!(
        chained.records.iter().map(|link| (link.number, link.position)).collect::<Vec<_>>(),
        [(3, 1)]
    );
    assert_eq!(store.audit_records(&AuditFilter::default(), None, 10).await.unwrap().len(), 3);
    assert_eq!(store.trim_unchained_audit(2, 10).await.unwrap(), 1);
    assert_eq!(store.trim_unchained_audit(100, 10).await.unwrap(), 1);
    assert_eq!(
        store.audit_records(&AuditFilter::default(), None, 10).await.unwrap().len(),
        1,
        "the one that is chained stays"
    );
}

#[tokio::test]
async fn a_change_waits_for_a_slow_commit() {
    let (_folder, store) = in_file().await;
    crate::conformance::fill(&store).await.unwrap();
    let (release, released) = std::sync::mpsc::channel::<()>();
    let mut writer = store.writer.acquire().await.unwrap();
    writer.lock_handle().await.unwrap().set_commit_hook(move || {
        let _tester_is_gone = released.recv();
        true
    });
    drop(writer);
    let acme = protocol::ids::TenantId::parse("acme").unwrap();
    let key = protocol::ids::KeyId::new("k1");
    let mut change = Box::pin(store.apply(AdminChange::DeleteKey(&acme, &key), None));
    let answer = tokio::time::timeout(DEADLINE + ACQUIRE_TIMEOUT, &mut change).await;
    assert!(answer.is_err(), "the disk has not answered: {answer:?}");
    assert_eq!(store.keys_of(&acme).await.unwrap().len(), 2);
    drop(release);
    assert_eq!(change.await, Ok(true));
    assert_eq!(store.keys_of(&acme).await.unwrap().len(), 1);
}

#[tokio::test]
async fn f_10_a_revocation_of_an_unknown_kind_does_not_hide_the_others() {
    let store = SqliteStore::in_memory().await.unwrap();
    crate::conformance::credentials::revocations_are_kept_and_replaced(&store).await.unwrap();
    let insert = "INSERT INTO revocations (tenant, kind, subject, issued_before_us, created_at_us) VALUES ('acme', 'later', 'x', 1, 1)";
    sqlx::query(insert).execute(&store.writer).await.unwrap();
    assert_eq!(store.revocations().await.unwrap().len(), 1);
    assert_eq!(store.unreadable_rows(), 1);
}
