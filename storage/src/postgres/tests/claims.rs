//! Tests of claims: their cost, their result, and tasks from an earlier schema version.

use std::{str::FromStr, time::Duration};

use protocol::ids::TaskId;
use records::{NodeName, TaskClaimScope, TaskStatus};
use sqlx::{ConnectOptions as _, Executor as _, postgres::PgConnectOptions};
use testkit::{PostgresServer, eventually};

use super::{
    super::{schema, sessions, tasks},
    AT_MOST, PostgresStore, create, key, on_server, open, open_session,
    outages::{everything_works_soon, warm},
};
use crate::{DurableStore, NodeStore, SessionStore, StoreError, TaskStore};

/// Tasks in the table, and the number of unfinished ones.
const TASKS: u32 = 200_000;
const UNFINISHED: u32 = 4_000;

/// Returns a server with many tasks, all owned by a live node.
async fn with_many_tasks() -> (PostgresServer, PostgresStore, NodeName) {
    let (server, store) = on_server().await;
    let (owner, other) = (NodeName::new("a"), NodeName::new("b"));
    store.join(&owner, None, Duration::from_secs(3_600)).await.unwrap();
    store.join(&other, None, Duration::from_secs(3_600)).await.unwrap();
    let every = TASKS / UNFINISHED;
    let fill = format!(
        "INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, status, bytes, step, owner, epoch,
                            revision, created_at_us, updated_at_us)
         SELECT 'many ' || n, 'acme', 'ada', decode(repeat('00', 32), 'hex'), FALSE, 'b', decode(repeat('ab', 200), 'hex'), '',
                CASE WHEN n % {every} = 0 THEN 'working' ELSE 'completed' END, 200, 1, 'a', 1, 1, n, n
         FROM generate_series(1, {TASKS}) AS n;
         INSERT INTO task_usage (tenant, running, stored, bytes)
         VALUES ('acme', {UNFINISHED}, {TASKS}, 200 * {TASKS});"
    );
    server.sql(&server.url(), &fill).await;
    server.sql(&server.url(), "VACUUM ANALYZE tasks").await;
    (server, store, other)
}

/// Returns the number of pages that a statement reads, planning aside.
async fn pages(server: &PostgresServer, statement: &str) -> u32 {
    pages_after(server, "SELECT 1 WHERE FALSE", statement).await
}

/// Works as `pages`, after another statement in the same session.
pub(super) async fn pages_after(server: &PostgresServer, before: &str, statement: &str) -> u32 {
    let explained = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {statement}");
    let plan = server.sql(&server.url(), &format!("{before}; {explained}")).await;
    let executing = plan.lines().take_while(|line| !line.starts_with("Planning"));
    // The first line does not include what a change in a WITH clause reads.
    executing.filter(|line| line.contains("Buffers: shared")).map(pages_in).max().unwrap_or(0)
}

/// Returns the number of pages that a line of a plan counts.
fn pages_in(line: &str) -> u32 {
    let counts = line.split_whitespace().filter_map(|pair| pair.split_once('='));
    counts
        .filter(|(what, _)| matches!(*what, "hit" | "read"))
        .filter_map(|(_, count)| count.parse::<u32>().ok())
        .sum()
}

#[tokio::test]
async fn a_search_for_tasks_does_not_read_the_whole_table() {
    let (server, store, node) = with_many_tasks().await;
    assert_eq!(store.claim_tasks(&node, TaskClaimScope::Unowned, 64, &[]).await.unwrap(), []);
    let table: u32 =
        server.sql(&server.url(), "SELECT pg_relation_size('tasks') / 8192").await.parse().unwrap();
    // The first call in a session reads the catalog, too.
    let claim = "SELECT * FROM claim_tasks('b', 64, 1, '{}', '{}')";
    let looking = pages(&server, claim).await;
    assert!(looking > 0 && looking < 1_000 && looking < table / 10, "{looking} of {table} pages");
    let counting = pages(&server, tasks::TASK_COUNTS).await;
    assert!(counting > 0 && counting < table, "{counting} of {table} pages");
    let counts = store.task_counts().await.unwrap();
    assert_eq!(counts[0], (TaskStatus::Working, u64::from(UNFINISHED)));
    assert_eq!(counts[2], (TaskStatus::Completed, u64::from(TASKS - UNFINISHED)));
}

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'";

/// Waits until a statement waits for a lock.
pub(super) async fn somebody_waits(server: &PostgresServer) {
    eventually("a statement to wait", async || {
        match server.sql(&server.url(), WAITING).await.as_str() {
            "0" => Err(()),
            _ => Ok(()),
        }
    })
    .await;
}

