//! Tests of the schema: one of many replicas migrates it. The store refuses an older, newer or
//! edited schema, and resumes an interrupted migration.

use std::str::FromStr;

use records::{AuditFilter, AuditKind, AuditRecord, NodeName, WriteOp, WriteOutcome};
use sqlx::{ConnectOptions as _, Executor as _, postgres::PgConnectOptions};
use testkit::{Direction, FaultProxy, PostgresServer};

use super::{
    AT_MOST, PostgresOptions, PostgresStore, behind, claims::somebody_waits, create, end, key,
    on_server, open, open_session, options, update,
};
use crate::{
    AuditChainStore, AuditStore, ConfigStore, DurableStore, GrantStore, MigrationOutcome,
    NodeStore, SessionStore, StoreError, TaskStore, postgres::schema,
};

#[tokio::test]
async fn an_old_schema_is_refused_unless_migrating_is_allowed() {
    let server = PostgresServer::fast().await;
    let only_open = PostgresOptions { migrate: false, ..options(&server) };
    let error = PostgresStore::open(&only_open).await.unwrap_err();
    assert_eq!(error, StoreError::SchemaOlder { found: 0, known: schema::latest_version() });
    let store = open(&server).await;
    assert_eq!(store.migration(), MigrationOutcome { from: 0, to: schema::latest_version() });
    PostgresStore::open(&only_open).await.expect("up to date now");
}

#[tokio::test]
async fn r_8_a_newer_schema_and_an_edited_migration_are_refused() {
    let (server, store) = on_server().await;
    store.close().await;
    for (success, is_refused) in [("FALSE", true), ("TRUE", false)] {
        let damage = format!("UPDATE _sqlx_migrations SET success = {success} WHERE version = 7");
        server.sql(&server.url(), &damage).await;
        let opened = PostgresStore::open(&options(&server)).await;
        let refusal = opened.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(
            refusal.contains("migration 7 is absent or incomplete"),
            is_refused,
            "{refusal}"
        );
    }
    server
        .sql(&server.url(), "UPDATE _sqlx_migrations SET checksum = '\\x00' WHERE version = 1")
        .await;
    let error = PostgresStore::open(&options(&server)).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::Corrupt { detail } if detail.contains("migration 1")),
        "{error}"
    );
    server.sql(&server.url(), "UPDATE _sqlx_migrations SET version = 999 WHERE version = 1").await;
    let error = PostgresStore::open(&options(&server)).await.unwrap_err();
    assert_eq!(error, StoreError::SchemaNewer { found: 999, known: schema::latest_version() });
}

#[tokio::test]
async fn f_49_replicas_that_start_at_once_take_turns_to_migrate() {
    let server = PostgresServer::fast().await;
    let opened: Vec<_> = (0..6)
        .map(|_| {
            let options = options(&server);
            tokio::spawn(async move { PostgresStore::open(&options).await })
        })
        .collect();
    let mut migrated = 0;
    for store in opened {
        let store = store.await.unwrap().expect("it is up to date, by itself or by another");
        migrated += usize::from(store.migration().from == 0);
        assert_eq!(store.tenants().await.unwrap(), []);
    }
    assert_eq!(migrated, 1);
}

#[tokio::test]
async fn f_48_a_migration_interrupted_anywhere_is_resumed() {
    let server = PostgresServer::fast().await;
    let proxy = FaultProxy::start(([127, 0, 0, 1], server.port()).into()).await;
    let mut refused = 0;
    for bytes in (0..24).map(|step: u64| 60 + step * step * 70) {
        let url = server.database().await;
        let through = PostgresOptions { url: behind(&proxy, &url), ..options(&server) };
        proxy.cut_after(Direction::Upstream, bytes);
        let first = PostgresStore::open(&through).await;
        proxy.heal();
        refused += usize::from(first.is_err());
        drop(first);
        let store = PostgresStore::open(&through)
            .await
            .unwrap_or_else(|error| panic!("cut after {bytes}: {error}"));
        assert_eq!(store.tenants().await.unwrap(), []);
        store.close().await;
    }
    assert!(refused > 12, "{refused} of the cuts were felt");
}

/// Opens a store that adds a column to a table which another program reads for a long time, such as
/// `pg_dump`. Replicas must be able to use that table meanwhile.
pub(super) async fn migrates_beside_a_long_read(server: &PostgresServer, options: PostgresOptions) {
    let connect =
        async || PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    let (mut dumping, mut replica) = (connect().await, connect().await);
    // Migration 26 adds the column.
    schema::migrate_to(&mut dumping, 25).await.unwrap();
    dumping.execute("BEGIN; LOCK TABLE task_inputs IN ACCESS SHARE MODE").await.unwrap();
    let opened = tokio::spawn(async move { PostgresStore::open(&options).await });
    somebody_waits(server).await;
    // A statement of a replica has less time.
    replica.execute("SET lock_timeout = '20s'").await.unwrap();
    replica.execute("SELECT count(*) FROM task_inputs").await.expect("the migration gives way");
    assert!(!opened.is_finished(), "it tries again");
    dumping.execute("COMMIT").await.unwrap();
    let store = opened.await.unwrap().expect("the table is free");
    assert_eq!(store.migration().to, schema::latest_version());
}

#[tokio::test]
async fn r_8_running_replicas_do_not_wait_behind_a_migration_that_waits() {
    let server = PostgresServer::fast().await;
    migrates_beside_a_long_read(&server, options(&server)).await;
}