/// Between a claimant's first look and its claim, a node that joined meanwhile becomes the owner.
#[tokio::test]
async fn a_task_of_a_node_that_joined_meanwhile_is_not_claimed() {
    for held in [
        "BEGIN; LOCK TABLE tasks IN ACCESS EXCLUSIVE MODE",
        "BEGIN; SELECT 1 FROM nodes WHERE node = 'a' FOR UPDATE",
    ] {
        let (server, store) = on_server().await;
        let (claimant, late) = (NodeName::new("c"), NodeName::new("late"));
        store.join(&NodeName::new("a"), None, AT_MOST).await.unwrap();
        store.join(&claimant, None, Duration::from_secs(3_600)).await.unwrap();
        store.write(&[create(1), create(2)]).await.unwrap();
        server
            .sql(&server.url(), "UPDATE nodes SET lease_until_us = now_us() - 1 WHERE node = 'a'")
            .await;
        let mut between =
            PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
        between.execute(held).await.unwrap();
        let (claimed, ()) =
            tokio::join!(store.claim_tasks(&claimant, TaskClaimScope::Unowned, 10, &[]), async {
                somebody_waits(&server).await;
                store.join(&late, None, Duration::from_secs(3_600)).await.unwrap();
                between
                    .execute("UPDATE tasks SET owner = 'late', epoch = epoch + 1; COMMIT")
                    .await
                    .unwrap();
            });
        assert_eq!(claimed.unwrap(), [], "{held}");
        let owners = server
            .sql(&server.url(), "SELECT string_agg(DISTINCT owner || ' ' || epoch, ',') FROM tasks")
            .await;
        assert_eq!(owners, "late 2", "{held}");
    }
}

/// Between the sweep's first look and its removal, the owner renews a lease that was about to lapse.
#[tokio::test]
async fn a_session_of_a_node_that_renews_its_lease_meanwhile_is_not_swept() {
    let (server, store) = on_server().await;
    store.join(&NodeName::new("a"), None, AT_MOST).await.unwrap();
    store.write(&[open_session(1)]).await.unwrap();
    let lapse = "UPDATE nodes SET lease_until_us = now_us() - 1; UPDATE sessions SET owner = 'a'";
    server.sql(&server.url(), lapse).await;
    let mut renewal = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    let renew = "BEGIN; UPDATE nodes SET lease_until_us = now_us() + 3600000000";
    renewal.execute(renew).await.unwrap();
    let (swept, ()) = tokio::join!(store.sweep_sessions(Duration::ZERO, 10), async {
        somebody_waits(&server).await;
        renewal.execute("COMMIT").await.unwrap();
    });
    assert_eq!(swept.unwrap(), []);
    assert_eq!(server.sql(&server.url(), "SELECT count(*) FROM sessions").await, "1");
    server.sql(&server.url(), "UPDATE nodes SET lease_until_us = now_us() - 1").await;
    assert_eq!(store.sweep_sessions(Duration::ZERO, 10).await.unwrap(), [key(1)]);
}

#[tokio::test]
async fn reclaimed_rows_are_returned_once_with_their_epoch() {
    let (_server, store) = on_server().await;
    let (a, b) = (NodeName::new("a"), NodeName::new("b"));
    store.write(&[create(1), create(2), open_session(1)]).await.unwrap();
    for (from, to, epoch) in [(&a, &a, 2), (&a, &b, 3), (&b, &b, 4)] {
        let mut claimed = store.reclaim_tasks(from, to).await.unwrap();
        claimed.sort();
        assert_eq!(
            claimed,
            [(TaskId::new("t1"), epoch), (TaskId::new("t2"), epoch)],
            "{from} to {to}"
        );
    }
}

/// A claim does not wait for the locks of an unanswered call.
#[tokio::test]
async fn a_late_commit_of_an_unanswered_claim_is_returned_by_a_later_claim() {
    let (server, store) = on_server().await;
    let node = NodeName::new("b");
    store.write(&[create(1)]).await.unwrap();
    // This call was given up while it was committing.
    let token: i64 = 7;
    assert_eq!(store.in_doubt().record_claim(token), Vec::<i64>::new());
    let mut first = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    first.execute("BEGIN; SELECT task FROM claim_tasks('b', 10, 7, '{}', '{}')").await.unwrap();
    assert_eq!(store.claim_tasks(&node, TaskClaimScope::Unowned, 10, &[]).await.unwrap(), []);
    assert_eq!(
        store.claim_tasks(&node, TaskClaimScope::Unowned, 10, &[]).await.unwrap(),
        [],
        "nor by the next"
    );
    assert_eq!(store.unfinished_tasks_of(std::slice::from_ref(&node)).await.unwrap(), []);
    first.execute("COMMIT").await.unwrap();
    let claimed = store.claim_tasks(&node, TaskClaimScope::Unowned, 10, &[]).await.unwrap();
    assert_eq!(claimed.iter().map(|task| task.stored.epoch).collect::<Vec<_>>(), [2]);
    assert_eq!(
        store.unfinished_tasks_of(&[node, NodeName::new("a")]).await.unwrap(),
        [TaskId::new("t1")]
    );
    assert!(store.in_doubt().claims.is_empty(), "it is settled now");
}

/// The first attempt's connection is lost while it commits, and the second one waits for its locks.
#[tokio::test]
async fn a_late_commit_of_an_unanswered_reclaim_is_returned_by_the_next() {
    let (server, store) = on_server().await;
    let (a, b) = (NodeName::new("a"), NodeName::new("b"));
    store.write(&[create(1), open_session(1)]).await.unwrap();
    let mut first = PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    let moved = "BEGIN; UPDATE tasks SET owner = 'b', epoch = epoch + 1; UPDATE sessions SET owner = 'b', epoch = epoch + 1";
    first.execute(moved).await.unwrap();
    let keys = [key(1)];
    let (tasks, sessions, ()) =
        tokio::join!(store.reclaim_tasks(&a, &b), store.reclaim_sessions(&a, &b, &keys), async {
            eventually("both to wait", async || {
                match server.sql(&server.url(), WAITING).await.as_str() {
                    "2" => Ok(()),
                    waiting => Err(waiting.to_owned()),
                }
            })
            .await;
            first.execute("COMMIT").await.unwrap();
        });
    assert_eq!(
        (tasks.unwrap(), sessions.unwrap()),
        (vec![(TaskId::new("t1"), 2)], vec![(key(1), 2)])
    );
}

#[tokio::test]
async fn an_uncommitted_write_is_reported_as_not_done() {
    let (server, store) = on_server().await;
    warm(&store).await;
    server.freeze();
    let refused = store.write(&[create(1)]).await;
    assert!(matches!(refused, Err(StoreError::Unavailable { .. })), "not `Unsettled`: {refused:?}");
    server.thaw();
    everything_works_soon(&store).await;
    assert_eq!(store.task(&TaskId::new("t1")).await.unwrap(), None);
}

#[tokio::test]
async fn tasks_of_the_previous_version_are_counted() {
    let server = PostgresServer::fast().await;
    let mut connection =
        PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    schema::migrate_to(&mut connection, 2).await.unwrap();
    let tasks = "INSERT INTO task_usage (tenant, running, stored) VALUES ('acme', 1, 4), ('empty', 0, 0);
         INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, status, bytes, step, owner, epoch,
                            revision, created_at_us, updated_at_us, expires_at_us)
         SELECT status || n, 'acme', 'ada', decode(repeat('00', 32), 'hex'), FALSE, 'b', '', '', status, 0, 0, 'gone', 1, 1, n, n, 1
         FROM (VALUES ('working', 1), ('completed', 2), ('completed', 3), ('failed', 4)) AS v (status, n)";
    connection.execute(tasks).await.unwrap();
    let store = open(&server).await;
    assert_eq!((store.migration().from, store.migration().to), (2, schema::latest_version()));
    let counts = async || {
        store.task_counts().await.unwrap().into_iter().map(|(_, tasks)| tasks).collect::<Vec<_>>()
    };
    assert_eq!(counts().await, [1, 0, 2, 1, 0]);
    // A replica of the previous build still claims with the old function.
    let old = "SELECT string_agg(task, ' ') FROM claim_tasks('old', 10, 7)";
    assert_eq!(server.sql(&server.url(), old).await, "working1");
    store.expire_tasks(10).await.unwrap();
    assert_eq!(counts().await, [0, 0, 0, 0, 0]);
}