#[tokio::test]
async fn r_8_schema_additions_of_a_newer_build_do_not_affect_running_replicas() {
    let (server, store) = on_server().await;
    let node = NodeName::new("a");
    store.join(&node, None, AT_MOST).await.unwrap();
    crate::conformance::fill(&store).await.unwrap();
    store.write(&[open_session(1), create(1), create(2)]).await.unwrap();
    let (tenants, sessions, tasks) = (
        store.tenants().await,
        store.list_sessions(None, None, 10).await,
        store.list_tasks(None, None, None, 10).await,
    );
    for table in [
        "tenants",
        "api_keys",
        "backends",
        "nodes",
        "sessions",
        "subscriptions",
        "tasks",
        "task_inputs",
        "event_streams",
    ] {
        server
            .sql(
                &server.url(),
                &format!("ALTER TABLE {table} ADD COLUMN later TEXT DEFAULT 'of a newer build'"),
            )
            .await;
    }
    server
        .sql(&server.url(), "UPDATE _sqlx_migrations SET version = 999 WHERE version = (SELECT max(version) FROM _sqlx_migrations)")
        .await;
    assert_eq!(store.tenants().await, tenants);
    assert_eq!(
        store.list_sessions(None, None, 10).await.map(|found| found.len()),
        sessions.map(|found| found.len())
    );
    assert_eq!(
        store.list_tasks(None, None, None, 10).await.map(|found| found.len()),
        tasks.map(|found| found.len())
    );
    store.renew_lease(&node, AT_MOST, false).await.unwrap();
    assert_eq!(
        store.write(&[update(1), end(1), open_session(2)]).await.unwrap(),
        [WriteOutcome::Done, WriteOutcome::Done, WriteOutcome::Done]
    );
    assert_eq!(
        server.sql(&server.url(), "SELECT count(*) FROM tasks WHERE later IS NULL").await,
        "0",
        "what it added is left alone"
    );
    assert_eq!(store.unreadable_rows(), 0);
    // A store that opens now does not know the newer schema.
    let refusal = PostgresStore::open(&options(&server)).await.unwrap_err();
    assert_eq!(refusal, StoreError::SchemaNewer { found: 999, known: schema::latest_version() });
}

/// An upgrade of the server by logical replication publishes all tables.
#[tokio::test]
async fn a_publication_of_all_tables_stops_no_statement() {
    let (server, store) = on_server().await;
    server.sql(&server.url(), "CREATE PUBLICATION everything FOR ALL TABLES").await;
    crate::conformance::fill(&store).await.unwrap();
    let (key, uri) = (key(1), "file:///one".to_owned());
    let batch = [
        open_session(1),
        WriteOp::Unsubscribe { key, epoch: 1, exposed_uri: uri },
        WriteOp::EndSession { key, epoch: 1 },
    ];
    for write in batch {
        assert_eq!(store.write(&[write]).await.unwrap(), [WriteOutcome::Done]);
    }
    let without_identity = "SELECT string_agg(relname, ' ') FROM pg_class AS c
        WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace AND relreplident <> 'f'
          AND NOT EXISTS (SELECT FROM pg_index WHERE indrelid = c.oid AND indisprimary)";
    assert_eq!(server.sql(&server.url(), without_identity).await, "");
}

#[tokio::test]
async fn the_database_refuses_changes_of_audit_records() {
    let (server, store) = on_server().await;
    let record = AuditRecord {
        id: [1; 16],
        at_us: 5,
        kind: AuditKind::Admin,
        tenant: None,
        body: "{}".into(),
    };
    store.append_audit(&[record]).await.unwrap();
    for statement in ["UPDATE audit SET body = '{}'", "DELETE FROM audit", "TRUNCATE audit"] {
        let refused = format!(
            "DO $$ BEGIN {statement}; RAISE 'it was done'; EXCEPTION WHEN OTHERS THEN IF SQLERRM = 'it was done' THEN RAISE; END IF; END $$"
        );
        server.sql(&server.url(), &refused).await;
    }
    assert_eq!(store.audit_records(&AuditFilter::default(), None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn the_clock_of_the_database_bounds_the_times_of_audit_records() {
    const DAY_US: i64 = 86_400_000_000;
    let (_server, store) = on_server().await;
    let now = store.clock_us().await.unwrap();
    let record = |number: u8, at_us: i64| AuditRecord {
        id: [number; 16],
        at_us,
        kind: AuditKind::Call,
        tenant: Some("acme".into()),
        body: "{}".into(),
    };
    // The clock of one replica stands in 1970, and that of another one is far ahead.
    let of_right_clock = now - DAY_US / 24;
    let given = [record(1, 5), record(2, i64::MAX), record(3, of_right_clock)];
    store.append_audit(&given).await.unwrap();
    let stored = store.audit_records(&AuditFilter::default(), None, 10).await.unwrap();
    let times: Vec<i64> = stored.iter().map(|stored| stored.record.at_us).collect();
    let latest = store.clock_us().await.unwrap() + DAY_US;
    assert!(times[0] >= now - DAY_US && times[1] <= latest, "{times:?}");
    assert_eq!(times[2], of_right_clock);
    let none = Vec::<String>::new();
    assert_eq!(store.audit_chains_to_truncate(now - DAY_US, None, 10).await.unwrap(), none);
    assert_eq!(store.audit_chains_to_truncate(latest, None, 10).await.unwrap(), ["acme"]);
}