/// The migration does its long work before it takes any lock that writes need.
#[tokio::test]
async fn running_replicas_do_not_wait_for_the_count_of_tasks() {
    let server = PostgresServer::fast().await;
    let connect =
        async || PgConnectOptions::from_str(&server.url()).unwrap().connect().await.unwrap();
    let (mut migrating, mut holding) = (connect().await, connect().await);
    schema::migrate_to(&mut migrating, 2).await.unwrap();
    holding.execute("INSERT INTO task_usage (tenant, running, stored) VALUES ('acme', 0, 1); BEGIN; LOCK TABLE tasks").await.unwrap();
    let (migrated, ()) =
        tokio::join!(schema::migrate_to(&mut migrating, schema::latest_version()), async {
            somebody_waits(&server).await;
            holding
                .execute("SELECT 1 FROM task_usage FOR UPDATE NOWAIT; COMMIT")
                .await
                .expect("no process holds it");
        });
    assert_eq!(migrated, Ok(2));
    // These counts come from ends of tasks through the old functions.
    server.sql(&server.url(), "UPDATE task_usage SET failed = -1, cancelled = 3").await;
    let counts: Vec<u64> = open(&server)
        .await
        .task_counts()
        .await
        .unwrap()
        .into_iter()
        .map(|(_, tasks)| tasks)
        .collect();
    assert_eq!(counts, [0, 0, 0, 0, 3]);
}

/// Returns the number of pages that a statement with parameters reads.
pub(super) async fn pages_of(
    server: &PostgresServer,
    types: &str,
    statement: &str,
    parameters: &str,
) -> u32 {
    let prepare = format!("PREPARE looked ({types}) AS {statement}");
    pages_after(server, &prepare, &format!("EXECUTE looked ({parameters})")).await
}

/// A page of a list reads a few rows of an index, also where most rows are of other tenants.
#[tokio::test]
async fn frequent_reads_of_tasks_and_sessions_use_an_index() {
    let (server, _store, _node) = with_many_tasks().await;
    let more = "
        INSERT INTO tasks (task, tenant, principal, session, private, backend, request, details, idempotency, status, bytes, step, owner,
                           epoch, revision, created_at_us, updated_at_us)
        SELECT 'few ' || n, 'few', 'ada', decode(repeat('00', 32), 'hex'), FALSE, 'b', '', '', sha256(n::text::bytea), 'completed', 0, 1,
               'a', 1, 1, 1000000 + n, n
        FROM generate_series(1, 20000) AS n;
        INSERT INTO sessions (key, tenant, principal, transport, version, agreement, state, links, owner, epoch, created_at_us, seen_at_us)
        SELECT sha256(n::text::bytea), CASE WHEN n % 1000 = 0 THEN 'few' ELSE 'acme' END, 'ada', 'http', '2025-11-25', '', '', '', 'a', 1, n, n
        FROM generate_series(1, 50000) AS n;
        INSERT INTO subscriptions (key, exposed_uri, backend, uri)
        SELECT sha256(n::text::bytea), 'u', 'b', 'u' FROM generate_series(1, 20000) AS n";
    server.sql(&server.url(), more).await;
    server.sql(&server.url(), "VACUUM ANALYZE").await;
    let digest = "encode(substr(sha256('7'), 1, 8), 'hex')";
    let zeros = "decode(repeat('00', 32), 'hex')";
    let reads = [
        ("text, text, bytea", tasks::TASK_OF_KEY, "'few', 'ada', sha256('7')".to_owned()),
        (
            "text, text, bigint, text, bigint",
            tasks::TASKS,
            "'few', 'completed', NULL, NULL, 50".to_owned(),
        ),
        (
            "text, text, bigint, text, bigint",
            tasks::TASKS,
            "'few', NULL, 1000500, 'few 500', 50".to_owned(),
        ),
        ("text, text, bigint, text, bigint", tasks::TASKS, "NULL, NULL, NULL, NULL, 50".to_owned()),
        (
            "text, text, bytea, bigint, text, bigint",
            tasks::TASKS_FOR,
            format!("'few', 'ada', {zeros}, NULL, NULL, 50"),
        ),
        ("text[]", tasks::LOOKS, "ARRAY['few 7', 'many 7']".to_owned()),
        (
            "text, bigint, bytea, bigint",
            sessions::LIST_SESSIONS,
            "'few', NULL, NULL, 50".to_owned(),
        ),
        ("text, bigint, bytea, bigint", sessions::LIST_SESSIONS, "NULL, NULL, NULL, 50".to_owned()),
        ("text", sessions::SESSIONS_BY_DIGEST, digest.to_owned()),
    ];
    for (types, statement, parameters) in reads {
        let read = pages_of(&server, types, statement, &parameters).await;
        assert!(read > 0 && read < 500, "{read} pages: {statement} with {parameters}");
    }
}
